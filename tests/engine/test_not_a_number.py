"""A model that computes no number once is not remembered for it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.attention.backend import AttentionBackend
from tests.engine.test_equals_transformers import engine
from tests.engine.test_interrupted_prefills import PROMPT, ask, finish
from tests.model import tiny


def test_a_prompt_can_be_asked_again_after_its_computation_went_wrong_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    core = engine(tiny.write(tmp_path), page_size=4, num_pages=80)
    decoder, kv = core.runner._decoder, core.runner._storage.kv
    logits = decoder.logits

    def broken(batch: PagedBatch, backend: AttentionBackend) -> torch.Tensor:
        right = logits(batch, backend)
        kv[-1, batch.kv_indices.long()] = math.nan
        return right * math.nan

    monkeypatch.setattr(decoder, "logits", broken)
    ask(core, "spoilt", PROMPT)
    deltas = []
    while not deltas:
        deltas = core.step()
    assert [delta.finish for delta in deltas] == ["error"]
    monkeypatch.setattr(decoder, "logits", logits)
    first, _ = finish(core, "right", PROMPT)
    again, cached = finish(core, "again", PROMPT)
    assert first == again
    assert len(first) == 8
    assert cached > 0
