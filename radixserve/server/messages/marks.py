"""``cache_control``, wherever it stands, as the marks of chat completions."""

from __future__ import annotations

from typing import Any

from radixserve.server.errors import ApiError
from radixserve.server.keeping import BREAKPOINT, seconds_of

TTL = "5m"


def marked(message: dict[str, Any], control: object, ignored: set[str]) -> dict[str, Any]:
    """``message``, or a part of it or a tool, with a mark on it if ``control`` is one.

    What is none has no effect: marks are advice, and nobody is refused over them.
    """
    if control is None:
        return message
    try:
        if not isinstance(control, dict) or control.get("type") != "ephemeral":
            raise ValueError
        ttl = control.get("ttl")
        if isinstance(ttl, bool):
            raise TypeError
        seconds = seconds_of(TTL if ttl is None else ttl, "cache_control")
    except (ValueError, TypeError, ApiError):
        ignored.add("cache_control")
        return message
    return {**message, BREAKPOINT: {"mode": "explicit", "ttl": seconds}}
