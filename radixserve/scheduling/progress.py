"""What steps bring to requests, and what has been counted since the start."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.request import FinishReason, Request


class Progress(msgspec.Struct, gc=False):
    """What a step brought to one request."""

    request: Request
    sampled: Sampled | None = None
    finish: FinishReason | None = None
    error: str | None = None
    """Why it failed; None too where its grammar has refused ``sampled``."""


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)
