"""Why tokens of a prompt were computed although they might have been in the cache."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import msgspec

from radixserve.cache.ghosts import Eviction

if TYPE_CHECKING:
    from radixserve.explain.trail import Alike, Wiped

Reason = Literal[
    "cold",
    "diverged",
    "extended",
    "evicted",
    "never_cached",
    "purged",
    "reset",
    "restarted",
    "bypass",
    "below_granularity",
]
"""``cold``: nothing alike was asked, but for what a template makes of every request. ``diverged``:
from here on something else than before. ``extended``: what is new behind all that was asked before,
and no miss. ``evicted``: it made room. ``never_cached``: it was asked, and not left in the cache.
``purged``, ``reset``, ``restarted``: the cache was forgotten. ``bypass``: this request does not
take what is cached. ``below_granularity``: a part of a block, which could not be copied."""

FEW = 32
"""Common tokens that are few: a template alone makes as many."""


class Part(msgspec.Struct, frozen=True):
    """Tokens of a prompt that were computed for one reason."""

    reason: Reason
    start: int
    tokens: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tokens of a prompt came from, and why not all came from the cache."""

    prompt_tokens: int
    cached_tokens: int
    parts: list[Part]
    """The computed ones, in their order; the last token alone is always computed, and no part."""
    alike: str | None = None
    """The request that had the longest head in common."""
    common_tokens: int = 0
    """Of that one."""
    detail: str | None = None
    """Of ``bypass`` and ``never_cached``: what did it."""
    seconds_ago: float | None = None
    """Of ``evicted``, ``purged`` and ``reset``: when, if that is known."""
    own_pressure: bool | None = None
    """Of ``evicted``: whether the tenant's own requests needed the room."""

    @property
    def reason(self) -> Reason | None:
        """That of most tokens that might have been reused; None if there are none."""
        missed = [part for part in self.parts if part.reason != "extended"]
        return max(missed, key=attrgetter("tokens")).reason if missed else None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache did for a request."""

    prompt: int
    cached: int
    page_size: int
    bypass: str | None = None
    """Why it takes nothing from the cache, or not all."""
    epoch: int = 0
    evicted: Eviction | None = None
    """The first block that it did not find, if that was there once."""
    began: float = 0.0
    """Unix time, in seconds."""


def explain(
    found: Found, alike: Alike | None, wiped: tuple[Wiped, float] | None, *, like: bool = True
) -> Explanation:
    """Why so much of a prompt was computed. O(1).

    Args:
        alike: The request before it with the longest head in common; None if none begins like it.
        wiped: Why and when a prompt that begins like this one was forgotten.
        like: Whether that head is more than what a template makes of every request.
    """
    told = Explanation(
        prompt_tokens=found.prompt,
        cached_tokens=found.cached,
        parts=[],
        alike=None if alike is None else alike.record.id,
        common_tokens=0 if alike is None else min(alike.common, found.prompt),
    )
    last = found.prompt - 1
    if found.cached >= last:
        return told
    if found.bypass is not None:
        return _with(told, "bypass", found.cached, found.prompt, detail=found.bypass)
    if alike is None or not like:
        if wiped is None:
            return _with(told, "cold", found.cached, found.prompt)
        why, when = wiped
        ago = max(0.0, found.began - when)
        return _with(told, why, found.cached, found.prompt, seconds_ago=ago)
    reach = min(alike.common, last)
    if reach > found.cached:
        told = _lost(told, found, alike, reach)
    start = max(reach, found.cached)
    if start < last:
        record = alike.record
        whole = alike.common >= record.length + len(record.answer) // 4
        told = _with(told, "extended" if whole else "diverged", start, found.prompt)
    return told


def _lost(told: Explanation, found: Found, alike: Alike, reach: int) -> Explanation:
    """Tokens up to ``reach`` were asked before, and are not there."""
    record, start, evicted = alike.record, found.cached, found.evicted
    if record.epoch != found.epoch:
        return _with(told, "restarted", start, reach)
    if evicted is None:
        if alike.state == "running":
            return _with(told, "never_cached", start, reach, detail="still running")
        if record.mode != "on":
            return _with(told, "never_cached", start, reach, detail=f"cache mode {record.mode}")
        if alike.state != "done":
            return _with(told, "never_cached", start, reach, detail=alike.state)
        if reach - start < found.page_size:
            return _with(told, "below_granularity", start, reach)
        return _with(told, "evicted", start, reach)
    return _with(
        told, "evicted", start, reach, seconds_ago=evicted.seconds, own_pressure=evicted.own
    )


def _with(told: Explanation, reason: Reason, start: int, end: int, **facts: object) -> Explanation:
    parts = [*told.parts, Part(reason, start, end - start)]
    return msgspec.structs.replace(told, parts=parts, **facts)
