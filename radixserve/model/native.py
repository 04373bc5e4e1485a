"""Decoders of Llama's family on the native kernels: from a checkpoint to logits."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from radixserve.attention.arrays import PagedBatch
from radixserve.kernels.cpu.library import CpuKernels
from radixserve.kernels.cpu.weights import (
    DTYPES,
    Arena,
    DecoderShape,
    LayerWeights,
    Packed,
    PageForm,
)
from radixserve.kernels.kv_codes import Code
from radixserve.model import family
from radixserve.model.kv_storage import KvGeometry
from radixserve.model.rotary import rotations


def unfit(config: PreTrainedConfig, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot run a model of ``config``; None if they can."""
    reason = family.unfit(config)
    if reason is not None:
        return reason
    if dtype not in DTYPES:
        return f"{dtype} is neither float32 nor bfloat16"
    try:
        decoder_shape(config, dtype).check()
    except ValueError as error:
        return str(error)
    return None


def decoder_shape(config: PreTrainedConfig, dtype: torch.dtype) -> DecoderShape:
    """The sizes of a model of ``config``."""
    heads = config.num_attention_heads
    return DecoderShape(
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=family.head_size(config),
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        norm_epsilon=config.rms_norm_eps,
        dtype=dtype,
    )


def geometry(config: PreTrainedConfig, dtype: torch.dtype, code: Code = "none") -> KvGeometry:
    """What a token leaves behind in each layer."""
    shape = decoder_shape(config, dtype)
    return KvGeometry(
        config.num_hidden_layers, shape.kv_heads, shape.head_dim, dtype, shape.heads, code
    )


class NativeModel:
    """A model whose every step is one call of the kernels."""

    def __init__(
        self,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        tensors: family.Tensors,
        kernels: CpuKernels,
        *,
        pages: PageForm,
        max_model_len: int,
        threads: int,
        together: bool = True,
        int8: bool = False,
    ):
        """``tensors`` have to be ``complete``. With ``int8`` their products are quantized."""
        shape = decoder_shape(config, dtype)
        self._together = together
        packer = _Packer(config, shape, tensors, kernels, int8)
        layers = [packer.layer(index) for index in range(config.num_hidden_layers)]
        tied = "lm_head.weight" not in tensors
        table = packer.tensor("model.embed_tokens.weight")
        head = packer.pack(table if tied else packer.tensor("lm_head.weight"))
        self._decoder = kernels.decoder(
            shape,
            layers,
            head,
            None if tied else table.contiguous().clone(),
            packer.vector("model.norm.weight"),
            pages=pages,
            threads=threads,
        )
        self._cosines, self._sines = rotations(config, max_model_len)

    def logits(self, batch: PagedBatch, kv: torch.Tensor) -> torch.Tensor:
        """Logits, fp32 [S, vocabulary], of ``batch.sample_rows``.

        The KV of all tokens is appended to ``kv``, [layers, pages, ...], whose pages the kernels
        lay out in their own order.
        """
        logits: torch.Tensor = self._decoder.run(
            batch, kv, *self._rotations(batch), together=self._together
        )
        return logits

    def states(self, batch: PagedBatch, kv: torch.Tensor) -> torch.Tensor:
        """As ``logits``, but the hidden states that these are made of, fp32 [S, hidden]."""
        states: torch.Tensor = self._decoder.states(
            batch, kv, *self._rotations(batch), together=self._together
        )
        return states

    def _rotations(self, batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cosines[batch.positions], self._sines[batch.positions]


class _Packer:
    """Takes weights out of a checkpoint and brings them into the kernels' form."""

    def __init__(
        self,
        config: PreTrainedConfig,
        shape: DecoderShape,
        tensors: family.Tensors,
        kernels: CpuKernels,
        int8: bool,
    ):
        self._config, self._shape, self._int8 = config, shape, int8
        self._tensors, self._kernels = tensors, kernels
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        a_layer = [
            (wide + 2 * narrow, shape.hidden), (shape.hidden, wide), (shape.inner, shape.hidden),
            (shape.inner, shape.hidden), (shape.hidden, shape.inner),
        ]  # fmt: skip
        dtype = torch.int8 if int8 else shape.dtype
        size = kernels.packed_bytes(shape.vocabulary, shape.hidden, dtype)
        size += config.num_hidden_layers * sum(
            kernels.packed_bytes(*form, dtype) for form in a_layer
        )
        self._arena = Arena(size)

    def layer(self, index: int) -> LayerWeights:
        at = f"model.layers.{index}."
        q, k, v = (f"{at}self_attn.{name}_proj" for name in "qkv")
        qkv = torch.cat([self.tensor(f"{name}.weight") for name in (q, k, v)])
        packed, output = self.pack(qkv), self.pack(self.tensor(f"{at}self_attn.o_proj.weight"))
        return LayerWeights(
            attention_norm=self.vector(f"{at}input_layernorm.weight"),
            qkv=packed,
            qkv_bias=self._bias([f"{name}.bias" for name in (q, k, v)], packed),
            query_norm=self._maybe(f"{at}self_attn.q_norm.weight"),
            key_norm=self._maybe(f"{at}self_attn.k_norm.weight"),
            output=output,
            output_bias=self._bias([f"{at}self_attn.o_proj.bias"], output),
            mlp_norm=self.vector(f"{at}post_attention_layernorm.weight"),
            gate=self.pack(self.tensor(f"{at}mlp.gate_proj.weight")),
            up=self.pack(self.tensor(f"{at}mlp.up_proj.weight")),
            down=self.pack(self.tensor(f"{at}mlp.down_proj.weight")),
            rotates=family.rotates(self._config, index),
        )

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name][:].to(self._shape.dtype)

    def vector(self, name: str) -> torch.Tensor:
        return self.tensor(name).float().contiguous().clone()

    def pack(self, weight: torch.Tensor) -> Packed:
        return self._kernels.pack(weight, self._arena, int8=self._int8)

    def _maybe(self, name: str) -> torch.Tensor | None:
        return self.vector(name) if name in self._tensors else None

    def _bias(self, names: list[str], weight: Packed) -> torch.Tensor | None:
        if names[0] not in self._tensors:
            return None
        bias = torch.zeros(weight.padded)
        bias[: weight.columns] = torch.cat([self.vector(name) for name in names])
        return bias
