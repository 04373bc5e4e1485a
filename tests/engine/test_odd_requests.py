"""One request that cannot be computed costs nobody else anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationRequest
from radixserve.model import sampler
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.computing import engine
from tests.model import tiny

STEM = [(43 * i * i + 5 * i + 11) % tiny.VOCABULARY for i in range(40)]
ODD = 2


def together(core: EngineCore, round_: str) -> list[tuple[list[int], str | None, int]]:
    """Of each of four answers the tokens, what went wrong, and what of its prompt was cached."""
    names = [f"{round_}{index}" for index in range(4)]
    for index, name in enumerate(names):
        sampling = SamplingParams(seed=index, max_tokens=10, ignore_eos=True)
        tokens = pack([*STEM, 10 + index])
        core.add(GenerationRequest(id=name, tokens=tokens, sampling=sampling))
    said: dict[str, list[int]] = {name: [] for name in names}
    error: dict[str, str | None] = dict.fromkeys(names)
    cached = dict.fromkeys(names, 0)
    while not core.idle:
        for delta in core.step():
            said[delta.id] += [each.token for each in delta.sampled]
            error[delta.id] = error[delta.id] or delta.error
            cached[delta.id] = delta.usage.cached_tokens
        core.cache.check()
    return [(said[name], error[name], cached[name]) for name in names]


def test_a_token_that_cannot_be_chosen_ends_its_own_request_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    checkpoint = tiny.write(tmp_path)
    expected = together(engine(checkpoint, prefix_cache=False), "alone")
    core = engine(checkpoint, page_size=4, num_pages=100)
    sample_one = sampler._sample_one

    def faulty(raw, row, params, eos_token_ids):
        if row.request_id == f"odd{ODD}" and row.generated == 4:
            raise ZeroDivisionError("nobody thought of that")
        return sample_one(raw, row, params, eos_token_ids)

    monkeypatch.setattr(sampler, "_sample_one", faulty)
    for index, (tokens, error, _) in enumerate(together(core, "odd")):
        assert tokens == expected[index][0][: 4 if index == ODD else None]
        assert (error is not None) == (index == ODD)
    assert "nobody thought of that" in caplog.text
    assert core.stats().finished == {"length": 3, "error": 1}
    for index, (tokens, error, cached) in enumerate(together(core, "again")):
        assert (tokens, error) == (expected[index][0], None)
        assert cached > 0
    assert core.cache.available == core.cache.pool.num_pages - 1
