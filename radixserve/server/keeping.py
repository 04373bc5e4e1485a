"""What a request says of how long its prefixes are to be kept, and what became of that.

A place is marked on a message, on a part of its content or on a tool, in OpenAI's words; those of
Anthropic's API are put into these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from starlette.datastructures import Headers

from radixserve.cache.terms import LONGEST, Keeping, Kept, Mark
from radixserve.engine.messages import CacheMode
from radixserve.server.errors import invalid, wrong
from radixserve.server.fields import is_yes
from radixserve.server.wire import ChatRequest, CommonFields
from radixserve.text.marked import Spot
from radixserve.tokens import count

HEADER = "x-radixserve-keep"
BREAKPOINT = "prompt_cache_breakpoint"
FOREIGN = "cache_control"
"""Anthropic's mark, which some clients send in OpenAI's APIs too. A template that writes tools as
they were sent would put it into the prompt, another one each time that it moves."""
MOST = 4
"""Places that a request may mark; of more the last ones count."""
DEFAULT_TTL = "30m"
RETENTION = {"in_memory": None, "in-memory": None, "24h": LONGEST}
LONGEST_SESSION = 256
"""Bytes of UTF-8."""
SESSION_HEADERS = (
    "x-session-id",
    "session-id",
    "x-claude-code-session-id",
    "x-dynamo-session-id",
)
AGENT_HEADER = "x-claude-code-agent-id"
"""Agents of one session each have a conversation of their own."""
FINAL_HEADER = "x-dynamo-session-final"

DURATION = re.compile(r"([0-9]{1,9})([smh])")
SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Marked:
    """The places that a request marks, in the order in which they are rendered, each with the
    seconds for which it is kept; and what it says besides."""

    spots: list[tuple[Spot, int]]
    keeping: Keeping
    """With what needs no place in the prompt."""
    ignored: list[str]

    def at(self, places: Sequence[int]) -> Keeping | None:
        """What the engine is asked, where the spots end after so many tokens of the prompt each;
        None if nothing."""
        marks = [
            Mark(tokens, seconds)
            for tokens, (_, seconds) in zip(places, self.spots, strict=True)
            if tokens
        ]
        return replace(self.keeping, marks=(*marks, *self.keeping.marks)) or None


def seconds_of(value: str | float, param: str, *, least: int = 1) -> int:
    """A time in whole seconds, rounded up: a number of them, or ``30m``, ``12h``, ``90s``.

    Raises:
        ApiError: 400, it is none, or not from ``least`` seconds to a day.
    """
    seconds: float = -1.0
    if isinstance(value, str):
        found = DURATION.fullmatch(value)
        if found is not None:
            seconds = int(found[1]) * SECONDS[found[2]]
    else:
        seconds = value
    if not least <= seconds <= LONGEST:
        raise wrong(
            param,
            f"must be a time from {least}s to 24h, as a number of seconds or as 90s, 30m or 12h",
        )
    return -int(-seconds // 1)


def read_marks(fields: ChatRequest, headers: Headers) -> Marked:
    """What ``fields`` and ``headers`` say; the marks are taken out of messages and tools.

    Raises:
        ApiError: 400, a time cannot be, or a session's name.
    """
    usual, implicit = usual_times(fields)
    places, foreign = taken_out(fields.messages, fields.tools)
    spots = [
        (spot, usual if ttl is None else seconds_of(ttl, f"{path}.ttl"))
        for spot, path, ttl in places
    ]
    keeping, ignored = said_besides(fields, headers)
    ignored += foreign
    most = MOST if implicit is None else MOST - 1
    if len(spots) > most:
        spots = spots[len(spots) - most :]
        ignored.append(BREAKPOINT)
    if implicit is not None and fields.messages:
        spots.append((Spot(message=len(fields.messages) - 1), implicit))
    return Marked(spots, keeping, ignored)


def usual_times(fields: CommonFields) -> tuple[int, int | None]:
    """Seconds for which marks are kept that say nothing of it, and those for which the end of what
    the client has sent is, if it is marked without a word.

    Raises:
        ApiError: 400, a time cannot be.
    """
    options, retention = fields.prompt_cache_options, fields.prompt_cache_retention
    if options is not None:
        ttl = DEFAULT_TTL if options.ttl is None else options.ttl
        usual = seconds_of(ttl, "prompt_cache_options.ttl")
        return usual, None if options.mode == "explicit" else usual
    if retention and retention not in RETENTION:
        raise wrong("prompt_cache_retention", "must be in_memory or 24h")
    return seconds_of(DEFAULT_TTL, "ttl"), RETENTION.get(retention or "")


def said_besides(fields: CommonFields, headers: Headers) -> tuple[Keeping, list[str]]:
    """What is said of a request as a whole, and of the session that it belongs to.

    Raises:
        ApiError: 400, a time cannot be, or a session's name; or a header says neither yes nor no.
    """
    last = bool(fields.session_end) or is_yes(headers, FINAL_HEADER)
    session, ignored = _session(fields, headers)
    if last and not session:
        raise wrong("session_end", "needs session_id, or a header that names it")
    marks: tuple[Mark, ...] = ()
    if fields.keep_for is not None:
        marks = (Mark(None, seconds_of(fields.keep_for, "keep_for")),)
    next_in = fields.next_request_in
    if next_in is not None:
        next_in = seconds_of(next_in, "next_request_in", least=0)
    return Keeping(marks, session, last, next_in), ignored


def _session(fields: CommonFields, headers: Headers) -> tuple[str, list[str]]:
    """The session's name, empty if it has none; and the header that cannot name one."""
    for param in ("session_id", "prompt_cache_key"):
        if name := getattr(fields, param):
            check_session(name, param)
            return name, []
        for header in SESSION_HEADERS if param == "session_id" else ():
            if name := headers.get(header):
                agent = headers.get(AGENT_HEADER)
                name = name if agent is None else f"{name}/{agent}"
                fits = len(name.encode()) <= LONGEST_SESSION
                return (name, []) if fits else ("", [header])
    return "", []


def with_end(keeping: Keeping | None, fields: CommonFields, prompt: bytes) -> Keeping | None:
    """``keeping``, and the end of ``prompt`` if that is marked without a word.

    Raises:
        ApiError: 400, a time cannot be.
    """
    _, implicit = usual_times(fields)
    if implicit is None:
        return keeping
    keeping = keeping or Keeping()
    return replace(keeping, marks=(Mark(count(prompt), implicit), *keeping.marks))


def check_leaves(mode: CacheMode, *, prefix_cache: bool) -> None:
    """Raises ApiError: 400, nothing of what is computed to be found later would stay cached."""
    if mode != "on":
        message = "A prewarming with cache.mode off, read-only or no-store would keep nothing"
        raise invalid("cache.mode", f"{message}: leave it out")
    if not prefix_cache:
        message = "A prewarming would keep nothing: this server was started with --no-prefix-cache"
        raise invalid(None, message, "unsupported_feature")


def check_session(name: str, param: str) -> None:
    """Raises ApiError: 400, no session can have this name."""
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= LONGEST_SESSION:
        raise wrong(param, f"must have 1 to {LONGEST_SESSION} bytes")


def keep_header(kept: Kept | None) -> dict[str, str]:
    """The header that says what became of what was to be kept; none where nothing was."""
    return {} if kept is None else {HEADER: f"{kept.status}; tokens={kept.tokens}"}


def taken_out(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
) -> tuple[list[tuple[Spot, str, str | float | None]], list[str]]:
    """The marked places with their paths and times, in order, and the names of marks that have no
    effect; afterwards nothing is marked.

    Raises:
        ApiError: 400, a mark is none.
    """
    found: list[tuple[Spot, str, str | float | None]] = []
    foreign: set[str] = set()

    def take(marked: dict[str, Any], spot: Spot, path: str) -> None:
        if marked.pop(FOREIGN, None) is not None:
            names = (name for name in path.split(".") if not name.isdigit())
            foreign.add(".".join((*names, FOREIGN)))
        mark = marked.pop(BREAKPOINT, None)
        if mark is not None:
            found.append((spot, f"{path}.{BREAKPOINT}", _ttl(mark, f"{path}.{BREAKPOINT}")))

    for index, tool in enumerate(tools or ()):
        take(tool, Spot(tool=index), f"tools.{index}")
    for index, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                take(part, Spot(message=index, part=place), f"messages.{index}.content.{place}")
        take(message, Spot(message=index), f"messages.{index}")
    return found, sorted(foreign)


def _ttl(mark: object, path: str) -> str | float | None:
    """How long a mark says that its place is kept, if it does.

    Raises:
        ApiError: 400, it is no mark.
    """
    if not isinstance(mark, Mapping):
        raise wrong(path, "must be an object", "invalid_type")
    if mark.get("mode") != "explicit":
        raise wrong(f"{path}.mode", "must be explicit: nothing else marks a place")
    ttl = mark.get("ttl")
    if isinstance(ttl, bool) or not isinstance(ttl, str | int | float | None):
        raise wrong(f"{path}.ttl", "must be a string", "invalid_type")
    return ttl
