"""``radixserve lint``: what keeps prompts from being found again, in logs and in templates."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.terminal.sizes import finite

if TYPE_CHECKING:
    from radixserve.explain.divergence import Divergence
    from radixserve.lint.report import LogReport, Report, TemplateReport
    from radixserve.text.tokenizer import Tokenizer

PREFILL_RATE = 5000
"""Tokens a second: about what a model of 8 billion parameters computes on one small GPU."""
SPOTS, HEADS = 10, 5
"""That are shown to people."""
LEAST = 0.001
"""Share of all tokens that a spot has to cost, to be shown to people."""
OVER, PARTIAL = 1, 3
"""Exit codes; 2 is that of bad usage."""


def lint(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Logs of requests, one JSON object a line (.gz too), or templates (.jinja, .j2).",
            exists=True,
            dir_okay=False,
            readable=True,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Count in this model's tokens, by its template, and check that as well."),
    ] = None,
    page_size: Annotated[
        int, typer.Option(min=1, help="Tokens of a page of the cache.")
    ] = EngineConfig().page_size,
    prefill_rate: Annotated[
        float,
        typer.Option(callback=finite, min=1, help="Tokens of a prompt that are computed a second."),
    ] = PREFILL_RATE,
    fail_under: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            min=0,
            max=100,
            metavar="PERCENT",
            help="Exit with 1 where less than this is shared.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Find what keeps prompts from being found again: in logs, or in templates.

    Needs no server. Of logs: how many tokens begin as earlier prompts did, what varies in front of
    text that does not and what that costs, hit rates over sizes of the cache, and a template to
    try. Of chat templates: whether each turn's prompt begins the next one's.

    Without --model, four bytes of UTF-8 count as a token.

    Exit codes: 0 all is well, 1 less than --fail-under is shared, 2 bad usage or nothing that can
    be read, 3 some lines or files were left out.
    """
    if not files and model is None:
        raise typer.BadParameter("name a log, a template or --model", param_hint="FILES")
    from radixserve.lint.check import Checker

    files = files or []
    tokenizer = None if model is None else _tokenizer(model)
    checker = Checker(tokenizer, model or "", page_size, prefill_rate)
    with Bars(sum(file.stat().st_size for file in files)) as bars:
        report = checker.check(files, bars)
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _show(report, Console(highlight=False, soft_wrap=True))
    _tell_faults(report, Console(stderr=True, highlight=False, soft_wrap=True))
    raise typer.Exit(_code(report, fail_under))


def _tokenizer(model: str) -> Tokenizer:
    from radixserve.text.tokenizer import Tokenizer

    try:
        directory = Path(model).expanduser()
        if not (directory / "tokenizer.json").is_file():
            from radixserve.engine.model_files import prepare

            directory = prepare(EngineConfig(model=model, load_format="dummy")).tokenizer
        return Tokenizer.load(directory)
    except (ConfigError, ModelError) as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error


class Bars(AbstractContextManager["Bars"]):
    """How far it is, where somebody looks."""

    def __init__(self, size: int):
        self._read = tqdm(total=size, unit="B", unit_scale=True, desc="reading", disable=None)
        self._replayed: Any = None

    def read(self, size: int) -> None:
        self._read.update(size)

    def replayed(self, number: int) -> None:
        if self._replayed is None:
            self._replayed = tqdm(unit=" caches", desc="replaying", disable=None)
        self._replayed.update(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._read.close()
        if self._replayed is not None:
            self._replayed.close()


def _code(report: Report, fail_under: float | None) -> int:
    shares = [template.share for template in report.templates]
    if report.logs is not None:
        shares.append(report.logs.shared.share)
    if not shares:
        return 2
    if fail_under is not None and min(shares) < fail_under / 100:
        return OVER
    return PARTIAL if report.left_out else 0


def _tell_faults(report: Report, console: Console) -> None:
    for fault in report.faults:
        console.print(f"[yellow]left out:[/] {escape(fault)}")
    if more := report.left_out - len(report.faults):
        console.print(f"[yellow]left out:[/] {more} more")
    if report.logs is None and not report.templates:
        console.print(
            "[bold red]Error:[/] nothing could be read: a log has one JSON object a line."
        )


def _show(report: Report, console: Console) -> None:
    if report.logs is not None:
        _show_logs(report.logs, console)
    for template in report.templates:
        _show_template(template, console)


def _show_logs(logs: LogReport, console: Console) -> None:
    shared = logs.shared
    console.print(
        f"{logs.requests:,} requests, {logs.tokens:,} tokens ({escape(logs.counted)})\n"
        f"[bold]{shared.share:.1%}[/] of them begin as an earlier prompt did; "
        f"{shared.at_boundaries / max(logs.tokens, 1):.1%} are in pages of {shared.page_size} that "
        "only begin alike, which a cache of whole pages computes again"
    )
    _show_spots(logs, console)
    _show_hit_rates(logs, console)
    if logs.beginnings > 1:
        console.print(
            f"{logs.beginnings} different beginnings (tools and system prompt), among them:"
        )
        for head in logs.heads[:HEADS]:
            parted = head.parts_from_last
            why = f"; from the one before by {_what(parted)}" if parted else ""
            model = f"{head.model}, " if head.model else ""
            line = f"  {head.hash}: {model}{head.requests:,} requests from {head.first} on{why}"
            console.print(line, markup=False)
    if logs.suggestion is not None:
        console.print("A template to try (whole in --json):")
        if logs.suggestion.tools:
            console.print(f"  tools: {logs.suggestion.tools}")
        for message in logs.suggestion.messages:
            text = _short(message["content"])
            console.print(f"  {message['role']}: {text}", markup=False)


def _show_spots(logs: LogReport, console: Console) -> None:
    spots = [spot for spot in logs.spots if spot.tokens >= LEAST * logs.tokens][:SPOTS]
    if not spots:
        return
    console.print(
        "What varies in front of text that does not "
        f"(milliseconds at {logs.prefill_rate:g} tokens computed a second):"
    )
    for spot in spots:
        what = "ids only" if spot.ids_only else spot.guess.replace("_", " ")
        console.print(
            f"  [bold]{what}[/] at {escape(spot.pointer)}: {spot.tokens:,} tokens in "
            f"{spot.requests:,} requests, {spot.milliseconds:,.0f} ms"
        )
        example = f"    {spot.example.earlier!r} became {spot.example.later!r} in {spot.later}"
        console.print(example, markup=False)
        console.print(f"    {spot.advice}", markup=False)


def _what(divergence: Divergence) -> str:
    return f"{divergence.guess.replace('_', ' ')} at {divergence.pointer}"


def _short(text: str) -> str:
    return text if len(text) <= 240 else f"{text[:160]} … ({len(text):,} characters) … {text[-60:]}"


def _show_hit_rates(logs: LogReport, console: Console) -> None:
    table = Table(title="Predicted share of tokens reused", title_justify="left")
    for name in ("cache, tokens", "least recently used", "optimum"):
        table.add_column(name, justify="right")
    rates = logs.hit_rates
    for row in zip(rates.tokens, rates.least_recently_used, rates.optimum, strict=True):
        table.add_row(f"{row[0]:,}", f"{row[1]:.1%}", f"{row[2]:.1%}")
    console.print(table, soft_wrap=False)


def _show_template(template: TemplateReport, console: Console) -> None:
    name = escape(template.template)
    if template.kind == "chat":
        console.print(f"[bold]{name}[/]: each turn keeps at least {template.share:.1%} of the last")
        for turn in template.turns:
            if turn.common < turn.tokens:
                console.print(
                    f"  [yellow]{turn.conversation}[/]: the next turn keeps {turn.common:,} of "
                    f"{turn.tokens:,} tokens; {escape(repr(turn.earlier))} became "
                    f"{escape(repr(turn.later))}"
                )
            elif not turn.answer_kept:
                console.print(f"  {turn.conversation}: the next turn leaves out what was written")
        if template.clock:
            console.print("  [yellow]it writes the date: every prompt changes each day[/]")
        return
    console.print(f"[bold]{name}[/]: {template.share:.1%} of its text is in front of what varies")
    for moved in template.moved:
        values = f" and what is in {escape(', '.join(moved.values))}" if moved.values else ""
        console.print(
            f"  [yellow]line {moved.line}[/]: {escape(', '.join(moved.names))} may change with "
            f"every {moved.changes}; {moved.tokens:,} tokens{values} behind it do not "
            f"({moved.milliseconds:,.0f} ms{', values not counted' if values else ''})"
        )
    if template.suggestion is not None:
        console.print("A template to try:")
        console.print(template.suggestion, markup=False)
