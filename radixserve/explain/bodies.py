"""Bodies of requests, of which those of one conversation share most: each message is kept once."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.explain.walk import SECTIONS

LARGEST = 8 * 2**20
"""Bytes of the largest body that is kept."""
ENTRY = 120
"""Bytes that each part costs beside its own."""
SETTINGS = (
    *("chat_template_kwargs", "reasoning_effort", "thinking", "output_config", "tool_choice"),
    *("add_generation_prompt", "continue_final_message", "text", "reasoning", "model"),
)
"""Fields that say how a prompt is rendered."""
NAMES = frozenset((*SECTIONS, *SETTINGS))

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])

Kept = dict[str, bytes | tuple[bytes, ...]]
"""The fields of a body as JSON, those that are lists by their entries."""


class Bodies:
    """A table in which equal parts of bodies are the same object."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: dict[bytes, tuple[bytes, int]] = {}
        """Each part with the bodies that have it."""
        self.size = 0
        """Bytes of all parts."""

    def keep(self, body: bytes) -> Kept:
        """The parts of ``body`` that a prompt is made of; none of one that is too large, or no
        object. O(bytes)."""
        if len(body) > LARGEST:
            return {}
        try:
            fields = {
                name: _parts(bytes(raw))
                for name, raw in _FIELDS.decode(body).items()
                if name in NAMES
            }
        except (msgspec.DecodeError, RecursionError):
            return {}
        return {
            name: self._add(parts) if isinstance(parts, bytes) else tuple(map(self._add, parts))
            for name, parts in fields.items()
        }

    def drop(self, kept: Kept) -> None:
        """Nobody needs ``kept`` any more. O(parts)."""
        for value in kept.values():
            for part in (value,) if isinstance(value, bytes) else value:
                own, bodies = self._parts[part]
                if bodies > 1:
                    self._parts[part] = own, bodies - 1
                else:
                    del self._parts[part]
                    self.size -= len(part) + ENTRY

    def _add(self, part: bytes) -> bytes:
        own, bodies = self._parts.get(part, (part, 0))
        self._parts[own] = own, bodies + 1
        if not bodies:
            self.size += len(part) + ENTRY
        return own


def _parts(value: bytes) -> bytes | list[bytes]:
    return list(map(bytes, _LIST.decode(value))) if value.startswith(b"[") else value


def size(kept: Kept) -> int:
    """Bytes of a body. O(parts)."""
    return sum(
        len(value) if isinstance(value, bytes) else sum(map(len, value)) for value in kept.values()
    )


def decoded(kept: Kept) -> dict[str, Any]:
    """The body again; nothing of one that cannot be read: a field that no endpoint has may hold
    whatever begins and ends as JSON does, such as a number beyond all bounds. O(bytes)."""
    try:
        return {
            name: msgspec.json.decode(value)
            if isinstance(value, bytes)
            else [msgspec.json.decode(part) for part in value]
            for name, value in kept.items()
        }
    except (msgspec.DecodeError, RecursionError):
        return {}
