"""Python's f-strings and format strings as Jinja, and back, so that one reading serves all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from string import Formatter

from msgspec.structs import replace

from radixserve.lint.report import Moved, TemplateReport

LEAST = 200
"""Characters that a string in a program has to be a prompt; others are messages and names."""
FIELD = re.compile(r"(?:[A-Za-z_][\w.\[\]]*)?")
"""What stands in the braces of a format string, and not in those of JSON or of Jinja."""
WORD = re.compile(r"[A-Za-z_]\w*")
NAMED = re.compile(r"\{\{ (\w+) \}\}")
BRACES, WRITTEN = str.maketrans("{}", "\1\2"), {1: "{{", 2: "}}"}
"""Braces that are text, which Jinja must not see, and as Python writes them."""


@dataclass(slots=True)
class Formatted:
    """A string with fields, as Jinja."""

    line: int = 1
    """Where it begins in its file."""
    fields: dict[str, str] = field(default_factory=dict)
    """As they are written, braces included, by their names in Jinja."""
    expressions: dict[str, str] = field(default_factory=dict)
    """What is in them."""
    _parts: list[str] = field(default_factory=list)
    """Of the Jinja."""
    _names: dict[str, str] = field(default_factory=dict)
    """In Jinja, of fields as they are written."""
    _numbers: dict[str, int] = field(default_factory=dict)
    """Behind the last name with the same beginning."""

    @property
    def jinja(self) -> str:
        """O(length)."""
        return "".join(self._parts)

    def text(self, text: str) -> None:
        """Append what is the same in every prompt."""
        self._parts.append(text.translate(BRACES))

    def value(self, expression: str, written: str) -> None:
        """Append a field."""
        name = self._names.get(written)
        if name is None:
            name = stem = "_".join(WORD.findall(expression)) or "field"
            while name in self.fields:
                number = self._numbers[stem] = self._numbers.get(stem, 1) + 1
                name = f"{stem}_{number}"
            self._names[written] = name
            self.fields[name], self.expressions[name] = written, expression
        self._parts.append(f"{{{{ {name} }}}}")

    def report(self, found: TemplateReport) -> TemplateReport:
        """What was ``found`` of the Jinja, in the words of the string."""
        suggestion = found.suggestion
        if suggestion is not None:
            suggestion = NAMED.sub(lambda each: self.fields[each[1]], suggestion).translate(WRITTEN)
        return replace(found, moved=list(map(self._moved, found.moved)), suggestion=suggestion)

    def _moved(self, moved: Moved) -> Moved:
        own = [[self.expressions[name] for name in names] for names in (moved.names, moved.values)]
        return replace(moved, line=moved.line + self.line - 1, names=own[0], values=own[1])


def of_format_string(text: str) -> Formatted | None:
    """``text`` with its ``{fields}``; None if it has none, or is no format string."""
    found = Formatted()
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            found.text(literal)
            if name is None:
                continue
            if not FIELD.fullmatch(name):
                return None
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            found.value(name, f"{{{written}}}")
    except ValueError:
        return None
    return found if found.fields else None


def of_program(source: str) -> Iterator[Formatted]:
    """The f-strings and format strings of a Python program that are long enough to be prompts.

    Raises:
        ValueError: it is no Python, or nested too deeply.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:  # either, by the depth at which it gives up
        raise ValueError("it is nested too deeply") from error
    inside = {id(each) for node in nodes if isinstance(node, ast.JoinedStr) for each in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            found: Formatted | None = _of_f_string(node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            long = len(node.value) >= LEAST and id(node) not in inside
            found = of_format_string(node.value) if long else None
        else:
            continue
        if found is not None and found.fields and len(NAMED.sub("", found.jinja)) >= LEAST:
            found.line = node.lineno
            yield found


def _of_f_string(values: Iterable[ast.expr]) -> Formatted:
    found = Formatted()
    for each in values:
        if isinstance(each, ast.Constant):
            found.text(str(each.value))
        elif isinstance(each, ast.FormattedValue):
            found.value(ast.unparse(each.value), _written(each))
    return found


def _written(field: ast.expr) -> str:
    """A field of an f-string, or a text in its format."""
    if not isinstance(field, ast.FormattedValue):
        return str(field.value) if isinstance(field, ast.Constant) else ast.unparse(field)
    conversion = f"!{chr(field.conversion)}" if field.conversion > 0 else ""
    spec = ""
    if isinstance(field.format_spec, ast.JoinedStr):
        spec = ":" + "".join(map(_written, field.format_spec.values))
    return f"{{{ast.unparse(field.value)}{conversion}{spec}}}"
