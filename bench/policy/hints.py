"""What clients can say of when they come back, and a rule that believes them.

With each request a client says after how long the next one of its session is expected, counted
from when this one was sent, or that it was the last. It knows that only roughly: what it says is
the true time multiplied by e to the power of a standard normal variable, so that in one case of
three it is off by more than 2.7 times.
"""

from __future__ import annotations

import math
import random

from bench.closed_loop import NEVER, Traffic
from radixserve.cache.terms import LONGEST, Keeping
from radixserve.simulation.replay import OVER, Plan, Ranks

ERROR = 1.0
"""Standard deviation of the logarithm of what is said over what is true."""
SLACK = 30.0
"""Seconds beyond the expected time after which a session that has not come back is given up."""
GUESS = 120.0
"""Seconds that people are thought to take where only the time of tools is said."""


def expected(traffic: Traffic, *, people: bool, seed: int = 0) -> list[float]:
    """For each request, when its client says that the next one comes, in seconds of the trace;
    infinite after the last. Without ``people`` clients say it only when tools run until then."""
    rng = random.Random(seed)
    said = []
    for call, returns, tools in zip(
        traffic.trace.calls, traffic.returns, traffic.tools, strict=True
    ):
        factor = math.exp(rng.gauss(0.0, ERROR))
        known = people or tools or returns == NEVER
        said.append(call.time + ((returns - call.time) * factor if known else GUESS))
    return said


def keepings(traffic: Traffic, said: list[float], *, people: bool, every: int = 1) -> list[Keeping]:
    """What clients say to the cache that serves: the session, when the next request of it comes,
    and its last one. Of the sessions only ``every`` so many-th says anything."""
    found = []
    for place, session in enumerate(traffic.sessions):
        last = traffic.returns[place] == NEVER
        seconds = None
        if not last and (people or traffic.tools[place]):
            seconds = min(LONGEST, int(said[place] - traffic.trace.calls[place].time))
        speaks = session % every == 0
        found.append(Keeping((), str(session), last, seconds) if speaks else Keeping())
    return found


def shared(plan: Plan, sessions: list[int]) -> list[list[bool]]:
    """For each request, which nodes of its path several sessions have used so far. O(paths)."""
    first: list[int | None] = [None] * len(plan.sizes)
    several = [False] * len(plan.sizes)
    found = []
    for session, nodes in zip(sessions, plan.paths, strict=True):
        for node in nodes:
            if first[node] is None:
                first[node] = session
            several[node] |= first[node] != session
        found.append([several[node] for node in nodes])
    return found


def by_end(plan: Plan, traffic: Traffic) -> Ranks:
    """Age, but what only one session used goes first when that session has ended."""
    common = shared(plan, traffic.sessions)

    def ranks(place: int) -> list[float]:
        rank = OVER if traffic.returns[place] == NEVER else float(place)
        return [float(place) if many else rank for many in common[place]]

    return ranks


def by_expectation(plan: Plan, traffic: Traffic, said: list[float]) -> tuple[Ranks, Ranks]:
    """Ranks and ends for ``replay``: what is expected last goes first, and what is overdue before
    it. What several sessions use is expected at once, for ever."""
    common = shared(plan, traffic.sessions)

    def ranks(place: int) -> list[float]:
        return [-plan.times[place] if many else -said[place] for many in common[place]]

    def ends(place: int) -> list[float]:
        return [NEVER if many else said[place] + SLACK for many in common[place]]

    return ranks, ends
