"""Recorded sessions of coding agents as one trace: so many are open at any time, and each sends its
next request when it has had the answer and thought about it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.traces import AGENT_BLOCK, Record, records
from radixserve.simulation.trace import Line, Trace

NEVER = float("inf")
STAGGER = 10.0
"""Seconds between the starts of the sessions that are open at first."""


@dataclass(frozen=True, slots=True)
class Session:
    """One recording."""

    common: int
    """Blocks at the front that all sessions share."""
    calls: list[Record]
    """Each with ``ids``, the blocks of its prompt, local to the session."""


@dataclass(slots=True)
class Traffic:
    """A trace, and what clients know beside it."""

    trace: Trace
    sessions: list[int] = field(default_factory=list)
    """Whose each request is."""
    returns: list[float] = field(default_factory=list)
    """For each request, when its session asks again, in seconds; infinite at a session's end."""
    tools: list[bool] = field(default_factory=list)
    """Whether it is tools that run until then, not a person who thinks."""


def sessions(data: Path, half: int) -> list[Session]:
    """Every other recorded session, those of even places (``half`` 0) or of odd ones."""
    found = []
    for session in itertools.islice(
        records(data / "agents/coding_sessions.jsonl.gz"), half, None, 2
    ):
        ids: list[int] = []
        calls = []
        for call in session["requests"]:
            if "in" in call:
                ids = ids[: call["keep"]] + call["add"]
                calls.append(call | {"ids": ids[: -(-call["in"] // AGENT_BLOCK)]})
        if calls:
            common = (session["tool_tokens"] + session["system_tokens"]) // AGENT_BLOCK
            found.append(Session(common, calls))
    return found


def traffic(recorded: list[Session], *, opened: int, requests: int, seed: int = 0) -> Traffic:
    """The first ``requests`` of ``opened`` sessions at a time, in a seeded order. When all have
    been played they begin anew, as others. An answer takes the time that was recorded."""
    rng = random.Random(seed)
    made = Traffic(Trace(block_size=AGENT_BLOCK))
    order = _forever(len(recorded), rng)
    waiting = [(slot * STAGGER + rng.random(), slot, next(order), 0) for slot in range(opened)]
    heapq.heapify(waiting)
    while len(made.trace.calls) < requests:
        now, slot, serial, at = heapq.heappop(waiting)
        session = recorded[serial % len(recorded)]
        call = session.calls[at]
        own = (1 + serial) << 32
        ids = [
            place if place < session.common else own + each
            for place, each in enumerate(call["ids"])
        ]
        made.trace.add(
            Line(
                timestamp=1000 * now,
                input_length=call["in"],
                hash_ids=ids,
                block_size=AGENT_BLOCK,
            ),
            1,
        )
        made.sessions.append(serial)
        answered = now + (call.get("api_time") or 0.0)
        if at + 1 < len(session.calls):
            following = answered + (session.calls[at + 1].get("think_time") or 0.0)
            made.returns.append(following)
            heapq.heappush(waiting, (following, slot, serial, at + 1))
        else:
            made.returns.append(NEVER)
            heapq.heappush(waiting, (answered + rng.random(), slot, next(order), 0))
        made.tools.append(call.get("stop") == "tool_use")
    return made


def _forever(count: int, rng: random.Random) -> Iterator[int]:
    """Serial numbers: every session once in some order, then again under other numbers."""
    for copy in itertools.count():
        for place in rng.sample(range(count), count):
            yield copy * count + place
