"""Logs to lint."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixserve.lint.analysis import Analysis
from radixserve.lint.logs import Faults, read
from radixserve.lint.report import LogReport
from radixserve.lint.tokens import About, Tokens

RULES = "\n".join(f"Rule {number}: be as kind as you can to whoever asks." for number in range(40))


def tool(name: str, **properties: Any) -> dict[str, Any]:
    function = {
        "name": name,
        "description": f"A tool for all that has to do with {name}.",
        "parameters": {"type": "object", "properties": properties},
    }
    return {"type": "function", "function": function}


def chat(system: str, *turns: str, tools: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """A body in which user and assistant take turns."""
    messages = [{"role": "system", "content": system}]
    for place, text in enumerate(turns):
        messages.append({"role": ("user", "assistant")[place % 2], "content": text})
    return {"model": "m", "messages": messages, **({"tools": list(tools)} if tools else {})}


def write(path: Path, bodies: Sequence[Any]) -> Path:
    lines = "".join(json.dumps(body) + "\n" for body in bodies).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def linted(
    path: Path, bodies: Sequence[Any], *, tokens: Tokens | None = None, page_size: int = 16
) -> LogReport:
    """The report on these bodies; every one of them has to be a request."""
    faults = Faults()
    analysis = Analysis(tokens or About(), page_size)
    for request in read(write(path / "log.jsonl", bodies), faults):
        analysis.add(request)
    assert not faults.told
    return analysis.report(5000)
