"""Where the conversations of one tenant end, so that they can be let go of by name."""

from __future__ import annotations

from collections import OrderedDict

from radixserve.cache.node import Node

MOST = 4096
"""Conversations of one tenant; of more, those that had no turn for longest are forgotten."""

Name = tuple[bytes, str]
"""A namespace, and what the conversation is called in it."""


class Sessions:
    """The end of each one's path, and how much of it was there before its first turn."""

    __slots__ = ("_at", "_ends")

    def __init__(self) -> None:
        self._ends: OrderedDict[Name, tuple[Node, int]] = OrderedDict()
        self._at: dict[Node, set[Name]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, name: Name) -> bool:
        return name in self._ends

    def __getitem__(self, name: Name) -> tuple[Node, int]:
        """Where it ends, and the tokens that were there before it. O(1)."""
        return self._ends[name]

    def put(self, name: Name, node: Node, found: int) -> None:
        """It ends at ``node`` now; ``found`` tokens of this turn were cached before. O(1)."""
        _, shared = self._ends.get(name, (node, found))
        self.pop(name)
        self._ends[name] = node, shared
        self._at.setdefault(node, set()).add(name)
        if len(self._ends) > MOST:
            self.pop(next(iter(self._ends)))

    def pop(self, name: Name) -> tuple[Node, int] | None:
        """Forget it; where it ended, and the tokens that were there before it. O(1)."""
        found = self._ends.pop(name, None)
        if found is not None:
            names = self._at[found[0]]
            names.discard(name)
            if not names:
                del self._at[found[0]]
        return found

    def move(self, node: Node, above: Node | None) -> None:
        """``node`` is gone; what ended there ends at ``above``, or nowhere. O(its sessions)."""
        for name in self._at.pop(node, ()):
            if above is None:
                del self._ends[name]
            else:
                self._ends[name] = above, self._ends[name][1]
                self._at.setdefault(above, set()).add(name)

    def places(self) -> list[Node]:
        """Where any ends. O(sessions)."""
        return list(self._at)

    def sound(self) -> bool:
        """Whether both ways to look at them agree. O(sessions)."""
        there = {(node, name) for node, names in self._at.items() for name in names}
        return there == {(node, name) for name, (node, _) in self._ends.items()}
