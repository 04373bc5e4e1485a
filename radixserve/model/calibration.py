"""How large keys and values get: a fixed set of prompts through the model, before it serves."""

from __future__ import annotations

import importlib
import logging
import random
from array import array
from collections.abc import Sequence

import tokenizers
import torch
from tqdm import tqdm

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.model.kv_storage import KvGeometry, KvStorage
from radixserve.model.loader import Description
from radixserve.model.torch_decoder import TorchDecoder
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack

log = logging.getLogger(__name__)

PROMPTS, LENGTH = 8, 512
"""How many there are, and of how many tokens at most."""
CHARACTERS = 8 * LENGTH
"""More than ``LENGTH`` tokens stand for, in a text that is not made of very long words."""


def prompts(described: Description) -> list[list[int]]:
    """The token ids of the prompts, the same whenever the tokenizer and the Python are.

    Pieces of the help that comes with Python, which is English and code; where there is no
    ``tokenizer.json`` or no help, random tokens, whose keys and values may be of another size.
    """
    length = min(LENGTH, described.max_model_len)
    vocabulary = int(described.config.vocab_size)
    try:
        return _encoded(described, length, vocabulary)
    except Exception as error:  # of the tokenizer's library it is a plain Exception
        log.warning("FP8 scales are measured on random tokens, not on text: %s", error)
        chance = random.Random(0)
        return [chance.choices(range(vocabulary), k=length) for _ in range(PROMPTS)]


def _encoded(described: Description, length: int, vocabulary: int) -> list[list[int]]:
    topics = importlib.import_module("pydoc_data.topics").topics
    text = "\n".join(topics[name] for name in sorted(topics))
    folder = described.tokenizer or described.path
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    starts = range(0, len(text) - CHARACTERS, (len(text) - CHARACTERS) // PROMPTS)[:PROMPTS]
    encoded = [tokenizer.encode(text[start : start + CHARACTERS]).ids for start in starts]
    known = [[token for token in ids if token < vocabulary][:length] for ids in encoded]
    if not all(known):
        raise ValueError(f"{folder}: the tokenizer knows none of the model's tokens in it")
    return known


def identity(described: Description) -> str:
    """Another one where keys and values may be others: weights, config, device, or torch."""
    if described.dummy:
        weights = f"dummy {described.seed}"
    else:
        states = [
            (str(file.resolve()), state.st_size, state.st_mtime_ns)
            for file in sorted(described.path.glob("*.safetensors"))
            for state in [file.stat()]
        ]
        weights = repr(states)
    told = described.config.to_json_string()
    return f"{weights} {told} {described.dtype} {described.device.type} {torch.__version__}"


class _Watched:
    """An ``AttentionBackend`` that notes the largest keys and values of each layer."""

    def __init__(self, geometry: KvGeometry, device: torch.device):
        self._attention = ReferenceAttention(KvStorage(geometry, 1, LENGTH, device).kv)
        self.largest = torch.zeros(geometry.layers, 2, device=device)
        self.begin, self.run = self._attention.begin, self._attention.run

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        sizes = torch.stack([each.abs().amax().float() for each in (key, value)])
        self.largest[layer] = torch.maximum(self.largest[layer], sizes)
        self._attention.append(layer, key, value)


def largest(
    decoder: TorchDecoder, geometry: KvGeometry, prompts: Sequence[list[int]], *, progress: bool
) -> torch.Tensor:
    """The largest sizes, fp32 [layers, 2], of keys and of values of ``prompts`` on this rank.

    In the model's own dtype, each prompt for itself; NaN where one is. ``geometry`` is that of
    plain KV. Takes the memory of one prompt.
    """
    watched = _Watched(geometry, decoder.device)
    named = "Measuring FP8 scales (once)"
    for tokens in tqdm(prompts, desc=named, unit="prompt", disable=not progress):
        decoder.logits(_batch(tokens), watched)
    return watched.largest


def _batch(tokens: list[int]) -> PagedBatch:
    row = Row("calibration", pack(tokens), 0, array("i", [0]), SamplingParams())
    return paged_batch(StepPlan(0, [row]), LENGTH)
