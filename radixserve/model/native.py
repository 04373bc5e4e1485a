"""Decoders of Llama's family on the native kernels: from a checkpoint to logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

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
from radixserve.model.kv_storage import KvGeometry

FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}

Tensors = Mapping[str, Callable[[], torch.Tensor]]
"""Weights by name, read when they are called for."""


def unfit(config: PreTrainedConfig, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot run a model of ``config``; None if they can."""
    if config.model_type not in FAMILIES:
        return f"{config.model_type} is none of {', '.join(sorted(FAMILIES))}"
    if dtype not in DTYPES:
        return f"{dtype} is neither float32 nor bfloat16"
    if getattr(config, "quantization_config", None):
        return "its weights are quantized"
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        return "its MLP is not a plain gated SiLU"
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
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
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


def checkpoint(path: Path) -> Tensors:
    """The tensors of all safetensors files in ``path``.

    Raises:
        OSError, SafetensorError: a file cannot be read.
    """
    found: dict[str, Callable[[], torch.Tensor]] = {}
    for file in sorted(path.glob("*.safetensors")):
        opened: Any = safe_open(file, framework="pt")
        found |= {name: partial(opened.get_tensor, name) for name in opened.keys()}  # noqa: SIM118
    return found


def complete(config: PreTrainedConfig, tensors: Tensors) -> bool:
    """Whether ``tensors`` are the weights of a model of ``config``, no more and no less."""
    return set(tensors) == set(_names(config))


class NativeModel:
    """A model whose every step is one call of the kernels."""

    def __init__(
        self,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        tensors: Tensors,
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
        self._cosines, self._sines = _rotations(config, max_model_len)

    def logits(self, batch: PagedBatch, kv: torch.Tensor) -> torch.Tensor:
        """Logits, fp32 [S, vocabulary], of ``batch.sample_rows``.

        The KV of all tokens is appended to ``kv``, [layers, pages, ...], whose pages the kernels
        lay out in their own order.
        """
        cosines, sines = self._cosines[batch.positions], self._sines[batch.positions]
        logits: torch.Tensor = self._decoder.run(batch, kv, cosines, sines, together=self._together)
        return logits


class _Packer:
    """Takes weights out of a checkpoint and brings them into the kernels' form."""

    def __init__(
        self,
        config: PreTrainedConfig,
        shape: DecoderShape,
        tensors: Tensors,
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
            rotates=_rotates(self._config, index),
        )

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]().to(self._shape.dtype)

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


def _rotates(config: PreTrainedConfig, layer: int) -> bool:
    layers: list[int] | None = getattr(config, "no_rope_layers", None)
    return not layers or bool(layers[layer])  # SmolLM3's list says 1 where a layer does rotate


def _rotations(config: PreTrainedConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of all positions, fp32 [length, head_dim / 2] each."""
    frequencies, factor = _frequencies(config)
    angles = torch.arange(length)[:, None].float() * frequencies
    return angles.cos() * factor, angles.sin() * factor


def _frequencies(config: PreTrainedConfig) -> tuple[torch.Tensor, float]:
    """Of each pair of a head, fp32 [head_dim / 2]; and what cosines and sines are multiplied by.

    Su et al., "RoFormer" (2021), for the default; transformers has the variants that scale it.
    """
    rope: dict[str, Any] = config.rope_parameters
    if rope["rope_type"] != "default":
        scaled: Callable[..., tuple[torch.Tensor, float]] = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        return scaled(config)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    powers = torch.arange(0, size, 2, dtype=torch.float) / size
    return 1.0 / rope["rope_theta"] ** powers, 1.0


def _names(config: PreTrainedConfig) -> list[str]:
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    if not config.tie_word_embeddings:
        names.append("lm_head.weight")
    for index in range(config.num_hidden_layers):
        at = f"model.layers.{index}."
        names += [f"{at}{norm}_layernorm.weight" for norm in ("input", "post_attention")]
        names += [f"{at}mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
        names += [f"{at}self_attn.{name}_proj.weight" for name in "qkvo"]
        names += [f"{at}self_attn.{name}_proj.bias" for name in _biased(config)]
        if config.model_type == "qwen3":
            names += [f"{at}self_attn.{name}_norm.weight" for name in "qk"]
    return names


def _biased(config: PreTrainedConfig) -> str:
    if config.model_type == "qwen2":
        return "qkv"
    return "qkvo" if getattr(config, "attention_bias", False) else ""
