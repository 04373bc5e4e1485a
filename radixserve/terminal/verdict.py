"""Whether first-token times and reported reuse say that a server's prefix cache works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

Kind = Literal["short", "cold", "warm", "control"]
"""A few tokens; a prompt never sent before; its beginning again with another end; the same but
for its beginning."""
Word = Literal["works_reported", "works_unreported", "reported_not_faster", "off", "noisy"]

FASTER = 1.3
"""Times faster that a warm prompt must be to count as faster."""
CLEAR = 0.8
"""Share of the pairs of a warm and another prompt in which the warm one must be the faster."""
NOISE = 0.25
"""Median deviation, relative to the median, beyond which nothing can be excluded."""
VISIBLE = 0.25
"""Share of the cold first-token time that the prompt must account for."""
REPORTED = 0.25
"""Share of a warm prompt that must be reported as reused, beyond what a cold one is."""

SENTENCES: dict[Word, str] = {
    "works_reported": "The prefix cache works and is reported.",
    "works_unreported": "The prefix cache works but is not reported.",
    "reported_not_faster": "Reuse is reported, but a repeated prompt is not faster.",
    "off": "The prefix cache does not work, or is off.",
    "noisy": "Too noisy to say.",
}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that was sent."""

    kind: Kind
    first: float
    """Seconds to the first token."""
    prompt: int | None = None
    """Its tokens, as the server counts them; None if it does not say."""
    cached: int | None = None
    """Those of them that were reused; None if it does not say."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples say."""

    verdict: Word
    speedup: float
    """Median first-token time of the cold or of the control prompts, whichever is less, over
    that of the warm ones."""
    reported: bool
    """Whether more reuse is reported for warm prompts than for others."""
    block: int | None
    """Tokens of a block, where reuse is reported in whole blocks (or a multiple of it, with bad
    luck); 1 is to the token; None cannot be told."""
    notes: list[str]
    """What else was seen, and what to do about it."""

    @property
    def sentence(self) -> str:
        return SENTENCES[self.verdict]


def judge(samples: Sequence[Sample]) -> Verdict:
    """The verdict over ``samples``, which hold at least one of each kind.

    A warm prompt counts as faster if it beats both the cold prompts (never seen) and the control
    prompts (the same text behind another beginning, which no prefix cache can reuse) by the
    median, and most of them one by one.
    """
    short, cold, warm, control = (
        [sample.first for sample in samples if sample.kind == kind]
        for kind in ("short", "cold", "warm", "control")
    )
    others = [*cold, *control]
    speedup = min(median(cold), median(control)) / max(median(warm), 1e-9)
    wins = sum(each < other for each in warm for other in others) / (len(warm) * len(others))
    faster = speedup >= FASTER and wins >= CLEAR
    noise = max(_deviation(times) for times in (cold, warm, control))
    visible = 1 - median(short) / max(median(cold), 1e-9)
    reported = _reported(samples)
    block = block_size(samples) if reported else None
    notes = _doubts(samples)
    word: Word
    if faster:
        word = "works_reported" if reported else "works_unreported"
    elif visible < VISIBLE:
        word = "noisy"
        notes.append(
            f"The prompt is only {max(visible, 0):.0%} of the time to the first token, so that "
            "saving it can hardly be seen: send a longer one with --tokens."
        )
    elif speedup >= FASTER or noise > NOISE:
        word = "noisy"
        notes.append("The times vary too much: ask again with more --repeat, or when it is idle.")
    else:
        word = "reported_not_faster" if reported else "off"
    if word == "noisy" and reported:
        notes.append("Reuse is reported, though.")
    if word == "works_unreported":
        notes.append(
            "To have it reported, start vLLM with --enable-prompt-tokens-details, SGLang with "
            "--enable-cache-report."
        )
    return Verdict(verdict=word, speedup=speedup, reported=reported, block=block, notes=notes)


def block_size(samples: Sequence[Sample]) -> int | None:
    """How many tokens are reused at a time; None if the samples cannot tell.

    Reuse to the token leaves out the same number of tokens, the end that differs, however long
    the prompt is. Reuse in blocks leaves out more or less, and is a multiple of the block.
    """
    warm = {
        (sample.prompt, sample.cached)
        for sample in samples
        if sample.kind == "warm" and sample.prompt and sample.cached
    }
    reused = {cached for _, cached in warm if cached is not None}
    if len(reused) < 2:
        return None
    left_out = {prompt - cached for prompt, cached in warm if prompt and cached}
    if len(left_out) == 1:
        return 1
    return math.gcd(*reused)


def middle(samples: Sequence[Sample], kind: Kind, field: Literal["prompt", "cached"]) -> int | None:
    """The median of what was reported for one kind of prompt; None if nothing was."""
    reported = [getattr(sample, field) for sample in samples if sample.kind == kind]
    known = [value for value in reported if value is not None]
    return round(median(known)) if known else None


def _reported(samples: Sequence[Sample]) -> bool:
    tokens, cached = (middle(samples, "warm", "prompt"), middle(samples, "warm", "cached"))
    if not tokens or cached is None:
        return False
    elsewhere = [middle(samples, kind, "cached") or 0 for kind in ("cold", "control")]
    return cached - max(elsewhere) >= REPORTED * tokens


def _doubts(samples: Sequence[Sample]) -> list[str]:
    """What is wrong with the numbers that were reported."""
    tokens, cached = (middle(samples, "cold", "prompt"), middle(samples, "cold", "cached"))
    if tokens and cached and cached >= REPORTED * tokens:
        return [
            f"It reports {cached:,} reused tokens for a prompt that it cannot have seen before: "
            "its numbers are not to be trusted."
        ]
    return []


def _deviation(times: Sequence[float]) -> float:
    """The median absolute deviation, relative to the median."""
    centre = median(times)
    return median(abs(each - centre) for each in times) / max(centre, 1e-9)
