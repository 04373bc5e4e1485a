"""``radixserve chat``: a conversation in the terminal that shows what the cache saved."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from rich.console import Console

from radixserve.errors import RadixServeError, ServerError, printable
from radixserve.terminal.answer import (
    Clock,
    Measured,
    Message,
    Pieces,
    TokenCounts,
)

DEFAULT_URL = "http://127.0.0.1:8000"
PROMPT = "› "

HELP = """\
/new            forget the conversation, keep the system prompt
/system [TEXT]  show the system prompt, or set another one
/stats          what this chat has reused and computed so far
/help           this list
/exit           leave, as Ctrl-D does
Ctrl-C          stop the answer; once more: leave"""


@dataclass(frozen=True, slots=True)
class Voice:
    """Whoever answers."""

    name: str
    stream: Callable[[list[Message]], Pieces]
    cache_line: Callable[[], str] | None = None
    """The state of the cache in words, where it can be seen."""


class Chat:
    """A conversation, line by line.

    Args:
        read: Gives the next line; raises EOFError at the end, KeyboardInterrupt on Ctrl-C.
        out: Where answers go.
        notes: Where everything else goes.
        halt: Whether an answer that fails ends the chat with its error.
    """

    def __init__(
        self,
        voice: Voice,
        read: Callable[[], str],
        out: Console,
        notes: Console,
        *,
        system: str | None = None,
        halt: bool = False,
        clock: Clock = time.perf_counter,
    ):
        self._voice = voice
        self._read = read
        self._out = out
        self._notes = notes
        self._system = system
        self._halt = halt
        self._clock = clock
        self._messages: list[Message] = []
        self._totals = Totals()

    def run(self) -> None:
        """Talk until somebody leaves.

        Raises:
            RadixServeError: an answer failed, and ``halt`` is set.
        """
        while True:
            try:
                line = self._read().strip()
            except (EOFError, KeyboardInterrupt):
                self._notes.print()
                return
            if line in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                self._obey(line)
            elif line:
                self._answer(line)

    def _obey(self, line: str) -> None:
        command, _, text = line.partition(" ")
        match command:
            case "/new":
                self._messages.clear()
                self._note("A new conversation.")
            case "/system" if text.strip():
                self._system = text.strip()
                self._note("Set. It stands first, so the next answer computes everything anew.")
            case "/system":
                self._note(self._system or "There is no system prompt.")
            case "/stats":
                self._note(self._totals.line())
                if self._voice.cache_line is not None:
                    self._note(self._voice.cache_line())
            case "/help":
                self._note(HELP)
            case _:
                self._note(f"There is no {printable(command)}; /help lists what there is.")

    def _answer(self, line: str) -> None:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        question = {"role": "user", "content": line}
        measured = Measured(self._clock)
        stopped = False
        try:
            with contextlib.closing(
                self._voice.stream([*system, *self._messages, question])
            ) as pieces:
                for piece in pieces:
                    measured.take(piece)
                    self._out.out(printable(piece.thought), end="", style="dim", highlight=False)
                    self._out.out(printable(piece.text), end="", highlight=False)
        except KeyboardInterrupt:
            stopped = True
        except RadixServeError as error:
            self._out.out("")
            if self._halt:
                raise
            self._notes.print("Error:", style="bold red", end=" ")
            self._note(str(error), style=None)
            return
        self._out.out("")
        if measured.text:
            self._messages += [question, {"role": "assistant", "content": measured.text}]
        self._totals.count(measured)
        self._note(turn_line(measured, stopped=stopped))

    def _note(self, text: str, style: str | None = "dim") -> None:
        self._notes.print(text, style=style, markup=False, highlight=False, emoji=False)


class Totals:
    """What all answers of a chat took together."""

    def __init__(self) -> None:
        self._answers = 0
        self._counted: list[TokenCounts] = []

    def count(self, measured: Measured) -> None:
        self._answers += 1
        if measured.counts is not None:
            self._counted.append(measured.counts)

    def line(self) -> str:
        prompt = sum(counts.prompt for counts in self._counted)
        generated = sum(counts.completion for counts in self._counted)
        answers = "1 answer" if self._answers == 1 else f"{self._answers:,} answers"
        parts = [answers, f"{prompt:,} prompt tokens"]
        cached = [counts.cached for counts in self._counted if counts.cached is not None]
        if cached:
            share = sum(cached) / max(prompt, 1)
            parts[-1] += f", {sum(cached):,} of them reused ({share:.0%})"
        return ", ".join([*parts, f"{generated:,} tokens generated"])


def turn_line(measured: Measured, *, stopped: bool = False) -> str:
    """What one answer took, in words."""
    parts = []
    counts = measured.counts
    if counts is not None and counts.cached is not None:
        parts.append(f"reused {counts.cached:,} of {counts.prompt:,} prompt tokens")
        parts.append(f"computed {counts.prompt - counts.cached:,}")
    elif counts is not None:
        parts.append(f"{counts.prompt:,} prompt tokens, reuse not reported")
    if measured.first is not None:
        parts.append(f"first token in {measured.first:.2f} s")
    if measured.tokens_per_second is not None:
        parts.append(f"{measured.tokens_per_second:,.0f} tok/s")
    if stopped:
        parts.append("stopped")
    elif measured.finish == "length":
        parts.append("cut at the token limit")
    return ", ".join(parts) or "no answer"


def chat(
    url: Annotated[
        str | None, typer.Option(help=f"A server. Default: {DEFAULT_URL}, if one is there.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A directory, a GGUF file or a Hugging Face id, run in this process; with --url "
            "the name of one of the server's models."
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy.", min=0.0, max=2.0)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest answer, in tokens.", min=1)
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None,
    salt: Annotated[
        str | None, typer.Option(help="Share cached prefixes only with those who know this word.")
    ] = None,
) -> None:
    """Chat in the terminal, and see what the prefix cache saves.

    Asks a server, or a model in this process. Each answer is followed by how many tokens of its
    prompt were reused and computed, and how soon its first token came. /help lists the commands.
    """
    piped = not sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not piped:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  gives input() its line editing and history
    colours: Literal["auto"] | None = None if piped else "auto"
    out = Console(highlight=False, soft_wrap=True, color_system=colours)
    # Whoever pipes questions in wants answers alone on the other side.
    notes = Console(highlight=False, soft_wrap=True, color_system=colours, stderr=piped)
    settings = {"temperature": temperature, "max_tokens": max_tokens, "salt": salt}
    # A second Ctrl-C may come at any moment, also while the first is obeyed.
    with contextlib.suppress(KeyboardInterrupt), _voice(url, model, api_key, settings, notes) as v:
        notes.print(f"{printable(v.name)}. /help lists the commands, Ctrl-D leaves.", markup=False)
        read = functools.partial(input, "" if piped else PROMPT)
        Chat(v, read, out, notes, system=system, halt=piped).run()


@contextlib.contextmanager
def _voice(
    url: str | None,
    model: str | None,
    api_key: str | None,
    settings: dict[str, float | int | str | None],
    notes: Console,
) -> Iterator[Voice]:
    """The server if there is one, else a model in this process.

    Raises:
        RadixServeError: neither can be had.
    """
    if url is not None or model is None:
        from radixserve.terminal.client import Client

        with contextlib.closing(Client(url or DEFAULT_URL, model=model, api_key=api_key)) as client:
            try:
                voice = Voice(
                    f"{client.model} at {client.url}",
                    functools.partial(client.stream, **settings),  # type: ignore[arg-type]
                )
            except ServerError as error:
                if url is not None:
                    raise
                notes.print(str(error), style="dim", markup=False)
                notes.print("Running the demo model in this process instead.")
            else:
                yield voice
                return
    from radixserve.terminal.local import InProcess

    with InProcess(model, **settings) as engine:  # type: ignore[arg-type]
        yield Voice(f"{engine.name} in this process", engine.stream, engine.cache_line)
