"""``truncation: auto``: a conversation that grew too long goes on without its oldest turns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from radixserve.errors import ContextLengthError

MESSAGE = re.compile(r"messages\.(?P<place>\d+)(?P<rest>.*)")
STEPS = 4
"""Parts of the context that go at once. So the next turns begin where this one does, and their
prefix is cached, until the next part has to go."""


def shorter(
    messages: list[dict[str, Any]], error: ContextLengthError
) -> Iterator[tuple[range, list[dict[str, Any]]]]:
    """Which of the oldest messages go, more and more of them, and ``messages`` without them.

    What the system says at the beginning stays, and so does the last turn. Each turn begins with
    its user, so that no output is left without its call. O(messages), and again for each that is
    taken; there are few, since what goes doubles.
    """
    head = 1 if messages and messages[0]["role"] == "system" else 0
    sizes = [len(msgspec.json.encode(message)) for message in messages]
    per_token = max(1, round(sum(sizes) / max(1, error.prompt_tokens)))
    part = max(1, error.limit // STEPS) * per_token
    over = error.prompt_tokens - error.limit + 1
    steps = math.ceil(over * per_token / part)
    users = [place for place in range(head + 1, len(messages)) if messages[place]["role"] == "user"]
    last = head
    while users and last != users[-1]:
        gone, at = 0, users[-1]
        for place in range(head, users[-1]):
            if gone >= steps * part and messages[place]["role"] == "user" and place > last:
                at = place
                break
            gone += sizes[place]
        last = at
        yield range(head, at), messages[:head] + messages[at:]
        steps *= 2


def moved(paths: dict[str, str], gone: range) -> dict[str, str]:
    """What the client calls the parts of messages, once the messages at ``gone`` have gone."""
    kept = {}
    for path, name in paths.items():
        found = MESSAGE.fullmatch(path)
        place = int(found["place"]) if found else -1
        if found and place >= gone.stop:
            path = f"messages.{place - len(gone)}{found['rest']}"
        if place not in gone:
            kept[path] = name
    return kept
