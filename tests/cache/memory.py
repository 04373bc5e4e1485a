"""A KV memory that knows what belongs in every slot.

A slot's right content is the identity of ``(namespace, tokens[:position + 1])``: that is what the
keys and values at a position depend on. Whoever reads another identity has read a wrong answer.
"""

from __future__ import annotations

from array import array
from collections import deque

from radixserve.cache.namespace import PUBLIC
from radixserve.tokens import pack
from tests.cache.rules import Rules
from tests.cache.steps import Sequence, Step

GARBAGE = -1


class Memory:
    """The pages of a device, and the steps in flight that read and write them."""

    def __init__(self, rules: Rules, page_size: int, num_pages: int):
        self.rules = rules
        self.size = page_size
        self.kv = [[GARBAGE] * page_size for _ in range(num_pages)]
        self.steps: deque[Step] = deque()
        self.known: dict[tuple[object, int], int] = {}

    def identities(self, namespace: bytes, tokens: list[int]) -> list[int]:
        identities: list[int] = []
        shared = len(self.rules.public_head(tokens))
        last: object = PUBLIC if shared else namespace
        for position, token in enumerate(tokens):
            if shared and position == shared:
                last = self.known.setdefault((last, namespace), len(self.known))
            last = self.known.setdefault((last, token), len(self.known))
            identities.append(last)
        return identities

    def append(self, sequence: Sequence, token: int) -> None:
        last = sequence.identities[-1]
        if len(sequence.tokens) == len(sequence.lease.public):
            last = self.known.setdefault((last, sequence.namespace), len(self.known))
        sequence.identities.append(self.known.setdefault((last, token), len(self.known)))
        sequence.tokens.extend(pack([token]))

    def run(self, step: Step) -> None:
        """The device runs steps in order; each reads all that came before what it writes."""
        for earlier in self.steps:
            if earlier.number < step.number:
                self.run(earlier)
        if step.ran:
            return
        step.ran = True
        for copy in step.copies:
            self.kv[copy.target][: copy.tokens] = self.kv[copy.source][: copy.tokens]
        for work in step.works:
            if work.sequence.failed:
                continue
            work.sequence.failed = step.fails
            identities = work.sequence.identities
            self.verify(work.pages, identities, work.start)
            for position in range(work.start, work.end):
                block, slot = divmod(position, self.size)
                value = GARBAGE if step.fails else identities[position]
                self.kv[work.pages[block]][slot] = value

    def verify(self, pages: array[int], identities: list[int], computed: int) -> None:
        kv = self.kv
        content = [kv[page] for page in pages[: -(-computed // self.size)]]
        flat = [value for page in content for value in page][:computed]
        assert flat == identities[:computed], "a sequence reads KV that is not its own"

    def expect_untouched(self, pages: array[int]) -> None:
        assert 0 not in pages, "the scratch page was handed out"
        for step in self.steps:
            both = step.touched.intersection(pages)
            assert not both, f"step {step.number} is in flight and uses {both}"
        self.rules.seen["pages handed out in flight"] += len(pages) if self.steps else 0
