"""The requests of logs against a cache without a limit, and against caches of several sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import xxhash

from radixserve.explain.divergence import Divergence
from radixserve.lint.advice import advice
from radixserve.lint.logs import Request
from radixserve.lint.parts import Part
from radixserve.lint.recent import Kept, Recent
from radixserve.lint.report import Head, HitRates, LogReport, Shared, Spot
from radixserve.lint.rewrite import suggestion
from radixserve.lint.spots import Varying, varying
from radixserve.lint.tokens import Tokens
from radixserve.simulation.replay import Plan, least_recently_used, optimum, replay
from radixserve.simulation.trace import Call, Trace

SIZES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of caches, as shares of all distinct tokens."""
MOST_TOKENS = 2**25
"""Distinct ones that are kept, in eight bytes each."""
MOST_REQUESTS = 2**20
OPENING = 8
"""Tokens at the end of a prompt that open the answer, and may become others in the next one."""
MOST_SPOTS = 1024
MOST_HEADS = 256
SHOWN_HEADS = 20
SYSTEM = ("system", "developer")
BARE = ("prompt", "input")
DEEP = re.compile(r"(?<=/)[1-9]\d*")

Progress = Callable[[int], object]


class FullError(Exception):
    """What is kept of a log may not grow any further."""


@dataclass(slots=True)
class _Group:
    """A spot on the way."""

    example: Divergence
    places: tuple[str, str]
    ids_only: bool
    requests: int = 0
    tokens: float = 0.0
    most: float = 0.0
    """That it cost between two requests: those of the example."""


@dataclass(slots=True)
class Analysis:
    """What the requests that were added come to. Memory grows with distinct tokens, up to a bound,
    and with what was said last, up to another."""

    tokens: Tokens
    page_size: int
    _trace: Trace = field(default_factory=lambda: Trace(block_size=1))
    _recent: Recent = field(default_factory=Recent)
    _groups: dict[tuple[str, str, bool], _Group] = field(default_factory=dict)
    _heads: dict[str, Head] = field(default_factory=dict)
    _last_head: list[Part] = field(default_factory=list)
    _worst: float = 0.0
    _pair: tuple[Kept, Request] | None = None
    """The two requests between which one spot cost most."""
    _total: int = 0
    _shared: int = 0
    _pages: int = 0
    _distinct: int = 0

    @property
    def requests(self) -> int:
        return len(self._trace.calls)

    def add(self, request: Request) -> None:
        """One more request, later than all before it. O(size).

        Raises:
            ValueError: it has no prompt; the message says why.
            FullError: no more can be kept; it was not counted.
        """
        ids = self.tokens.of(request)
        if not ids:
            raise ValueError("no request: its prompt is empty")
        if self._distinct + len(ids) > MOST_TOKENS or self.requests >= MOST_REQUESTS:
            raise FullError
        there = self._trace.paths.reach(request.tenant, ids)
        reused = min(there, len(ids) - 1)
        end = self._trace.paths.add(request.tenant, ids)
        self._trace.calls.append(Call(float(self.requests), len(ids), end))
        self._total += len(ids)
        self._distinct += len(ids) - there
        self._shared += reused
        self._pages += reused - reused % self.page_size
        self._compare(request, len(ids), reused)
        self._note_head(request, len(ids))
        self._recent.add(request, len(ids))

    def _compare(self, request: Request, tokens: int, reused: int) -> None:
        nearest = self._recent.nearest(request)
        if nearest is None or reused >= nearest.tokens - OPENING:
            return
        found = varying(nearest.parts(), request.parts)
        again = sum(each.again for each in found)
        if not again:
            return
        rate = tokens / sum(len(part.text) for part in request.parts)
        fresh = sum(each.fresh for each in found)
        # A template may leave out what differs, and another request may have had more in common.
        left = max(0.0, min(again * rate, tokens - reused - fresh * rate))
        seen: set[tuple[str, str, bool]] = set()
        for each in found:
            cost = left * each.again / again
            if cost >= 1:
                seen.add(self._count(each, cost, nearest, request))
        for key in seen & self._groups.keys():
            self._groups[key].requests += 1

    def _count(
        self, found: Varying, cost: float, earlier: Kept, later: Request
    ) -> tuple[str, str, bool]:
        """Add to the group of this place; returns its key."""
        place = DEEP.sub("*", found.divergence.pointer)
        key = (found.divergence.guess, place, found.ids_only)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MOST_SPOTS:
                return key
            places = earlier.place, later.place
            group = self._groups[key] = _Group(found.divergence, places, found.ids_only)
        group.tokens += cost
        if cost > group.most:
            group.most = cost
            group.example, group.places = found.divergence, (earlier.place, later.place)
        if cost > self._worst:
            self._worst, self._pair = cost, (earlier, later)
        return key

    def _note_head(self, request: Request, tokens: int) -> None:
        """Tools and system prompt: what all requests of an application should have in common."""
        head = _head(request.parts)
        model = str(request.body.get("model", ""))
        name = xxhash.xxh3_64_hexdigest(repr((model, [part.key for part in head])).encode())
        if name in self._heads:
            self._heads[name].requests += 1
            return
        if len(self._heads) >= MOST_HEADS:
            return
        size = sum(len(part.text) for part in request.parts)
        share = sum(len(part.text) for part in head) / max(size, 1)
        before = self._last_head
        parted = next(iter(varying(before, head)), None) if before and head else None
        self._heads[name] = Head(
            hash=name,
            model=model[:200],
            tokens=round(tokens * share),
            requests=1,
            first=request.place,
            parts_from_last=parted.divergence if parted else None,
        )
        self._last_head = head

    def report(self, prefill_rate: float, progress: Progress = lambda _: None) -> LogReport:
        """All that was found. O(requests · their paths).

        Args:
            prefill_rate: Tokens a second that the model computes of a prompt.
            progress: Called with 1 whenever a cache was replayed.
        """
        groups = sorted(self._groups.items(), key=lambda item: -item[1].tokens)
        pair = self._pair
        heads = sorted(self._heads.values(), key=lambda head: -head.requests)
        return LogReport(
            requests=self.requests,
            tokens=self._total,
            counted=self.tokens.told,
            prefill_rate=prefill_rate,
            shared=Shared(
                tokens=self._shared,
                share=self._shared / max(self._total, 1),
                page_size=self.page_size,
                whole_pages=self._pages,
                at_boundaries=self._shared - self._pages,
            ),
            spots=[_spot(key, group, prefill_rate) for key, group in groups],
            hit_rates=self._hit_rates(progress),
            beginnings=len(heads),
            heads=heads[:SHOWN_HEADS],
            suggestion=suggestion(pair[0].parts(), pair[1].parts) if pair else None,
        )

    def _hit_rates(self, progress: Progress) -> HitRates:
        plan = Plan.of(self._trace)
        sizes = sorted({max(1, round(share * self._distinct)) for share in SIZES})
        policies = (least_recently_used(plan), optimum(plan))
        curves: list[list[float]] = [[], []]
        for size in sizes:
            for curve, ranks in zip(curves, policies, strict=True):
                curve.append(replay(plan, ranks, size))
                progress(1)
        return HitRates(tokens=sizes, least_recently_used=curves[0], optimum=curves[1])


def _head(parts: Sequence[Part]) -> list[Part]:
    found = []
    for part in parts:
        if part.section in BARE or (part.index is not None and part.role not in SYSTEM):
            break
        found.append(part)
    return found


def _spot(key: tuple[str, str, bool], group: _Group, prefill_rate: float) -> Spot:
    guess, place, ids_only = key
    tokens = round(group.tokens)
    return Spot(
        guess=guess,
        pointer=place,
        role=group.example.role,
        ids_only=ids_only,
        requests=group.requests,
        tokens=tokens,
        milliseconds=round(1000 * tokens / prefill_rate, 1),
        advice=advice(guess, ids_only=ids_only),
        example=group.example,
        earlier=group.places[0],
        later=group.places[1],
    )
