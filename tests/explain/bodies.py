"""Bodies of requests that are compared."""

from __future__ import annotations

from typing import Any


def turn(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}
