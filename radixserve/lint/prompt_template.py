"""Whether a prompt template puts what varies behind what does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from jinja2 import Environment, TemplateSyntaxError

from radixserve.lint.report import Moved, TemplateReport
from radixserve.lint.rewrite import PIECE
from radixserve.lint.spans import CHANGES, MOST_NAMES, Span, Writer

SHORT = 40
"""Characters of a text that goes with its neighbour: a label, or a mark for the answer."""
ENOUGH = 16
"""Tokens of text behind something that varies, from which on it is worth a word; or, in a template
that has little text, more than half of it."""
MARKS = (":", ">")
"""What a label ends with."""
JOINTS = " \t\r\n,.;:-"
"""What joins a value with a text behind it."""
SENTENCE = re.compile(r"\w.*[.!?]\s*\Z", re.DOTALL)
"""A text that says something on its own, unlike a mark or the head of a table."""
ENDS = re.compile(r"(?:[.!?]\s+|\n)\Z")
"""What a piece may end with, in front of another one."""
LINES_END = re.compile(r"(?:[.!?]\s+|\n)\{%[-+]?\s*end\w+\s*[-+]?%\}\Z")
"""The end of a statement around whole lines: a piece, whatever stands right behind it."""
TAG = 64
"""Characters at the end of a text that are looked at for both."""
OPENING = re.compile(r"(for|if|macro|call|filter|block|with|raw|autoescape)\b|set\b[^=]*$")
FIXED = re.compile(r"\{%[-+]?\s*(set|macro|import|from|extends|include)\b")
"""What has to stay in front of its use."""
LEADING = re.compile(r"\s*\{\{")
"""A value in front of a piece's text."""

ENVIRONMENT = Environment(
    extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"],
    keep_trailing_newline=True,
    autoescape=False,
)


@dataclass(slots=True)
class Piece:
    """A sentence, a line, or a statement with all inside of it."""

    source: str
    line: int
    spans: list[Span] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Index into ``CHANGES``: of what changes most often in it. O(spans)."""
        return max((span.rank for span in self.spans), default=0)


class Place(NamedTuple):
    """A span of a piece."""

    piece: Piece
    span: Span
    tokens: int
    rank: int
    """A label changes with what it labels."""


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
    ENVIRONMENT.parse(source)
    pieces = _written(source)
    places, enough = _places(pieces, count)
    moved, first = _misplaced(places, enough, prefill_rate)
    whole = sum(place.tokens for place in places)
    return TemplateReport(
        template=name,
        kind="prompt",
        share=_in_front(places, first) / max(whole, 1) if moved else 1.0,
        moved=moved,
        suggestion=_reordered(pieces, source, enough, count) if moved else None,
    )


def _written(source: str) -> list[Piece]:
    """The pieces, with what they write."""
    pieces, writer = _joined(list(_pieces(source))), Writer()
    try:
        for piece in pieces:
            piece.spans = writer.spans(ENVIRONMENT.parse(piece.source))
    except TemplateSyntaxError:
        # A statement that no end was found for: then all is one piece.
        return [Piece(source, 1, Writer().spans(ENVIRONMENT.parse(source)))]
    return pieces


def _places(pieces: list[Piece], count: Callable[[str], int]) -> tuple[list[Place], int]:
    """All spans, and how many tokens of text are enough to be told of."""
    sizes = [[count(span.text) for span in piece.spans] for piece in pieces]
    enough = min(ENOUGH, sum(map(sum, sizes)) // 2 + 1)
    places = []
    for piece, each in zip(pieces, sizes, strict=True):
        whole = piece.rank
        last = max((place for place, span in enumerate(piece.spans) if span.names), default=-1)
        for place, (span, size) in enumerate(zip(piece.spans, each, strict=True)):
            least = ENOUGH if place < last else enough
            label = not span.names and (size < least or _is_label(span.text))
            places.append(Place(piece, span, size, whole if label else span.rank))
    return places, enough


def _is_label(text: str) -> bool:
    """Whether it is short, and names what stands behind it, or has no words."""
    short = text.strip()
    return len(short) < SHORT and (short.endswith(MARKS) or not any(map(str.isalnum, short)))


def _misplaced(places: list[Place], enough: int, prefill_rate: float) -> tuple[list[Moved], int]:
    """What stands in front of something that changes less often, once for each piece, and the index
    of the first. O(places)."""
    tokens = [0] * len(CHANGES)
    names: list[set[str]] = [set() for _ in CHANGES]
    moved: dict[int, Moved] = {}
    first = 0
    for index in reversed(range(len(places))):
        piece, span, size, rank = places[index]
        behind, values = sum(tokens[:rank]), set[str]().union(*names[:rank])
        # What a variable holds may be of any length: documents are seldom short.
        if span.names and (behind >= enough or values):
            first = index
            there = moved.get(id(piece))
            also, worse = (there.names, CHANGES.index(there.changes)) if there else ([], 0)
            moved[id(piece)] = Moved(
                line=piece.line,
                names=sorted({*span.names, *also})[:MOST_NAMES],
                changes=CHANGES[max(rank, worse)],
                tokens=behind,
                values=sorted(values)[:MOST_NAMES],
                milliseconds=round(1000 * behind / prefill_rate, 1),
            )
        tokens[rank] += size
        if len(names[rank]) < MOST_NAMES:
            names[rank] |= span.names
    return list(moved.values())[::-1], first


def _in_front(places: list[Place], first: int) -> int:
    """Tokens of text in front of a place; labels in the same piece go with it."""
    piece, whole = places[first].piece, places[first].piece.rank
    return sum(
        place.tokens
        for place in places[:first]
        if place.piece is not piece or (place.rank < whole and place.tokens >= ENOUGH)
    )


def _pieces(source: str) -> Iterator[Piece]:
    """The template, cut where that leaves every statement whole."""
    held, began, depth, tag = "", 1, 0, ""
    for line, kind, value in ENVIRONMENT.lex(source):
        if kind == "data" and depth == 0:
            at, here = 0, line
            for found in filter(lambda each: each[0], PIECE.finditer(value)):
                if not held:
                    here += value.count("\n", at, found.start())
                    at, began = found.start(), here
                held += found[0]
                if ENDS.search(held[-TAG:]):
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
    """Labels with what they name, and short texts with what stands before them, but for sentences
    behind a value, which may change less often."""
    found: list[list[Piece]] = []
    """Those that are one."""
    varying = 0
    """The last of them that is more than text."""
    label: Piece | None = None
    for piece in pieces:
        if label is not None:
            piece, label = Piece(label.source + piece.source, label.line), None
        short = len(piece.source.strip()) < SHORT and "{" not in piece.source
        if short and piece.source.rstrip().endswith(MARKS):
            label = piece
        elif short and found and not (varying == len(found) and SENTENCE.search(piece.source)):
            found[-1].append(piece)
        else:
            found.append([piece])
            varying = len(found) if "{" in piece.source else varying
    if label is not None and found:
        # A mark for the answer, which goes behind what is asked.
        found[varying - 1].append(label)
    return [Piece("".join(p.source for p in each), each[0].line) for each in found] or pieces


def _reordered(
    pieces: list[Piece], source: str, enough: int, count: Callable[[str], int]
) -> str | None:
    """What changes rarely first; of what changes as often, the order stays. None if that changes
    nothing, since what varies stands within a sentence."""
    cut = [each for piece in pieces for each in _without_head(piece, enough, count)]
    text = ""
    for piece in sorted(cut, key=lambda each: 0 if FIXED.search(each.source) else each.rank):
        if text and not text[-1].isspace():
            text += "\n"
        text += piece.source
    text = text.rstrip() + "\n"
    return None if text.strip() == source.strip() else text


def _without_head(piece: Piece, enough: int, count: Callable[[str], int]) -> list[Piece]:
    """A piece, in two if it begins with a value and is text enough behind it."""
    found = list(ENVIRONMENT.lex(piece.source)) if LEADING.match(piece.source) else []
    end = next((index for index, part in enumerate(found) if part[1] == "variable_end"), None)
    if end is None or len(piece.spans) < 2 or not piece.spans[0].names:
        return [piece]
    rest = piece.spans[1:]
    if max(span.rank for span in rest) >= piece.spans[0].rank or count(rest[0].text) < enough:
        return [piece]
    head, tail = (
        "".join(value for _, _, value in part) for part in (found[: end + 1], found[end + 1 :])
    )
    return [
        Piece(head + "\n", piece.line, piece.spans[:1]),
        Piece(tail.lstrip(JOINTS), piece.line, rest),
    ]
