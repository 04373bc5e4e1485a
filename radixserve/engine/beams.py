"""Beam search: the beams of one prompt, a token longer with each step.

The rules are those of transformers' ``generate(num_beams=...)``, so that results are comparable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from radixserve.engine.frontend import Beams
from radixserve.scheduling.plan import Sampled
from radixserve.tokens import pack


@dataclass(frozen=True, slots=True)
class Beam:
    """A possible answer."""

    tokens: bytes = b""
    """int32 big-endian."""
    sampled: tuple[Sampled, ...] = ()
    score: float = 0.0
    """The sum of its tokens' logprobs."""
    stopped: bool = False
    """Whether it ends with a stop token."""

    def then(self, candidate: Sampled, *, stopped: bool) -> Beam:
        """The same with one more token. O(length)."""
        assert candidate.logprob is not None
        return Beam(
            self.tokens + pack([candidate.token]),
            (*self.sampled, candidate),
            self.score + candidate.logprob,
            stopped,
        )

    def value(self, length_penalty: float) -> float:
        """What those that have ended are ordered by."""
        return float(self.score / len(self.sampled) ** length_penalty)


class BeamSearch:
    """
    Args:
        settings: how wide it is, and what it prefers.
        limit: tokens of the longest answer, at least 1.
        stops: tokens that end an answer.
    """

    def __init__(self, settings: Beams, limit: int, stops: Collection[int]):
        self._settings, self._limit, self._stops = settings, limit, stops
        self._ended: list[Beam] = []
        self._length = 0
        self.running = [Beam()]
        """Those to go on with, best first."""
        self.done = False

    @property
    def candidates(self) -> int:
        """Likeliest tokens that have to be known of each beam: with fewer, stop tokens might leave
        too little to go on with."""
        return self._settings.width + len(self._stops)

    def advance(self, steps: Sequence[Sampled]) -> None:
        """Go on with the likeliest tokens that come next, in ``Sampled.top``, of each running beam.

        O(width · candidates, sorted, + width · length).
        """
        width = self._settings.width
        self._length += 1
        ranked = sorted(
            (-beam.score - logprob, place, token, logprob)
            for place, (beam, step) in enumerate(zip(self.running, steps, strict=True))
            for token, logprob in step.top
        )
        running: list[Beam] = []
        for place, (_, parent, token, logprob) in enumerate(ranked):
            stopped = token in self._stops
            ends = stopped or self._length == self._limit
            # Those after the first ``width`` are only there to go on with.
            if ends and place >= width:
                continue
            if not ends and len(running) == width:
                break
            candidate = replace(steps[parent], token=token, logprob=logprob)
            beam = self.running[parent].then(candidate, stopped=stopped)
            (self._ended if ends else running).append(beam)
        self._ended.sort(key=self._value, reverse=True)
        del self._ended[width:]
        self.running = running
        self.done = not running or not self._can_improve()

    def best(self, count: int) -> list[Beam]:
        """The best so far, those that have ended before those that have not."""
        running = sorted(self.running, key=self._value, reverse=True)
        return (self._ended + running)[:count]

    def _value(self, beam: Beam) -> float:
        return beam.value(self._settings.length_penalty)

    def _can_improve(self) -> bool:
        settings = self._settings
        if len(self._ended) < settings.width:
            return True
        # A single beam is a greedy search there, which ends with the first stop token.
        if settings.early_stopping is True or settings.width == 1:
            return False
        penalty = settings.length_penalty
        hopeful = settings.early_stopping == "never" and penalty > 0.0
        length = self._limit if hopeful else self._length
        return bool(self.running[0].score / length**penalty > self._value(self._ended[-1]))
