"""How long the prompts are, how many run at once, and how often all of it is timed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

PAGE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """In tokens, unless they say otherwise."""

    cached: int = 8192
    long: int = 32768
    new: int = 128
    """Behind what is cached, where the first token is timed."""
    own: int = 256
    """Of each row behind what all share, where decoding is timed."""
    apart: int = 2048
    """Of each row where nothing is shared."""
    rows: int = 64
    """Requests that decode at once."""
    steps: int = 32
    """Decoding steps that are timed as one."""
    repeats: int = 5
    """Of everything that is timed."""
    groups: int = 4
    """Of the load for throughput, which is ``rows`` requests: each group has its own prefix."""
    system: int = 2048
    question: int = 128
    answer: int = 128

    def shrunk(self, by: int) -> Sizes:
        """Everything that is long, divided; numbers of requests, steps and repeats stay.

        Raises:
            ValueError: something would have no length.
        """
        long = ("cached", "long", "new", "own", "apart", "system", "question", "answer")
        small = replace(self, **{name: getattr(self, name) // by for name in long})
        empty = [each.name for each in fields(self) if getattr(small, each.name) < 1]
        if empty:
            raise ValueError(f"shrunk by {by}, {empty[0]} is less than a token")
        return small

    @property
    def warm(self) -> int:
        """Decoding steps before any is timed."""
        return max(2, self.steps // 4)

    @property
    def generated(self) -> int:
        """Tokens that a row generates at most where decoding is timed; much more than it does."""
        return 2 * (self.warm + self.repeats * self.steps) + 1024

    @property
    def longest(self) -> int:
        """A prompt with its answer, of all cases."""
        decoding = max(self.long + self.own, self.apart) + self.generated
        return max(self.long + self.new + 1, decoding, self.system + self.question + self.answer)

    @property
    def pages(self) -> int:
        """That hold all rows of any case at once, and the longest prompt beside them."""
        row = self.warm + (self.repeats + 1) * self.steps + 2 * PAGE
        rows = max(
            self.rows * (self.apart + row),
            self.long + self.rows * (self.own + row),
            self.groups * self.system + self.rows * (self.question + self.answer + 2 * PAGE),
        )
        return 1 + -(-(rows + self.longest) // PAGE)
