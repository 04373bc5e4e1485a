"""Why a prompt was computed: the trail of what was asked, as the server keeps and reads it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import thread_time, time
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.cache.ghosts import Eviction
from radixserve.cache.namespace import named
from radixserve.engine.frontend import Frontend, TextRequest
from radixserve.engine.messages import Looked
from radixserve.explain.beside import Beside
from radixserve.explain.bodies import Bodies
from radixserve.explain.divergence import Divergence
from radixserve.explain.pace import PrefillPace
from radixserve.explain.reason import FEW, Explanation, Found, Part, Reason, explain
from radixserve.explain.trail import Alike, Record, Trail, common_tokens
from radixserve.tokens import count

log = logging.getLogger(__name__)

NARROWING = {"salt": "cache_salt", "extra": "extra_key"}
"""Fields of a namespace that a client chooses, as it calls them."""


class Told(msgspec.Struct, kw_only=True):
    """An explanation as clients get it."""

    id: str
    object: str = "cache.explanation"
    created: float | UnsetType = UNSET
    """Unix time, in seconds."""
    cache_mode: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    time_saved_ms: float | None = None
    """An estimate; None as long as nothing was measured."""
    expected_ttft_ms: float | UnsetType | None = UNSET
    """Of a prompt that was only looked up."""
    reason: Reason | None
    """That of most tokens that might have been reused."""
    parts: list[Part]
    compared_with: str | None
    """The earlier request with the longest head in common."""
    common_tokens: int
    diverged: Divergence | None
    detail: str | None
    seconds_ago: float | None
    own_pressure: bool | None
    narrowed_by: list[str]
    """Fields of this request without which it would share more."""
    page_size: int
    """Tokens: whole blocks are reused in place, and a part of one is copied."""


class Comparison(msgspec.Struct, frozen=True):
    """A request beside one that its client named."""

    found: bool
    common: int = 0
    """Tokens."""
    reusable: int = 0
    """Tokens of the prompt of the other one."""
    place: Divergence | None = None


@contextmanager
def harmless() -> Iterator[None]:
    """What goes wrong in here is logged, and is no explanation: no answer fails for it."""
    try:
        yield
    except Exception:
        log.exception("cannot explain a prompt")


class Explainer:
    """Keeps what was asked, and says why a prompt was not in the cache. Belongs to one event loop.

    Args:
        tenants: says how many there may be.
    """

    def __init__(self, frontend: Frontend, tenants: Callable[[], int]):
        self._frontend = frontend
        self.trail = Trail(tenants)
        self.pace = PrefillPace()
        self.seconds = 0.0
        """Of a processor, spent on explaining on the event loop and on threads: not those that the
        model's threads had it meanwhile."""

    @contextmanager
    def measured(self) -> Iterator[None]:
        began = thread_time()
        try:
            yield
        finally:
            self.seconds += thread_time() - began

    def place(self, later: Record, earlier: Record, common: int) -> Divergence | None:
        """Where ``later`` parts from ``earlier``, with which it has ``common`` tokens in common;
        None where that cannot be known. O(bytes of both)."""
        with harmless():
            return self._beside(later).place(earlier, common)
        return None

    def _beside(self, record: Record) -> Beside:
        return Beside(record, self._frontend.tokenizer.decode)

    def like(
        self, record: Record, nearest: Sequence[Alike], cached: int
    ) -> tuple[Alike | None, bool]:
        """Whom of ``nearest`` to compare ``record`` with, and whether it is like that one: with the
        first, or, since few tokens in common are the template's, with one whose body looks alike
        behind these and that accounts for the ``cached`` tokens. O(bytes of all) for few tokens."""
        if not nearest:
            return None, False
        first = nearest[0]
        if first.common >= min(FEW, record.length / 2):
            return first, True
        # Of two that are both few the longer may be chance; what was reused is not.
        needed = min(cached, first.common)
        later = self._beside(record)
        for each in nearest:
            with harmless():
                if each.common >= needed and later.like(each.record, each.common):
                    return each, True
        return (first if first.common else None), False

    def compared(self, record: Record, id: str) -> Comparison:
        """``record`` beside the request of this id of the same tenant. O(bytes of both)."""
        other = self.trail.find(record.tenant, id)
        if other is None or other.namespace != record.namespace or other is record:
            return Comparison(False)
        common = min(common_tokens(other, record.prompt), record.length)
        parts = common < min(other.length, record.length)
        place = self.place(record, other, common) if parts else None
        return Comparison(True, common, other.length, place)

    def told(self, record: Record) -> Told | None:
        """All that is known of ``record``; None as long as that is nothing. O(bytes of its body and
        of that which it is compared with)."""
        explanation = record.explanation
        if explanation is None:
            return None
        with self.measured():
            return self._told(record, explanation, created=record.began)

    def lookup(self, request: TextRequest, looked: Looked) -> Callable[[bytes], Told]:
        """What would become of ``request``, which is only looked up: to be called with its body, on
        any thread. O(bytes of the bodies)."""
        record = self.record(request)
        cached = looked.reused + looked.copied
        found = self.found(record, request, cached, looked.missed)
        nearest = self.trail.nearest(record.tenant, record.namespace, record.tokens)
        wiped = self.trail.wiped(record.tenant, record.namespace, record.tokens)
        left = found.prompt - found.cached + (self._frontend.stats().pending_tokens or 0)

        def told(body: bytes) -> Told:
            with self.measured():
                record.body = Bodies().keep(body)
                alike, like = self.like(record, nearest, found.cached)
                explanation = explain(found, alike, wiped, like=like)
                return self._told(record, explanation, expected_ttft_ms=self.milliseconds(left))

        return told

    def milliseconds(self, tokens: int) -> float | None:
        """How long it takes to compute so many."""
        seconds = self.pace.seconds(tokens)
        return None if seconds is None else round(1000 * seconds, 3)

    def record(self, request: TextRequest, *, called: str = "") -> Record:
        """``request`` as it is kept, still without its body."""
        return Record(
            id=request.id,
            called=called,
            tenant=request.tenant,
            namespace=request.namespace,
            mode=request.cache,
            epoch=self._frontend.stats().restarts,
            began=time(),
            length=count(request.prompt),
            body={},
            tokens=request.prompt,
        )

    def found(
        self, record: Record, request: TextRequest, cached: int, missed: Eviction | None
    ) -> Found:
        """What the cache did, or would do, for ``request``."""
        return Found(
            prompt=record.length,
            cached=min(cached, max(0, record.length - 1)),
            page_size=self._frontend.card.page_size,
            bypass=self._bypass(request),
            epoch=record.epoch,
            began=record.began,
            evicted=missed,
        )

    def _bypass(self, request: TextRequest) -> str | None:
        if not self._frontend.card.prefix_cache:
            return "the server's prefix cache is off"
        if request.cache == "off":
            return "cache mode off"
        if request.sampling.pooling == "mean":
            return "pooling mean"
        return None if request.sampling.prompt_logprobs is None else "prompt_logprobs"

    def _told(self, record: Record, explanation: Explanation, **facts: Any) -> Told:
        earlier = None
        if explanation.alike is not None:
            earlier = self.trail.find(record.tenant, explanation.alike)
        place = None
        if earlier is not None and any(part.reason == "diverged" for part in explanation.parts):
            place = self.place(record, earlier, explanation.common_tokens)
        cached = explanation.cached_tokens
        return Told(
            id=record.id,
            cache_mode=record.mode,
            prompt_tokens=explanation.prompt_tokens,
            cached_tokens=cached,
            computed_tokens=explanation.prompt_tokens - cached,
            time_saved_ms=self.milliseconds(cached),
            reason=explanation.reason,
            parts=explanation.parts,
            compared_with=explanation.alike,
            common_tokens=explanation.common_tokens,
            diverged=place,
            detail=explanation.detail,
            seconds_ago=explanation.seconds_ago,
            own_pressure=explanation.own_pressure,
            narrowed_by=[NARROWING[each] for each in named(record.namespace) if each in NARROWING],
            page_size=self._frontend.card.page_size,
            **facts,
        )
