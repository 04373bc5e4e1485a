"""Where in a rendered prompt a place of its messages or tools is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any, NamedTuple

from radixserve.common import common_length
from radixserve.errors import InvalidRequestError

NOTHING = {"type": "object", "properties": {}}


class Spot(NamedTuple):
    """The end of a message, of a part of its content, or of a tool."""

    message: int | None = None
    part: int | None = None
    tool: int | None = None


def moved(spot: Spot, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> Spot:
    """``spot``, on one of the tools ``before``, once these stand in the order of ``after``: behind
    all those that it was behind. O(tools)."""
    if spot.tool is None:
        return spot
    names = {tool["function"]["name"] for tool in before[: spot.tool + 1]}
    places = [place for place, tool in enumerate(after) if tool["function"]["name"] in names]
    return spot._replace(tool=max(places, default=spot.tool))


Render = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]
"""Messages and tools to a prompt's text."""


def marked_ends(
    render: Render,
    text: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    spots: Sequence[Spot],
) -> list[int]:
    """Characters of ``text``, the rendering of all this, up to each spot.

    The chat is rendered once more with something put in at the spot: up to there both are alike.
    Whatever the template does with the rest, it is no more than what is surely before the spot; 0
    where the template refuses. O(renderings + len(text) · log), for each spot.
    """
    found = []
    for spot in spots:
        stranger = f"radixserve-{token_hex(8)}"
        try:
            other = render(*_changed(messages, tools, spot, stranger))
        except InvalidRequestError:
            found.append(0)
            continue
        at = other.find(stranger)
        found.append(common_length(text, other if at < 0 else other[:at]))
    return found


def _changed(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    spot: Spot,
    stranger: str,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools with ``stranger`` right behind ``spot``."""
    if spot.message is None:
        assert spot.tool is not None, "a spot is on a message or on a tool"
        function = {"name": stranger, "description": "", "parameters": NOTHING}
        more = {"type": "function", "function": function}
        return messages, [*tools[: spot.tool + 1], more, *tools[spot.tool + 1 :]]
    message = messages[spot.message]
    content = message.get("content")
    if spot.part is None and (message.get("tool_calls") or not content):
        # Nothing can be written behind a call: the chat ends with it instead.
        return messages[: spot.message + 1], tools
    if isinstance(content, list):
        place = len(content) - 1 if spot.part is None else spot.part
        part = content[place]
        said = part.get("text", "") if isinstance(part, dict) else part
        behind = {"type": "text", "text": f"{said}{stranger}"}
        content = [*content[:place], behind, *content[place + 1 :]]
    else:
        content = f"{content}{stranger}"
    changed = {**message, "content": content}
    return [*messages[: spot.message], changed, *messages[spot.message + 1 :]], tools
