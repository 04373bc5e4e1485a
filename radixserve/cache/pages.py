"""The pool of KV pages: which are free, who holds the others, and when one may be used again."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from radixserve.cache.errors import CacheError

SCRATCH_PAGE = 0
"""Padded rows write here; it never belongs to anyone and is outside the ledger."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the KV of the first ``tokens`` tokens of page ``source`` to page ``target``."""

    source: int
    target: int
    tokens: int


class PagePool:
    """Page ids ``1 .. num_pages - 1``, each free, held, or in quarantine.

    A page that is given back while a step is in flight may still be read or written by that step.
    It waits in quarantine until every step that was planned before it came back has ended.
    """

    __slots__ = ("_free", "_holders", "_quarantine", "begun", "ended", "num_pages")

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self.begun = 0
        """Number of the newest step that was planned."""
        self.ended = 0
        """Every step up to this one has committed or failed."""
        self._free = list(range(num_pages - 1, SCRATCH_PAGE, -1))
        self._holders = array("i", bytes(4 * num_pages))
        self._quarantine: deque[tuple[int, int]] = deque()

    @property
    def free(self) -> int:
        """Pages that can be taken at once. O(1)."""
        return len(self._free)

    @property
    def quarantined(self) -> int:
        """Pages that wait for a step to end. O(1)."""
        return len(self._quarantine)

    def holders(self, page: int) -> int:
        """How many hold ``page``. O(1)."""
        return self._holders[page]

    def take(self, count: int) -> array[int]:
        """``count`` free pages, each with one holder. O(count).

        Raises:
            CacheError: fewer are free; nothing was taken.
        """
        if count > len(self._free):
            raise CacheError(f"{count} pages wanted, {len(self._free)} are free")
        if count == 0:
            return array("i")
        taken = array("i", self._free[-count:])
        del self._free[-count:]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Add a holder to each of ``pages``. O(pages).

        Raises:
            CacheError: one of them is not held by anyone.
        """
        for page in pages:
            if self._holders[page] < 1:
                raise CacheError(f"page {page} is shared but nobody holds it")
            self._holders[page] += 1

    def give_back(self, pages: Iterable[int], *, unused: bool = False) -> int:
        """Take a holder from each of ``pages``; without one left, a page is free again. O(pages).

        Returns how many have no holder left. ``unused`` says that no step in flight touches them,
        so that they need no quarantine.

        Raises:
            CacheError: nobody holds one of them (a double free).
        """
        at_once = unused or self.ended == self.begun
        left = 0
        for page in pages:
            if self._holders[page] < 1:
                raise CacheError(f"page {page} is given back but nobody holds it")
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            left += 1
            if at_once:
                self._free.append(page)
            else:
                self._quarantine.append((self.begun, page))
        return left

    def begin_step(self) -> int:
        """Number the next step. O(1)."""
        self.begun += 1
        return self.begun

    def end_step(self, step: int) -> None:
        """Steps up to ``step`` have ended: free what waited for them. O(pages freed).

        Raises:
            CacheError: the step was never begun, or a later one has ended already.
        """
        if not self.ended < step <= self.begun:
            raise CacheError(f"step {step} cannot end: {self.ended} ended, {self.begun} begun")
        self.ended = step
        while self._quarantine and self._quarantine[0][0] <= step:
            self._free.append(self._quarantine.popleft()[1])

    def idle(self) -> list[int]:
        """Every page that nobody holds: the free ones, then those in quarantine. O(pages)."""
        return self._free + [page for _, page in self._quarantine]

    def sound(self) -> bool:
        """Whether every page in quarantine waits for a step that has not ended. O(pages)."""
        return all(step > self.ended for step, _ in self._quarantine)
