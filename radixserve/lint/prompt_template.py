"""Whether a prompt template puts what varies behind what does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jinja2 import Environment, TemplateSyntaxError, meta

from radixserve.lint.report import Moved, TemplateReport
from radixserve.lint.rewrite import PIECE

CHANGES = ("never", "deployment", "user", "documents", "history", "request")
"""How often a piece changes, from the rarest."""
NAMES = (
    ("request", r"now|today|time|date|clock|uuid|nonce|random|seed|request|query|question|input"),
    ("history", r"history|messages?|conversation|turns|scratchpad|transcript"),
    ("documents", r"doc(?:ument)?s?|contexts?|chunks?|passages?|results?|sources?|snippets?"),
    ("user", r"user|session|tenant|customer|profile|account|memory|memories|locale"),
    ("deployment", r"tools?|functions?|instructions?|examples?|system|persona|policy|schema|name"),
)
"""What variables are called, in the order in which that decides. All others may be another one in
every request."""
SHORT = 40
"""Characters of a text that goes with its neighbour: a label, or a mark for the answer."""
ENOUGH = 16
"""Tokens of text behind something that varies, from which on it is worth a word."""
ENDS = re.compile(r"(?:[.!?]\s+|\n)\Z")
"""What a piece may end with, in front of another one."""
LINES_END = re.compile(r"(?:[.!?]\s+|\n)\{%[-+]?\s*end\w+\s*[-+]?%\}\Z")
"""The end of a statement around whole lines: a piece, whatever stands right behind it."""
TAG = 64
"""Characters of a text that are looked at for it."""
OPENING = re.compile(r"(for|if|macro|call|filter|block|with|raw|autoescape)\b|set\b[^=]*$")
FIXED = re.compile(r"\{%-?\s*(set|macro|import|from|extends|include)\b")
"""What has to stay in front of its use."""

_ENVIRONMENT = Environment(
    extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"],
    keep_trailing_newline=True,
    autoescape=False,
)


@dataclass(slots=True)
class Piece:
    """A sentence, a line, or a statement with all inside of it."""

    source: str
    line: int
    names: list[str] = field(default_factory=list)
    rank: int = 0
    """Index into ``CHANGES``."""

    @property
    def text(self) -> str:
        """The template's own text in it."""
        return "".join(value for _, kind, value in _ENVIRONMENT.lex(self.source) if kind == "data")


def lint_prompt_template(
    name: str, source: str, count: Callable[[str], int], prefill_rate: float
) -> TemplateReport:
    """Which variables stand before text that changes less often, and the template reordered.

    Args:
        count: Tokens of a text.
        prefill_rate: Tokens a second.

    Raises:
        TemplateSyntaxError: it is no Jinja.
    """
    _ENVIRONMENT.parse(source)
    pieces = _ranked(_joined(list(_pieces(source))))
    sizes = [count(piece.text) for piece in pieces]
    moved = _misplaced(pieces, sizes, prefill_rate)
    first = next((p for p, piece in enumerate(pieces) if moved and piece.line == moved[0].line), 0)
    return TemplateReport(
        template=name,
        kind="prompt",
        share=sum(sizes[:first]) / max(sum(sizes), 1) if moved else 1.0,
        moved=moved,
        suggestion=_reordered(pieces) if moved else None,
    )


def _misplaced(pieces: list[Piece], sizes: list[int], prefill_rate: float) -> list[Moved]:
    """The pieces in front of some that change less often. O(pieces)."""
    tokens = [0] * len(CHANGES)
    names: list[set[str]] = [set() for _ in CHANGES]
    moved = []
    for piece, size in zip(reversed(pieces), reversed(sizes), strict=True):
        behind, values = sum(tokens[: piece.rank]), set[str]().union(*names[: piece.rank])
        # What a variable holds may be of any length: documents are seldom short.
        if behind >= ENOUGH or values:
            found = Moved(
                line=piece.line,
                names=piece.names,
                changes=CHANGES[piece.rank],
                tokens=behind,
                values=sorted(values),
                milliseconds=round(1000 * behind / prefill_rate, 1),
            )
            moved.append(found)
        tokens[piece.rank] += size
        names[piece.rank].update(piece.names)
    return moved[::-1]


def _pieces(source: str) -> Iterator[Piece]:
    """The template, cut where that leaves every statement whole."""
    held, began, depth, tag = "", 1, 0, ""
    for line, kind, value in _ENVIRONMENT.lex(source):
        if kind == "data" and depth == 0:
            for found in filter(lambda each: each[0], PIECE.finditer(value)):
                if not held:
                    began = line + value.count("\n", 0, found.start())
                held += found[0]
                if ENDS.search(held):
                    yield Piece(held, began)
                    held = ""
            continue
        if not held:
            began = line
        held += value
        if kind in ("raw_begin", "raw_end"):
            depth += 1 if kind == "raw_begin" else -1
        elif kind == "block_begin":
            tag = ""
        elif kind == "block_end":
            depth += _step(tag.strip())
            if depth == 0 and LINES_END.search(held[-TAG:]):
                yield Piece(held, began)
                held = ""
        else:
            tag += value
    if held:
        yield Piece(held, began)


def _step(tag: str) -> int:
    """What a statement does to the depth at which the next text stands."""
    return -1 if tag.startswith("end") else 1 if OPENING.match(tag) else 0


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Labels with what they name, and short texts with what stands before them."""
    found: list[Piece] = []
    label: Piece | None = None
    for piece in pieces:
        if label is not None:
            piece, label = Piece(label.source + piece.source, label.line), None
        short = len(piece.source.strip()) < SHORT and "{" not in piece.source
        if short and piece.source.rstrip().endswith((":", ">")):
            label = piece
        elif short and found:
            found[-1].source += piece.source
        else:
            found.append(piece)
    if label is not None and found:
        found[-1].source += label.source
    return found or pieces


def _ranked(pieces: list[Piece]) -> list[Piece]:
    for piece in pieces:
        if FIXED.search(piece.source):
            continue
        try:
            names = meta.find_undeclared_variables(_ENVIRONMENT.parse(piece.source))
        except TemplateSyntaxError:
            continue
        piece.names = sorted(names)
        piece.rank = max(map(_rank, names), default=0)
    return pieces


def _rank(name: str) -> int:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for changes, pattern in NAMES:
        if re.search(rf"(?:^|_)(?:{pattern})(?:_|$)", words):
            return CHANGES.index(changes)
    return len(CHANGES) - 1


def _reordered(pieces: list[Piece]) -> str:
    """What changes rarely first; of what changes as often, the order stays."""
    ordered = sorted(pieces, key=lambda piece: piece.rank)
    text = ""
    for piece in ordered:
        if text and not text[-1].isspace():
            text += "\n"
        text += piece.source
    return text.rstrip() + "\n"
