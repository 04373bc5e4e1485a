"""A model that computes no number once is not remembered for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.attention.arrays import PagedBatch
from tests.engine.computing import PROMPT, ask, engine, finish
from tests.model import tiny


@pytest.mark.parametrize("budget", [512, 32], ids=["at once", "in chunks"])
def test_a_prompt_can_be_asked_again_after_its_computation_went_wrong_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
):
    settings = {"max_num_batched_tokens": budget, "max_num_seqs": 4}
    core = engine(tiny.write(tmp_path), page_size=4, num_pages=80, **settings)
    runner: Any = core.runner
    kv, logits = runner._storage.kv, runner._logits

    def broken(batch: PagedBatch) -> torch.Tensor:
        right = logits(batch)
        kv[-1, batch.kv_indices.long()] = math.nan
        return right * math.nan

    monkeypatch.setattr(runner, "_logits", broken)
    ask(core, "spoilt", PROMPT)
    deltas = []
    while not deltas:
        deltas = core.step()
    assert [delta.finish for delta in deltas] == ["error"]
    assert core.stats().steps == -(-len(PROMPT) // budget)
    monkeypatch.setattr(runner, "_logits", logits)
    first, _ = finish(core, "right", PROMPT)
    again, cached = finish(core, "again", PROMPT)
    assert first == again
    assert len(first) == 8
    assert cached > 0
