"""Logs and templates in, a report out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from jinja2 import TemplateError

from radixserve.bounded import bounded
from radixserve.errors import InvalidRequestError, ModelError, what_is_wrong
from radixserve.lint.analysis import Analysis, FullError
from radixserve.lint.chat_template import (
    Prompts,
    is_chat_template,
    lint_chat_template,
    prompts_of,
)
from radixserve.lint.format_string import LEAST, Formatted, of_format_string, of_program
from radixserve.lint.logs import Faults, read
from radixserve.lint.prompt_template import lint_prompt_template
from radixserve.lint.report import Report, TemplateReport
from radixserve.lint.tokens import BYTES, About, Exact
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count

JINJA, TEXTS, PROGRAMS = (".jinja", ".jinja2", ".j2"), (".txt", ".md", ".prompt"), (".py",)
"""How the names of templates end; everything else is a log."""
FIELD = re.compile(r"\{[{%]")
"""Of a template in Jinja or its like."""
REQUEST = re.compile(rb"\s*\[?\s*\{\s*\"")
"""How a log begins, whatever its name."""
HEAD = 2**10
"""Bytes of a file that are looked at to tell a log."""
LARGEST = 2**22
"""Bytes of a template."""
SECONDS, MEMORY = 10.0, 2**30
"""Of a processor, and bytes, that rendering sample conversations may take."""
SPECIALS = {name: f"<{name}>" for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
"""For templates without a model."""


class Progress(Protocol):
    """Told how far it is."""

    def read(self, size: int) -> None:
        """So many bytes of the files more."""

    def replayed(self, number: int) -> None:
        """So many caches more."""


@dataclass(frozen=True, slots=True)
class Checker:
    """What is checked against.

    Args:
        tokenizer: A model's, and its template; None counts characters.
        name: Of that model.
        page_size: Tokens.
        prefill_rate: Tokens a second.
    """

    tokenizer: Tokenizer | None
    name: str
    page_size: int
    prefill_rate: float

    def check(self, files: Sequence[Path], progress: Progress) -> Report:
        """What there is to say of ``files``, and of the model's own template if there is one.
        What cannot be read is told in the report."""
        faults = Faults()
        tokens = About() if self.tokenizer is None else Exact(self.tokenizer, self.name)
        analysis = Analysis(tokens, self.page_size)
        templates = []
        if self.tokenizer is not None and self.tokenizer.has_chat_template:
            templates += self._of_model(self.tokenizer, faults)
        for file in files:
            if _is_template(file):
                templates += self._template(file, faults)
                progress.read(file.stat().st_size)
            else:
                _log(file, analysis, faults, progress.read)
        logs = None
        if analysis.requests:
            logs = analysis.report(self.prefill_rate, progress.replayed)
        return Report(logs=logs, templates=templates, left_out=faults.count, faults=faults.told)

    def _of_model(self, tokenizer: Tokenizer, faults: Faults) -> list[TemplateReport]:
        source = tokenizer.chat_template_source
        try:
            prompts = prompts_of(tokenizer.render_chat)
        except InvalidRequestError as error:
            faults.add(f"the chat template of {self.name}", error)
            return []
        return [lint_chat_template(self.name, source, prompts, self._count)]

    def _template(self, file: Path, faults: Faults) -> list[TemplateReport]:
        try:
            source = _text(file)
            if file.suffix in PROGRAMS:
                return self._program(file, source)
            formatted = of_format_string(source) if file.suffix in TEXTS else None
            if formatted is not None:
                return [self._formatted(str(file), formatted)]
            if file.suffix in TEXTS and not FIELD.search(source):
                raise ValueError("it has no field such as {question} or {{ question }}")
            if is_chat_template(source):
                return [lint_chat_template(str(file), source, _prompts(source), self._count)]
            return [lint_prompt_template(str(file), source, self._count, self.prefill_rate)]
        except (ModelError, TemplateError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            place = f"{file}, line {line}" if line else str(file)
            faults.add(place, f"no template: {what_is_wrong(error)}")
        except OSError as error:
            faults.add(str(file), f"cannot be read: {error.strerror or error}")
        return []

    def _program(self, file: Path, source: str) -> list[TemplateReport]:
        """Raises:
        ValueError: there is no template in it.
        """
        found = [self._formatted(f"{file}:{each.line}", each) for each in of_program(source)]
        if not found:
            raise ValueError(f"no string of {LEAST} characters in it has fields")
        return found

    def _formatted(self, name: str, formatted: Formatted) -> TemplateReport:
        return formatted.report(
            lint_prompt_template(name, formatted.jinja, self._count, self.prefill_rate)
        )

    def _count(self, text: str) -> int:
        if self.tokenizer is None:
            return -(-len(text.encode(errors="replace")) // BYTES)
        return count(self.tokenizer.encode(text, add_special_tokens=False))


def _prompts(source: str) -> Prompts:
    """Raises:
    ValueError: the template cannot be rendered; the message says why.
    """
    # It may loop for ever, or fill the memory.
    result = bounded(lambda: _rendered(source), seconds=SECONDS, memory=MEMORY)
    if result is None:
        raise ValueError("it takes too long to render, or too much memory")
    found = msgspec.msgpack.decode(result, type=Prompts | str)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _rendered(source: str) -> bytes:
    """The prompts, or what is wrong."""
    found: Prompts | str
    try:
        found = prompts_of(ChatTemplate(source, SPECIALS).render)
    except (ModelError, InvalidRequestError, RecursionError) as error:
        found = what_is_wrong(error)
    return msgspec.msgpack.encode(found)


def _is_template(file: Path) -> bool:
    if file.suffix not in TEXTS:
        return file.suffix in JINJA + PROGRAMS
    try:
        with file.open("rb") as opened:
            return REQUEST.match(opened.read(HEAD)) is None
    except OSError:
        return True


def _text(file: Path) -> str:
    """Raises:
    ValueError: it is too large, empty, or no text.
    """
    with file.open("rb") as opened:
        raw = opened.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    if not raw.strip():
        raise ValueError("it is empty")
    return raw.decode("utf-8")


def _log(file: Path, analysis: Analysis, faults: Faults, progress: Callable[[int], None]) -> None:
    for request in read(file, faults, progress):
        try:
            analysis.add(request)
        except (ValueError, RecursionError) as error:
            faults.add(request.place, error)
        except FullError:
            faults.add(
                request.place, "no more can be kept: this request and what follows is not counted"
            )
            return
