"""Where the conversations of one tenant end, and turns of them, to be let go of by name.

::

    a conversation   system ] question, answer ] question, answer ]
    its turns                     a turn's end ]    the next one's ]

A turn has a name of its own where others may go on from it: then a conversation has branches.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from radixserve.cache.node import Node, Root, walk

MOST = 2**14
"""Names of one tenant; of more, those that had no turn for longest are forgotten."""
FEW = 256
"""Nodes that are rather looked at one by one than all names."""
ENDLESS = 1 << 62
"""Longer than anything is."""

Name = tuple[bytes, str]
"""A namespace, and what the conversation, or the turn, is called in it."""


@dataclass(slots=True, eq=False)
class Place:
    """A node in which something ends, behind its beginning and not behind its end; or a root, when
    all of that is gone.

    What is cut off from the node, page by page, moves one limit and not thousands of ends.
    """

    node: Node
    limit: int = ENDLESS
    """Tokens; none of ``names`` ends behind it."""
    names: set[Name] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class End:
    """Where something that has a name ends."""

    place: Place
    length: int
    """Tokens that it had, of which those up to the limit of ``place`` are left."""
    shared: int
    """Tokens of it, in whole blocks, that were there before and are not its own to let go of."""
    session: Name | None = None
    """The conversation that it is a turn of."""
    owned: bool = False
    """See ``Keeping``: what others with names have of it is known when it is over."""

    @property
    def node(self) -> Node:
        """The node that it ends in, or a root. O(1)."""
        return self.place.node

    @property
    def tokens(self) -> int:
        """How long it is. O(1)."""
        return min(self.length, self.place.limit)


class Sessions:
    """The ends of all that have names."""

    __slots__ = ("_at", "_ends", "_turns")

    def __init__(self) -> None:
        self._ends: OrderedDict[Name, End] = OrderedDict()
        self._at: dict[Node, Place] = {}
        self._turns: dict[Name, set[Name]] = {}
        """By their conversations."""

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, name: Name) -> bool:
        return name in self._ends

    def __getitem__(self, name: Name) -> End:
        """Where it ends. O(1)."""
        return self._ends[name]

    def put(
        self,
        name: Name,
        node: Node,
        found: int,
        session: Name | None = None,
        *,
        owned: bool = False,
    ) -> None:
        """It ends where ``node`` does now; ``found`` tokens of this turn, in whole blocks, were
        cached before. A turn says which conversation's it is. O(1), and O(names of the node)
        when it was cut and has grown since."""
        before = self.pop(name)
        shared = 0 if owned else before.shared if before else found
        self._ends[name] = End(self._enter(name, node), node.end, shared, session, owned)
        if session is not None:
            self._turns.setdefault(session, set()).add(name)
        if len(self._ends) > MOST:
            self.pop(next(iter(self._ends)))

    def end(self, name: Name) -> End | None:
        """It is over, and where it ended; None if there is none of this name.

        With a conversation its turns are. After its last turn a conversation ends where that began.
        O(turns).
        """
        found = self.pop(name)
        if found is None:
            return None
        for turn in list(self._turns.get(name, ())):
            self.pop(turn)
        if found.session is not None and found.session in self._ends:
            self._step_back(found.session, found)
        return found

    def pop(self, name: Name) -> End | None:
        """Forget it, and where it ended; None if there is none of this name. O(1)."""
        if name not in self._ends:
            return None
        found = self._strike_out(name)
        self._leave(name, found.place)
        return found

    def any_at(self, node: Node) -> bool:
        """Whether anything ends in ``node``. O(1)."""
        return node in self._at

    def last_before(self, gone: End) -> int:
        """Tokens of ``gone``, which is over, behind which something else ends; the most, or 0.
        O(edges + names of their nodes)."""
        at: Node | None = gone.node
        while at is not None:
            place = self._at.get(at)
            ends = (self._ends[name].tokens for name in place.names) if place is not None else ()
            if last := max((each for each in ends if each <= gone.tokens), default=0):
                return last
            at = at.parent
        return 0

    def inherit(self, node: Node, shared: int) -> None:
        """What ended behind ``node``, and had all but ``shared`` tokens of the path to it for its
        own, is over: those that go on from there have it now. O(names below), and where more than a
        few nodes are there O(names + nodes above their ends)."""
        below = list(islice(walk(node), FEW + 1))
        if len(below) <= FEW:
            places = (self._at[each] for each in below if each in self._at)
            ends = [self._ends[name] for place in places for name in place.names]
        else:
            passes = {node: True}
            longer = (end for end in self._ends.values() if shared < end.shared <= node.end)
            ends = [end for end in longer if _passes(end.node, passes)]
        for end in ends:
            if shared < end.shared <= node.end:
                end.shared = shared

    def move(self, node: Node, to: Node | None) -> None:
        """``node`` is gone: what ended there ends in ``to``, at its end at last, or nowhere.
        O(1), or O(names of either) where others end in ``to``, mostly of that which has fewer."""
        place = self._at.pop(node, None)
        if place is None:
            return
        if to is None:
            for name in place.names:
                self._strike_out(name)
            return
        place.node = to
        if to.end < node.end:
            place.limit = min(place.limit, to.end)
        there = self._at.get(to)
        if there is not None:
            few, place = sorted((place, there), key=_size)
            if place.limit < min(few.limit, to.end):
                self._settle(place)
            for name in few.names:
                end = self._ends[name]
                end.length, end.place = end.tokens, place
            place.names |= few.names
        self._at[to] = place

    def split(self, node: Node, upper: Node) -> None:
        """``upper`` is the part that a split took off ``node``. O(names of the node)."""
        place = self._at.get(node)
        for name in list(place.names) if place is not None else ():
            if (end := self._ends[name]).tokens <= upper.end:
                self._put_at(name, end, upper)

    def shorten(self, node: Node) -> None:
        """``node`` is shorter now. O(1)."""
        place = self._at.get(node)
        if place is not None:
            place.limit = min(place.limit, node.end)

    def places(self) -> list[Node]:
        """Where any ends. O(names)."""
        return list(self._at)

    def sound(self) -> bool:
        """Whether both ways to look at them agree, and all end where they say. O(names)."""
        there = {(name, place) for place in self._at.values() for name in place.names}
        turns = {(name, session) for session, each in self._turns.items() for name in each}
        ends = self._ends.items()
        return (
            there == {(name, end.place) for name, end in ends}
            and turns == {(name, end.session) for name, end in ends if end.session is not None}
            and all(self._turns.values())
            and all(node is place.node and place.names for node, place in self._at.items())
            and all(
                isinstance(end.node, Root) or end.node.start < end.tokens <= end.node.end
                for end in self._ends.values()
            )
        )

    # Below here: the parts of the above

    def _strike_out(self, name: Name) -> End:
        end = self._ends.pop(name)
        if end.session is not None:
            turns = self._turns[end.session]
            turns.discard(name)
            if not turns:
                del self._turns[end.session]
        return end

    def _step_back(self, name: Name, turn: End) -> None:
        """If ``turn`` was the last one of a conversation, this ends where it began."""
        whole = self._ends[name]
        if (whole.node, whole.tokens) != (turn.node, turn.tokens):
            return
        whole.length = min(whole.tokens, turn.shared)
        while whole.length <= whole.node.start and whole.node.parent is not None:
            self._put_at(name, whole, whole.node.parent)

    def _put_at(self, name: Name, end: End, node: Node) -> None:
        end.length = end.tokens
        self._leave(name, end.place)
        end.place = self._enter(name, node)

    def _enter(self, name: Name, node: Node) -> Place:
        """``name`` ends somewhere in ``node``."""
        place = self._at.get(node)
        if place is None:
            place = self._at[node] = Place(node)
        elif place.limit < node.end:
            self._settle(place)
        place.names.add(name)
        return place

    def _leave(self, name: Name, place: Place) -> None:
        place.names.discard(name)
        if not place.names:
            del self._at[place.node]

    def _settle(self, place: Place) -> None:
        """What ends there ends where it does now, so that others may end behind the limit."""
        for name in place.names:
            end = self._ends[name]
            end.length = end.tokens
        place.limit = ENDLESS


def _size(place: Place) -> int:
    return len(place.names)


def _passes(node: Node, passes: dict[Node, bool]) -> bool:
    """Whether the path to ``node`` leads through one that ``passes`` says so of; tells it of all
    that it has seen. O(edges that it has not)."""
    seen: list[Node] = []
    at: Node | None = node
    while at is not None and at not in passes:
        seen.append(at)
        at = at.parent
    found = at is not None and passes[at]
    passes.update(dict.fromkeys(seen, found))
    return found
