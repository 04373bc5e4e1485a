"""``radixserve probe``: does a server's prefix cache work, as its clients see it?"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from radixserve.errors import ServerError, printable
from radixserve.terminal.answer import Clock, Measured, Message
from radixserve.terminal.verdict import Kind, Sample, Verdict, judge, middle

if TYPE_CHECKING:
    from radixserve.terminal.client import Client

# Each is one token, with the space in front of it, in most vocabularies.
WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name"
)

LABELS: dict[Kind, str] = {
    "cold": "never sent before",
    "warm": "same beginning, another end",
    "control": "same text, another beginning",
    "short": "a few words",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` shows. Times are in seconds."""

    url: str
    model: str
    verdict: Verdict
    sentence: str
    samples: list[Sample]


def prompts(words: int, rounds: int, seed: str) -> Iterator[tuple[Kind, list[Message]]]:
    """The prompts to send, in order; ``seed`` makes them unlike those of any other run.

    Each round has one of every kind, so that a server that gets slower or faster meanwhile does
    so for all kinds alike. Rounds differ in length, which shows the size of blocks.
    """
    dice = random.Random(seed)
    for number in range(rounds):
        text = " ".join(dice.choices(WORDS.split(), k=words + 37 * number))
        beginning, another = (f"{dice.getrandbits(64):016x}: {text}." for _ in range(2))
        yield "short", _message(f"{dice.getrandbits(64):016x}: say one word.")
        yield "cold", _message(f"{beginning} Say the first of these words.")
        yield "warm", _message(f"{beginning} Name the last word.")
        yield "control", _message(f"{another} Name the last word.")


def measure(
    client: Client,
    asked: Iterator[tuple[Kind, list[Message]]],
    *,
    clock: Clock = time.perf_counter,
    announce: Callable[[Kind], None] = lambda kind: None,
) -> list[Sample]:
    """Send the prompts one by one.

    Raises:
        ServerError: the server cannot be asked, or gives no token.
    """
    # The first request opens the connection and wakes up what sleeps: it is not counted.
    for _ in client.stream(_message("Say one word."), max_tokens=1):
        pass
    samples = []
    for kind, messages in asked:
        announce(kind)
        measured = Measured(clock)
        for piece in client.stream(messages, max_tokens=1):
            measured.take(piece)
        if measured.first is None:
            raise ServerError(f"{client.url} ended its answer without a token: nothing to time.")
        counts = measured.counts
        samples.append(
            Sample(
                kind=kind,
                first=measured.first,
                prompt=counts.prompt if counts else None,
                cached=counts.cached if counts else None,
            )
        )
    return samples


def probe(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The server, for example http://127.0.0.1:8000.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Default: the first that the server lists.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None,
    tokens: Annotated[int, typer.Option(help="Length of the long prompts, about.", min=16)] = 1500,
    repeat: Annotated[int, typer.Option(help="Rounds; each sends three long prompts.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Find out whether a server's prefix cache works, from outside.

    Works with any OpenAI-compatible server. Sends long prompts that it has never seen, then their
    beginnings again, and compares the times to the first token with what it reports.
    """
    from radixserve.terminal.client import Client

    progress = Console(stderr=True)
    with contextlib.closing(Client(url, model=model, api_key=api_key)) as client:
        with progress.status(f"Asking {client.model}", spinner="line") as status:
            samples = measure(
                client,
                prompts(tokens, repeat, secrets.token_hex(16)),
                announce=lambda kind: status.update(f"Sending a prompt: {LABELS[kind]}"),
            )
        verdict = judge(samples)
        report = Report(
            url=client.url,
            model=client.model,
            verdict=verdict,
            sentence=verdict.sentence,
            samples=samples,
        )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(report, Console(highlight=False, soft_wrap=True))


def show(report: Report, console: Console) -> None:
    """The report for people: a table, and what it says in words."""
    samples, verdict = report.samples, report.verdict
    table = Table("prompt", box=None, header_style="dim", pad_edge=False)
    for name in ("first token", "prompt tokens", "reused"):
        table.add_column(name, justify="right")
    for kind, label in LABELS.items():
        first = median(sample.first for sample in samples if sample.kind == kind)
        counts = (middle(samples, kind, "prompt"), middle(samples, kind, "cached"))
        shown = ["not reported" if each is None else f"{each:,}" for each in counts]
        table.add_row(f"{kind}: {label}", f"{first * 1000:,.0f} ms", *shown)
    rounds = sum(sample.kind == "warm" for sample in samples)
    console.print(
        f"{printable(report.model)} at {report.url}, medians of {rounds}:",
        markup=False,
        emoji=False,
    )
    console.print(table)
    console.print(f"[bold]{verdict.sentence}[/] {_details(verdict)}".strip())
    for note in verdict.notes:
        console.print(note)


def _details(verdict: Verdict) -> str:
    parts = []
    if verdict.verdict.startswith("works"):
        parts.append(f"First token {verdict.speedup:.1f} times sooner.")
    if verdict.block == 1:
        parts.append("It reuses to the token.")
    elif verdict.block is not None:
        parts.append(f"It reuses in blocks of {verdict.block:,} tokens, or a divisor of that.")
    return " ".join(parts)


def _message(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
