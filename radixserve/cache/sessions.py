"""Where the conversations of one tenant end, and turns of them, to be let go of by name.

::

    a conversation   system ] question, answer ] question, answer ]
    its turns                     a turn's end ]    the next one's ]

A turn has a name of its own where others may go on from it: then a conversation has branches.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from radixserve.cache.node import Node, Root

MOST = 4096
"""Names of one tenant; of more, those that had no turn for longest are forgotten."""

Name = tuple[bytes, str]
"""A namespace, and what the conversation, or the turn, is called in it."""


@dataclass(slots=True, eq=False)
class End:
    """Where something that has a name ends."""

    node: Node
    """Behind whose beginning, and not behind its end; or a root, when all of it is gone."""
    tokens: int
    """How long it is."""
    shared: int
    """Tokens of it, in whole blocks, that were there before and are not its own to let go of."""
    session: Name | None = None
    """The conversation that it is a turn of."""


class Sessions:
    """The ends of all that have names."""

    __slots__ = ("_at", "_ends")

    def __init__(self) -> None:
        self._ends: OrderedDict[Name, End] = OrderedDict()
        self._at: dict[Node, set[Name]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, name: Name) -> bool:
        return name in self._ends

    def __getitem__(self, name: Name) -> End:
        """Where it ends. O(1)."""
        return self._ends[name]

    def put(self, name: Name, node: Node, found: int, session: Name | None = None) -> None:
        """It ends where ``node`` does now; ``found`` tokens of this turn, in whole blocks, were
        cached before. A turn says which conversation's it is. O(1)."""
        before = self.pop(name)
        self._ends[name] = End(node, node.end, before.shared if before else found, session)
        self._at.setdefault(node, set()).add(name)
        if len(self._ends) > MOST:
            self.pop(next(iter(self._ends)))

    def end(self, name: Name) -> End | None:
        """It is over, and where it ended; None if there is none of this name.

        With a conversation its turns are. After its last turn a conversation ends where that began.
        O(names).
        """
        found = self.pop(name)
        if found is None:
            return None
        for turn in [each for each, end in self._ends.items() if end.session == name]:
            self.pop(turn)
        if found.session is not None and found.session in self._ends:
            self._step_back(found.session, found)
        return found

    def pop(self, name: Name) -> End | None:
        """Forget it, and where it ended; None if there is none of this name. O(1)."""
        found = self._ends.pop(name, None)
        if found is not None:
            self._leave(name, found.node)
        return found

    def any_at(self, node: Node) -> bool:
        """Whether anything ends in ``node``. O(1)."""
        return node in self._at

    def inherit(self, node: Node, shared: int) -> None:
        """What ended behind ``node``, and had all but ``shared`` tokens of the path to it for its
        own, is over: those that go on from there have it now. O(names + edges)."""
        for end in self._ends.values():
            if shared < end.shared <= node.end and _passes(end.node, node):
                end.shared = shared

    def move(self, node: Node, to: Node | None) -> None:
        """``node`` is gone: what ended there ends in ``to``, at its end at last, or nowhere.
        O(its names)."""
        for name in self._at.pop(node, ()):
            if to is None:
                del self._ends[name]
                continue
            end = self._ends[name]
            end.node, end.tokens = to, min(end.tokens, to.end)
            self._at.setdefault(to, set()).add(name)

    def split(self, node: Node, upper: Node) -> None:
        """``upper`` is the part that a split took off ``node``. O(names of the node)."""
        for name in list(self._at.get(node, ())):
            if (end := self._ends[name]).tokens <= upper.end:
                self._put_at(name, end, upper)

    def shorten(self, node: Node) -> None:
        """``node`` is shorter now. O(its names)."""
        for name in self._at.get(node, ()):
            end = self._ends[name]
            end.tokens = min(end.tokens, node.end)

    def places(self) -> list[Node]:
        """Where any ends. O(names)."""
        return list(self._at)

    def sound(self) -> bool:
        """Whether both ways to look at them agree, and all end where they say. O(names)."""
        there = {(node, name) for node, names in self._at.items() for name in names}
        return there == {(end.node, name) for name, end in self._ends.items()} and all(
            isinstance(end.node, Root) or end.node.start < end.tokens <= end.node.end
            for end in self._ends.values()
        )

    # Below here: the parts of the above

    def _step_back(self, name: Name, turn: End) -> None:
        """If ``turn`` was the last one of a conversation, this ends where it began."""
        whole = self._ends[name]
        if (whole.node, whole.tokens) != (turn.node, turn.tokens):
            return
        whole.tokens = min(whole.tokens, turn.shared)
        while whole.tokens <= whole.node.start and whole.node.parent is not None:
            self._put_at(name, whole, whole.node.parent)

    def _put_at(self, name: Name, end: End, node: Node) -> None:
        self._leave(name, end.node)
        end.node = node
        self._at.setdefault(node, set()).add(name)

    def _leave(self, name: Name, node: Node) -> None:
        names = self._at[node]
        names.discard(name)
        if not names:
            del self._at[node]


def _passes(node: Node, above: Node) -> bool:
    """Whether the path to ``node`` leads through ``above``. O(edges)."""
    at: Node | None = node
    while at is not None and at is not above:
        at = at.parent
    return at is not None
