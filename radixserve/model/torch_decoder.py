"""Decoders of Llama's family in torch, for GPUs: from a checkpoint to logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding, linear
from transformers import PreTrainedConfig

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.staging import Staging
from radixserve.model import family
from radixserve.model.kv_storage import KvGeometry
from radixserve.model.ops import Ops
from radixserve.model.parallel import ALONE, Parallel, Share, share
from radixserve.model.rotary import rotations


def geometry(
    config: PreTrainedConfig, dtype: torch.dtype, parallel: Parallel = ALONE
) -> KvGeometry:
    """What a token leaves behind in each layer on this rank."""
    mine = share(config, parallel)
    return KvGeometry(
        config.num_hidden_layers,
        _length(mine.kv_heads),
        family.head_size(config),
        dtype,
        _length(mine.heads),
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """The share of one rank; weights are [out, in]."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    rotates: bool


class TorchDecoder:
    """One rank's share of a model: all of it, unless there are others.

    Args:
        config: of the family (``family.unfit`` says None).
        dtype: of weights and activations.
        tensors: its weights (``family.complete``); only this rank's share of them is read.
        device: where they go.
        max_model_len: positions to have rotations for.
        ops: the small operations between the products.
        staging: what a step's token ids reach the device through while it is still busy with the
            step before; None where there is nothing to wait for.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        tensors: family.Tensors,
        ops: Ops,
        *,
        device: torch.device,
        max_model_len: int,
        parallel: Parallel = ALONE,
        staging: Staging | None = None,
    ):
        mine = share(config, parallel)
        self.device, self._staging = device, staging
        self._ops, self._parallel = ops, parallel
        self._heads, self._kv_heads = _length(mine.heads), _length(mine.kv_heads)
        self._size = family.head_size(config)
        self._epsilon = float(config.rms_norm_eps)
        self._vocabulary = int(config.vocab_size)
        loader = _Loader(config, dtype, tensors, device, mine, parallel)
        self._table = loader.whole("model.embed_tokens.weight")
        self._layers = [loader.layer(index) for index in range(config.num_hidden_layers)]
        self._norm = loader.whole("model.norm.weight")
        self._head = loader.head(self._table)
        self._rotations = torch.cat(rotations(config, max_model_len), -1).to(device)

    @torch.inference_mode()
    def logits(self, batch: PagedBatch, backend: AttentionBackend) -> torch.Tensor:
        """Logits, [S, vocabulary], of ``batch.sample_rows``; the KV of all tokens is appended."""
        backend.begin(batch)
        token_ids, positions, sample_rows = self._inputs(batch)
        if batch.unknown is not None:
            batch.unknown.fill(token_ids)
        return self.forward(token_ids, positions, sample_rows, backend)

    def _inputs(self, batch: PagedBatch) -> tuple[torch.Tensor, ...]:
        """Token ids, positions and sampled rows, int64, on the device.

        Copied from anything but pinned memory they would wait for all that the device has to do.
        """
        inputs = (batch.token_ids, batch.positions, batch.sample_rows)
        if self._staging is None:
            return tuple(each.to(self.device) for each in inputs)
        self._staging.wait()
        joined = np.concatenate([each.numpy() for each in inputs]).astype(np.int32)
        ((_, sent),) = self._staging.load([joined])
        self._staging.close()
        return torch.split(sent.long(), [len(each) for each in inputs])

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """Logits, [S, vocabulary], of the tokens at ``sample_rows``; all int64, on the device.

        Shapes depend on those of the arguments alone and nothing waits for the device, so that a
        CUDA graph can hold it, as far as ``backend``, which has begun the step, allows.
        """
        ops, epsilon = self._ops, self._epsilon
        residual = embedding(token_ids, self._table)
        hidden = ops.rms_norm(residual, self._layers[0].attention_norm, epsilon)
        following = [layer.attention_norm for layer in self._layers[1:]] + [self._norm]
        for index, (layer, norm) in enumerate(zip(self._layers, following, strict=True)):
            attended = self._attend(index, layer, hidden, positions, backend)
            if index == len(self._layers) - 1:  # what is left is for the logits alone
                if not len(sample_rows):  # a kernel cannot be launched over no rows
                    return hidden.new_empty(0, self._vocabulary)
                attended, residual = attended[sample_rows], residual[sample_rows]
            hidden = self._parallel.sum(linear(attended, layer.output, layer.output_bias))
            hidden = ops.add_rms_norm(hidden, residual, layer.mlp_norm, epsilon)
            hidden = linear(ops.silu_and_mul(linear(hidden, layer.gate_up)), layer.down)
            hidden = ops.add_rms_norm(self._parallel.sum(hidden), residual, norm, epsilon)
        return self._parallel.gather(linear(hidden, self._head))[:, : self._vocabulary]

    def _attend(
        self,
        index: int,
        layer: _Layer,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        heads, kv_heads = self._heads, self._kv_heads
        qkv = linear(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), -1, self._size)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self._ops.rms_norm(query, layer.query_norm, self._epsilon)
            key = self._ops.rms_norm(key, layer.key_norm, self._epsilon)
        if layer.rotates:
            self._ops.rotate(positions, query, key, self._rotations)
        backend.append(index, key, value)
        return backend.run(index, query, scale=self._size**-0.5).flatten(1)


class _Loader:
    """Reads one rank's share of the weights, fused and in their dtype, onto its device."""

    def __init__(
        self,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        tensors: family.Tensors,
        device: torch.device,
        mine: Share,
        parallel: Parallel,
    ):
        self._config, self._dtype, self._device = config, dtype, device
        self._tensors, self._mine, self._parallel = tensors, mine, parallel
        size = family.head_size(config)
        self._wide, self._narrow = _times(mine.heads, size), _times(mine.kv_heads, size)

    def layer(self, index: int) -> _Layer:
        at, attention = f"model.layers.{index}.", f"model.layers.{index}.self_attn."
        shares = {
            f"{attention}q_proj": self._wide,
            f"{attention}k_proj": self._narrow,
            f"{attention}v_proj": self._narrow,
        }
        output_bias = self._maybe(f"{attention}o_proj.bias")
        return _Layer(
            attention_norm=self.whole(f"{at}input_layernorm.weight"),
            qkv=self._rows({f"{name}.weight": part for name, part in shares.items()}),
            qkv_bias=self._rows({f"{name}.bias": part for name, part in shares.items()})
            if f"{attention}q_proj.bias" in self._tensors
            else None,
            query_norm=self._maybe(f"{attention}q_norm.weight"),
            key_norm=self._maybe(f"{attention}k_norm.weight"),
            output=self._columns(f"{attention}o_proj.weight", self._wide),
            # The sum over the ranks must hold it once.
            output_bias=output_bias if self._parallel.rank == 0 else None,
            mlp_norm=self.whole(f"{at}post_attention_layernorm.weight"),
            gate_up=self._rows(
                {f"{at}mlp.{name}_proj.weight": self._mine.inner for name in ("gate", "up")}
            ),
            down=self._columns(f"{at}mlp.down_proj.weight", self._mine.inner),
            rotates=family.rotates(self._config, index),
        )

    def head(self, table: torch.Tensor) -> torch.Tensor:
        """The rows of the vocabulary that this rank computes; zeros where it has no more."""
        part = self._mine.vocabulary
        if "lm_head.weight" in self._tensors:
            rows = self._rows({"lm_head.weight": part})
        else:
            rows = table[part]
        missing = self._mine.rows - len(rows)
        return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows

    def whole(self, name: str) -> torch.Tensor:
        return self._placed(self._tensors[name][:])

    def _maybe(self, name: str) -> torch.Tensor | None:
        return self.whole(name) if name in self._tensors else None

    def _rows(self, parts: dict[str, slice]) -> torch.Tensor:
        return self._placed(torch.cat([self._tensors[name][part] for name, part in parts.items()]))

    def _columns(self, name: str, part: slice) -> torch.Tensor:
        return self._placed(self._tensors[name][:, part]).contiguous()

    def _placed(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(self._device, self._dtype)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _times(part: slice, size: int) -> slice:
    return slice(part.start * size, part.stop * size)
