"""What is measured, as data: random tokens, so that nothing is shared but what a case says."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

VOCABULARY = range(100, 49_000)
"""Special tokens are left out."""
DECODED = 64
OURS = "radixserve"
"""The peer that the others are compared with."""

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Case:
    """``requests`` prompts at once, of ``shared`` tokens in common and ``own`` tokens each."""

    name: str
    title: str
    kind: Literal["start", "first", "decode"]
    requests: int = 1
    shared: int = 0
    own: int = 100

    @property
    def unit(self) -> str:
        return "tok/s" if self.kind == "decode" else "s"

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its answer, at most."""
        return self.shared + self.own + (DECODED + 1 if self.kind == "decode" else 1)

    def prompts(self, repeat: int) -> Prompts:
        """The prompts of one repeat, the same for all peers and in every run.

        The shared part is the same in all repeats. Where the first token is timed the rest is new
        in each, so that no cache has it; where decoding is timed it is the same.
        """
        rng = random.Random(f"{self.name} {repeat if self.kind == 'first' else 0}")
        trunk = self.trunk()
        return [trunk + _tokens(rng, self.own) for _ in range(self.requests)]

    def trunk(self) -> list[int]:
        """The shared part."""
        return _tokens(random.Random("trunk"), self.shared)


def _tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(VOCABULARY, k=count)


CASES = (
    Case("start", "start to first answer", "start"),
    Case("cold", "first token, 4,060 tokens cold", "first", own=4060),
    Case("cached", "first token, 4,000 cached + 60 new", "first", shared=4000, own=60),
    Case(
        "cached-32", "first token, 32 x (4,000 cached + 60 new)", "first", 32, shared=4000, own=60
    ),
    Case("decode", "decode, 1 request, 100-token prompt", "decode"),
    Case("decode-8", "decode, 8 requests", "decode", 8),
    Case("decode-32", "decode, 32 requests", "decode", 32),
    Case("long", "decode, 1 request on 4,000 tokens", "decode", own=4000),
    Case("shared-8", "decode, 8 requests sharing 4,000 tokens", "decode", 8, shared=4000, own=60),
    Case(
        "shared-32", "decode, 32 requests sharing 4,000 tokens", "decode", 32, shared=4000, own=60
    ),
)
BY_NAME = {case.name: case for case in CASES}

GRID_SHARERS, GRID_LENGTHS = (1, 4, 16, 32, 64), (256, 1000, 4000, 7000)
USUAL_LENGTH, USUAL_SHARERS = 4000, 16


def sharing(sharers: int, length: int) -> Case:
    """``sharers`` requests that decode on one prefix of ``length`` tokens."""
    title = f"decode, {sharers} requests sharing {length:,} tokens"
    return Case(f"sharing-{sharers}-{length}", title, "decode", sharers, shared=length, own=60)


GRID = tuple(
    dict.fromkeys(
        [sharing(sharers, USUAL_LENGTH) for sharers in GRID_SHARERS]
        + [sharing(USUAL_SHARERS, length) for length in GRID_LENGTHS]
    )
)
