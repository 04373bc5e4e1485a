"""Work that may take too much runs in a fork."""

from __future__ import annotations

import resource

import pytest

from radixserve.bounded import bounded

HARD = 2**46
"""Bytes that a process may be given here, and no more."""


def test_no_more_is_asked_for_than_this_process_may_have(monkeypatch: pytest.MonkeyPatch):
    real = resource.setrlimit

    def setrlimit(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_AS and limits[1] > HARD:
            raise ValueError("not allowed to raise maximum limit")
        real(kind, limits)

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (HARD, HARD))
    assert bounded(lambda: b"done", seconds=10, memory=HARD) == b"done"
