"""Stop strings: where to cut a text that comes in pieces, and how much of it can be shown now."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from radixserve.errors import InvalidRequestError

MAX_TOTAL_LENGTH = 4096
"""Characters of all stop strings of a request together."""


class StopStrings:
    """Finds the first stop string to be completed in a text, however the text is cut into pieces.

    Of two that end at the same character the longer one counts. The search is the automaton of
    Aho and Corasick (1975): every character is looked at once, so that the cost of a piece depends
    on its own length alone, and what is held back is exactly what could still become a stop string.

    Args:
        stops: The strings; none means that the text passes through.
        include: Whether the stop string itself is part of the text.

    Raises:
        InvalidRequestError: an empty stop string, or more than MAX_TOTAL_LENGTH characters.
    """

    __slots__ = ("_automaton", "_held", "_include", "_state", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False):
        if "" in stops:
            raise InvalidRequestError("A stop string must not be empty.", param="stop")
        if sum(map(len, stops)) > MAX_TOTAL_LENGTH:
            raise InvalidRequestError(
                f"Stop strings may have {MAX_TOTAL_LENGTH} characters together at most.",
                param="stop",
            )
        self.matched: str | None = None
        """The stop string that ended the text, once one has."""
        self._include = include
        self._automaton = _Automaton(stops) if stops else None
        self._state = 0
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece of the text; returns what is safe to show.

        O(len(text)) amortised, whatever came before.
        """
        if self.matched is not None:
            return ""
        if self._automaton is None:
            return text
        whole, state = self._held + text, self._state
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = self._automaton.step(state, character)
            if stop := self._automaton.found[state]:
                self.matched, self._held = stop, ""
                return whole[: end if self._include else end - len(stop)]
        safe = len(whole) - self._automaton.depth[state]
        self._state, self._held = state, whole[safe:]
        return whole[:safe]

    def finish(self) -> str:
        """What was held back, now that no more text will come; empty after a match."""
        held, self._held, self._state = self._held, "", 0
        return held


class _Automaton:
    """A state is the longest end of the text so far that begins a stop string; 0 is no such."""

    __slots__ = ("depth", "found", "next", "suffix")

    def __init__(self, stops: Sequence[str]):
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        """Characters of the text that the state stands for."""
        self.found = [""]
        """The longest stop string that the state ends with."""
        self.suffix = [0]
        """The next shorter state that the text also ends with."""
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self.next[state]:
            state = self.suffix[state]
        return self.next[state].get(character, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self.next[state]:
                self.next[state][character] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append("")
                self.suffix.append(0)
            state = self.next[state][character]
        self.found[state] = stop

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self.next[state].items():
                self.suffix[child] = self.step(self.suffix[state], character)
                self.found[child] = self.found[child] or self.found[self.suffix[child]]
                queue.append(child)
