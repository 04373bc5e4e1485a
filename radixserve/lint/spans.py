"""What a prompt template writes, from its front to its end: its own text, and values."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE

CHANGES = ("never", "deployment", "user", "documents", "history", "request")
"""How often something changes, from the rarest."""
NAMES = (
    ("request", r"now|today|time|date|clock|uuid|nonce|random|seed|request|query|question|input"),
    ("history", r"history|messages?|conversation|turns|scratchpad|transcript"),
    ("documents", r"doc(?:ument)?s?|contexts?|chunks?|passages?|results?|sources?|snippets?"),
    ("user", r"user|session|tenant|customer|profile|account|memory|memories|locale"),
    ("deployment", r"tools?|functions?|instructions?|examples?|system|persona|policy|schema|name"),
)
"""What variables are called, in the order in which that decides. All others may be another one in
every request."""
BY_CHANCE = "random"
"""A filter that is another one in every request, whatever it is given."""
SAFE = DEFAULT_NAMESPACE.keys() - {"lipsum"}
"""Names that every template knows, and that change nothing."""


MOST_NAMES = 16
"""That are told of one value."""


class Origin(NamedTuple):
    """What a value is made of."""

    names: frozenset[str]
    """The template's variables in it."""
    rank: int
    """Index into ``CHANGES``: of the one that changes most often."""


Kind = TypeVar("Kind", bound=nodes.Node)
CONSTANT = Origin(frozenset(), 0)


@dataclass(slots=True)
class Span:
    """Text of the template, or a value that it writes there."""

    rank: int
    """Index into ``CHANGES``."""
    text: str = ""
    names: frozenset[str] = frozenset()
    """Variables in the value; none of text."""


class Writer:
    """Says what the pieces of a template write, one after the other, and so knows what its own
    variables are made of."""

    def __init__(self) -> None:
        self._known = ChainMap(dict.fromkeys(SAFE, CONSTANT))

    def spans(self, piece: nodes.Template) -> list[Span]:
        """What ``piece`` writes. O(nodes · depth)."""
        return list(self._all(piece, 0))

    def _all(self, node: nodes.Node, rank: int) -> Iterator[Span]:
        """What the statements in ``node`` write; ``rank`` is that of those around them."""
        for each in node.iter_child_nodes():
            if isinstance(each, nodes.Output):
                yield from self._output(each, rank)
            elif isinstance(each, nodes.Assign | nodes.AssignBlock | nodes.Macro):
                self._define(each, rank)
            elif isinstance(each, nodes.For | nodes.CallBlock | nodes.With):
                yield from self._scope(each, rank)
            elif isinstance(each, nodes.If):
                test = self._origin(each.test)
                yield from _value(test, rank)
                yield from self._all(each, max(rank, test.rank))
            elif isinstance(each, nodes.Stmt):
                yield from self._all(each, rank)

    def _output(self, node: nodes.Output, rank: int) -> Iterator[Span]:
        for part in node.nodes:
            if isinstance(part, nodes.TemplateData):
                yield Span(rank, part.data)
            else:
                yield from _value(self._origin(part), rank)

    def _scope(self, node: nodes.For | nodes.CallBlock | nodes.With, rank: int) -> Iterator[Span]:
        """What decides how often something is written stands in front of it."""
        heads = [each for each in node.iter_child_nodes() if isinstance(each, nodes.Expr)]
        origin = _joined(map(self._origin, heads))
        inside = rank if isinstance(node, nodes.With) else max(rank, origin.rank)
        if not isinstance(node, nodes.With):
            yield from _value(origin, rank)
        bound = dict.fromkeys(("loop", *_stored(heads)), origin)
        self._known = self._known.new_child(bound)
        yield from self._all(node, inside)
        self._known = self._known.parents

    def _define(self, node: nodes.Assign | nodes.AssignBlock | nodes.Macro, rank: int) -> None:
        """Nothing is written here, but where the name stands."""
        if isinstance(node, nodes.Macro):
            own = dict.fromkeys((*(each.name for each in node.args), "caller"), CONSTANT)
            self._known = self._known.new_child(own)
            origin = self._origin(node)
            self._known = self._known.parents
            self._known[node.name] = origin
            return
        names, spaces = _stored([node]), [each.name for each in node.find_all(nodes.NSRef)]
        made = _joined([self._origin(node), Origin(frozenset(), rank)])
        self._known.update(dict.fromkeys(names, made))
        for name in spaces:
            # It keeps what else was put into it.
            self._known[name] = _joined([made, self._known.get(name, CONSTANT)])

    def _origin(self, node: nodes.Node) -> Origin:
        """Of all that is read in ``node``. O(nodes)."""
        found = [
            self._of_name(each.name) for each in _found(node, nodes.Name) if each.ctx == "load"
        ]
        if any(each.name == BY_CHANCE for each in _found(node, nodes.Filter)):
            found.append(self._of_name(BY_CHANCE))
        return _joined(found)

    def _of_name(self, name: str) -> Origin:
        known = self._known.get(name)
        return Origin(frozenset((name,)), rank_of(name)) if known is None else known


def rank_of(name: str) -> int:
    """How often a variable of this name changes: an index into ``CHANGES``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for changes, pattern in NAMES:
        if re.search(rf"(?:^|_)(?:{pattern})(?:_|$)", words):
            return CHANGES.index(changes)
    return len(CHANGES) - 1


def _value(origin: Origin, rank: int) -> Iterator[Span]:
    if origin.names:
        yield Span(max(rank, origin.rank), names=origin.names)


def _joined(origins: Iterable[Origin]) -> Origin:
    found = list(origins)
    names = frozenset[str]().union(*(each.names for each in found))
    if len(names) > MOST_NAMES:
        names = frozenset(sorted(names)[:MOST_NAMES])
    return Origin(names, max((each.rank for each in found), default=0))


def _stored(found: Iterable[nodes.Node]) -> list[str]:
    """Names that are given a value in them."""
    return [each.name for node in found for each in _found(node, nodes.Name) if each.ctx != "load"]


def _found(node: nodes.Node, kind: type[Kind]) -> Iterator[Kind]:
    """All of a kind in ``node``, itself among them."""
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)
