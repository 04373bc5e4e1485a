"""How a comparison runs from its command line, whatever it compares."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from radixserve.errors import RadixServeError

Numbers = dict[str, Any]


def stderr() -> Console:
    """Where people read; wide enough for tables where it is no terminal."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 160)


def attempt(run: Callable[[], None], results: Numbers, console: Console) -> None:
    """Call ``run``, which fills ``results``, and say in ``results["status"]`` how that ended.

    It is ``complete`` if all peers were measured. What was measured before an end of any kind, an
    interrupt included, stays in ``results``.
    """
    start = perf_counter()
    try:
        run()
        failed = [name for name, peer in results["peers"].items() if peer["error"]]
        results["status"] = f"without {', '.join(failed)}" if failed else "complete"
    except KeyboardInterrupt:
        results["status"] = "interrupted"
    except RadixServeError as error:
        results["status"] = str(error)
    except Exception as error:
        # Whatever it is, what was measured before it must not be lost.
        console.print_exception()
        results["status"] = repr(error)
    results["seconds"] = perf_counter() - start
    results["machine"]["load_at_end"] = os.getloadavg()


def write(results: Numbers, path: Path, picture: str, console: Console) -> None:
    """``path`` as JSON, and ``picture``, a module's ``draw``, beside it as PNG.

    A missing plotting library costs the picture.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"results: {path}")
    try:
        drawn = import_module(picture).draw(results, path.with_suffix(".png"))
    except ImportError as error:
        console.print(f"[yellow]no picture:[/] {error}; pip install matplotlib")
        return
    console.print(f"picture: {drawn}")


def leave(results: Numbers, shown: Sequence[str], **more: Any) -> NoReturn:
    """Print what is ``shown`` of ``results`` and ``more`` as a line of JSON, and exit."""
    line = {name: results[name] for name in ("status", *shown)} | more
    sys.stdout.write(json.dumps(line) + "\n")
    sys.exit({"complete": 0, "interrupted": 130}.get(results["status"], 1))


class Steps:
    """What is being done and how much is behind: a bar for a person who watches, else lines."""

    def __init__(self, console: Console):
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._bar = self._progress.add_task("", total=None)

    def __enter__(self) -> Steps:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def expect(self, count: int) -> None:
        self._progress.update(self._bar, total=count)

    def advance(self, count: int = 1) -> None:
        self._progress.advance(self._bar, count)

    def say(self, text: str) -> None:
        self._progress.update(self._bar, description=escape(text))
        if not self._console.is_terminal:
            self._console.print(escape(text))
