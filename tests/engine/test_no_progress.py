"""A fault of ours that stops everything costs one request at a time, and is told."""

from __future__ import annotations

import logging

import pytest

from radixserve.engine import core as engine_core
from tests.engine.saying import PROMPT, add, engine, run

pytestmark = pytest.mark.usefixtures("steps")


def test_work_that_cannot_be_planned_fails_instead_of_hanging(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    core = engine()
    with monkeypatch.context() as broken:
        broken.setattr(type(core.cache), "reserve", lambda *args, **kwargs: None)
        add(core, "a", "on")
        add(core, "b", "on")
        with caplog.at_level(logging.ERROR):
            silent = 0
            while not (deltas := core.step()):
                silent += 1
                assert silent < engine_core.STALLED_PLANS
        assert [(delta.id, delta.finish) for delta in deltas] == [("a", "error")]
    assert silent == engine_core.STALLED_PLANS - 1
    [record] = caplog.records
    assert f"a: waiting, 0/{len(PROMPT)} tokens" in record.getMessage()
    assert "pages free" in record.getMessage()
    # What was wrong is over, and the next one is served.
    run(core, "b")


def test_an_idle_engine_is_no_fault():
    core = engine()
    for _ in range(3 * engine_core.STALLED_PLANS):
        assert core.step() == []
    add(core, "a", "on")
    run(core, "a")
