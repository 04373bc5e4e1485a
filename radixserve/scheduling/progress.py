"""What steps bring to requests, and what has been counted since the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from radixserve.scheduling.plan import Row, Sampled
from radixserve.scheduling.request import FinishReason, Request


class Progress(msgspec.Struct, gc=False):
    """What a step brought to one request."""

    request: Request
    sampled: Sampled | None = None
    finish: FinishReason | None = None
    error: str | None = None
    """Why it failed; None too where its grammar has refused ``sampled``."""
    scored: Sequence[Sampled] = ()
    """The next tokens of its prompt whose logprobs it asked for."""


def parted(
    request: Request, row: Row, tokens: Sequence[Sampled]
) -> tuple[Sequence[Sampled], Sequence[Sampled]]:
    """What a row that scores has sampled, and what it has scored.

    Where a score could not be had, nothing that the row sampled is worth more: the reason is all
    that is left. O(tokens scored).
    """
    request.scored = row.scores.stop
    at = len(tokens) - len(row.scores)
    spoilt = [each for each in tokens[at:] if each.error is not None]
    return (spoilt[:1], ()) if spoilt else (tokens[:at], tokens[at:])


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)
