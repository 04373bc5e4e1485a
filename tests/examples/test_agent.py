"""The example of an agent, with a tiny model."""

from __future__ import annotations

import importlib
import re
from itertools import pairwise
from typing import Any

import pytest

from radixserve.errors import ServerError
from tests.rag.conftest import KEY


def test_each_step_reuses_the_prompt_of_the_last_one(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    agent: Any = importlib.import_module("agent")
    monkeypatch.setattr(agent, "SYSTEM", "Read the pages.")
    monkeypatch.setattr(agent, "PAGE", 60)
    monkeypatch.setattr(agent, "ANSWER", 6)
    sums = agent.main(url, steps=4, api_key=KEY)
    assert sums["prompt"] / 2 < sums["reused"] < sums["prompt"]
    said = capsys.readouterr().out
    rows = [list(map(int, row)) for row in re.findall(r"^ +(\d+) +(\d+) +(\d+)", said, re.M)]
    assert [step for step, _, _ in rows] == [1, 2, 3, 4]
    for (_, prompt, _), (_, _, reused) in pairwise(rows):
        assert reused >= prompt
    released = re.search(r"Ended: (\d+) pages released", said)
    assert released is not None
    assert int(released[1]) > 0


def test_a_server_that_is_not_there_is_told_of():
    agent: Any = importlib.import_module("agent")
    with pytest.raises(ServerError, match="Start a server there"):
        agent.main("http://127.0.0.1:9", steps=1)
