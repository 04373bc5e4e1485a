"""Asking ``radixserve plan`` and reading its answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from radixserve.errors import ConfigError, RadixServeError
from radixserve.terminal.plan import plan

LLAMA_8B = "--layers 32 --hidden-size 4096 --heads 32 --kv-heads 8"
LLAMA_8B_FULL = f"{LLAMA_8B} --vocab-size 128256 --intermediate-size 14336"
LLAMA_70B = "--layers 80 --hidden-size 8192 --heads 64 --kv-heads 8 --parameters 70B"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(plan)


def invoke(arguments: str, width: int = 200) -> tuple[str, str]:
    """What it prints, and its warnings."""
    result = CliRunner().invoke(app, arguments.split(), env={"COLUMNS": str(width)})
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def numbers(arguments: str) -> dict[str, Any]:
    return json.loads(invoke(f"{arguments} --json")[0])


def line(output: str, what: str) -> str:
    """The line of the table that begins with ``what``, its columns one blank apart."""
    found = [each for each in output.splitlines() if each.strip().startswith(what)]
    assert len(found) == 1, output
    return re.sub(r"\s+", " ", found[0]).strip()


def refusal(arguments: str, kind: type[RadixServeError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        invoke(arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def room(arguments: str) -> dict[str, Any]:
    return numbers(arguments)["room"]
