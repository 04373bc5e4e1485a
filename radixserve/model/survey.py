"""What a loaded model really does: its attention is watched, and its numbers are compared."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import torch

from radixserve.attention.arrays import paged_batch
from radixserve.attention.backend import AttentionBackend
from radixserve.errors import ModelError
from radixserve.model.compatibility import check_window
from radixserve.model.decoder import Decoder
from radixserve.model.kv_storage import KvGeometry
from radixserve.model.transformers_attention import NAME, PagedStep
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack

HARMLESS = {
    "cache", "cache_position", "dropout", "output_attentions", "output_hidden_states",
    "output_router_logits", "past_key_values", "position_embeddings", "position_ids",
    "return_dict", "use_cache",
}  # fmt: skip
NEEDS = {"s_aux": "attention sinks", "sinks": "attention sinks"}


@dataclass(slots=True)
class _Watcher:
    """Stands in for attention during one pass and notes what each layer asks for."""

    name: str
    max_model_len: int
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        soft_cap: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.shapes:
            raise ModelError(f"{self.name} calls attention more than once for layer {layer}.")
        if key.shape != value.shape or key.shape[-1] != query.shape[-1]:
            raise ModelError(
                f"{self.name} has keys of size {key.shape[-1]} and values of size "
                f"{value.shape[-1]} (multi-head latent attention), which is not supported."
            )
        self._check_extras(module, extras)
        self.shapes[layer] = (query.shape[1], key.shape[1], key.shape[2])
        self.dtype = key.dtype
        return torch.zeros_like(query)

    def _check_extras(self, module: torch.nn.Module, extras: dict[str, Any]) -> None:
        if extras.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise ModelError(f"{self.name} has attention that is not causal: not supported.")
        window = extras.get("sliding_window")
        if window is not None:
            check_window(self.name, int(window), self.max_model_len)
        known = HARMLESS | {"is_causal", "sliding_window"}
        for extra, value in extras.items():
            if extra not in known and value is not None:
                need = NEEDS.get(extra, f"{extra!r} in its attention")
                raise ModelError(f"{self.name} needs {need}, which is not supported.")


def survey(decoder: Decoder, max_model_len: int) -> KvGeometry:
    """Run a few tokens through the model and see how each layer calls its attention.

    Raises:
        ModelError: a layer does not call it, or asks for more than paged causal attention.
    """
    model: Any = decoder.model
    name = type(model).__name__
    watcher = _Watcher(name, max_model_len)
    tokens = torch.arange(3)
    try:
        decoder.forward(tokens, tokens, tokens, watcher)
    except ModelError:
        raise
    except Exception as error:  # whatever a model does not take, the user must read its name
        raise ModelError(f"{name} cannot be run with paged attention: {error!r}") from error
    missing = sorted(set(range(model.config.num_hidden_layers)) - set(watcher.shapes))
    if missing:
        raise ModelError(
            f"{name} does not compute attention through transformers' AttentionInterface in layers "
            f"{missing}: it keeps state of another kind (state-space, linear attention, a bias by "
            "distance) or its own attention, which is not supported."
        )
    if len(set(watcher.shapes.values())) > 1:
        raise ModelError(f"{name} has heads that differ between layers: not supported.")
    heads, kv_heads, head_dim = watcher.shapes[0]
    return KvGeometry(len(watcher.shapes), kv_heads, head_dim, watcher.dtype, heads)


PAGE = 4
PROMPT, CUT, OTHER = 16, 9, 5
"""Tokens of one prompt, the length of its first chunk, and tokens of a prompt beside its last."""
PAGES = 8
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.15}


def own_logits(decoder: Decoder, max_model_len: int) -> torch.Tensor:
    """The logits, [21, vocabulary], that ``self_check`` wants: by the model's own eager attention.

    Raises:
        ModelError: it cannot be run so.
    """
    model: Any = decoder.model
    prompt, other = _texts(model.config.vocab_size)
    shift = max(max_model_len - PROMPT, 0)
    try:
        model.set_attn_implementation("eager")
        return torch.cat([_eager(decoder, tokens, shift) for tokens in (prompt, other)])
    except Exception as error:
        name = type(model).__name__
        raise ModelError(f"{name} cannot be run with eager attention: {error!r}") from error
    finally:
        model.set_attn_implementation(NAME)


def self_check(
    decoder: Decoder, backend: AttentionBackend, own: torch.Tensor, max_model_len: int
) -> None:
    """Compare paged attention, in chunks and in a batch, with ``own``, of ``own_logits``.

    ``backend`` needs 8 free pages of 4 tokens. Guards against models that pass the survey and
    still need more than keys and values of earlier tokens. Positions are the last ones before
    ``max_model_len``: what goes wrong with them goes wrong there. The steps are of several tokens
    and of one, which is all that ``Decoder.compile`` tells apart.

    Raises:
        ModelError: the logits differ by more than rounding explains.
    """
    model: Any = decoder.model
    prompt, other = _texts(model.config.vocab_size)
    shift = max(max_model_len - PROMPT, 0)
    pages, others = array("i", [7, 2, 5, 1]), array("i", [3, 6])
    first, one = [_row(prompt[:CUT], 0, pages)], [_row(prompt[CUT : CUT + 1], CUT, pages)]
    last = [_row(prompt[CUT + 1 :], CUT + 1, pages), _row(other, 0, others)]
    actual = torch.cat([_paged(decoder, backend, rows, shift) for rows in (first, one, last)])
    difference = (actual - own).norm(dim=-1)
    spread = (own - own.mean(-1, keepdim=True)).norm(dim=-1)
    # A few tokens may differ more in half precision: an expert chosen by a hair, for one.
    relative = float((difference / spread)[CUT:].median())
    if not relative <= TOLERANCE[next(model.parameters()).dtype]:
        raise ModelError(
            f"{type(model).__name__} gives other logits with paged attention than with its own "
            f"(relative error {relative:.3g}): it needs something that radixserve does not have."
        )


def _texts(vocab_size: int) -> tuple[list[int], list[int]]:
    ids = [(7919 * i + 13) % vocab_size for i in range(PROMPT + OTHER)]
    return ids[:PROMPT], ids[PROMPT:]


def _row(tokens: list[int], start: int, pages: array[int]) -> Row:
    return Row("check", pack(tokens), start, pages, SamplingParams())


def _paged(
    decoder: Decoder, backend: AttentionBackend, rows: list[Row], shift: int
) -> torch.Tensor:
    batch = paged_batch(StepPlan(0, rows), PAGE)
    backend.begin(batch)
    everyone = torch.arange(len(batch.token_ids))
    step = PagedStep(backend)
    return decoder.forward(batch.token_ids, batch.positions + shift, everyone, step).float()


@torch.inference_mode()
def _eager(decoder: Decoder, tokens: list[int], shift: int) -> torch.Tensor:
    ids = torch.tensor([tokens], device=decoder.device)
    positions = torch.arange(shift, shift + len(tokens), device=decoder.device)[None]
    output = decoder.model(input_ids=ids, position_ids=positions, use_cache=False)
    logits: torch.Tensor = output.logits[0]
    return logits.float()
