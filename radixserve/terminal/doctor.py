"""``radixserve doctor``: what a model could run with here, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from radixserve.model.startup import Check

STYLES = {"ok": "green", "missing": "bold red", "not needed": "dim"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Say what there is on this machine, what is missing, and what to do about it.

    Ends with status 1 if something is missing. The native kernels are compiled if they never were.
    """
    from radixserve.model.facts import gather, reach_tools
    from radixserve.model.startup import checks

    reach_tools()
    lines = checks(gather())
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(lines)).decode())
    else:
        show(lines, Console(highlight=False, soft_wrap=True))
    if any(line.state == "missing" for line in lines):
        raise typer.Exit(1)


def show(lines: list[Check], console: Console) -> None:
    """One line each, and below what is missing its remedy."""
    name = max(len(line.name) for line in lines)
    state = max(map(len, STYLES))
    for line in lines:
        said = f"[{STYLES[line.state]}]{line.state:{state}}[/]"
        console.print(f"{line.name:{name}}  {said}  {escape(line.found)}")
        if line.remedy:
            console.print(f"{'':{name + state + 4}}[bold]{escape(line.remedy)}[/]")
