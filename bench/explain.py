"""Whether a server finds out why prompts were not in its cache, and what that costs it::

    python -m bench.explain
    python -m bench.explain --count 45 --model DIR

Each pair of requests is one that should have shared a prompt: with another clock, identity, order
of tools, of keys or of documents, other blanks, another setting of the template, another salt, or
evicted meanwhile. The server is started with a chat template that lists tools, and with room for
few tokens. Right is an explanation that has the reason and, where the two part, the very place in
the body and what it looks like. The cost is the processor time that the server says it spent on
explaining, by the time of the whole run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from bench.mutations import TEMPLATE, Mutation, mutations
from bench.report import verdicts
from bench.servers import COMMAND, Process

Numbers = dict[str, Any]

RIGHT, SHARE = 0.98, 0.01
"""What is promised."""
CONTEXT = 2048
"""Tokens of the longest prompt, and"""
KV = "64MiB"
"""room for little more in the demo model."""
SPENT = re.compile(r"^radixserve:explaining_seconds\{[^}]*\} (\S+)$", re.MULTILINE)


async def told(client: httpx2.AsyncClient, mutation: Mutation) -> Numbers:
    """What the server says of the second request."""
    for body in (mutation.earlier, *mutation.between):
        await answered(client, body)
    id = await answered(client, mutation.later)
    response = await client.get(f"/v1/cache/requests/{id}")
    response.raise_for_status()
    return dict(response.json())


async def answered(client: httpx2.AsyncClient, body: Numbers) -> str:
    response = await client.post("/v1/chat/completions", json=body)
    if response.status_code != 200:
        raise RuntimeError(f"{response.status_code}: {response.text[:500]}")
    return str(response.json()["id"])


def wrong(mutation: Mutation, explanation: Numbers) -> str | None:
    """What is not right about an explanation; None if all is."""
    if explanation["reason"] != mutation.reason:
        return f"reason {explanation['reason']}, not {mutation.reason}"
    place = explanation["diverged"] or {}
    for name in ("guess", "pointer", "character"):
        expected = getattr(mutation, name)
        if expected is not None and place.get(name) != expected:
            return f"{name} {place.get(name)}, not {expected}"
    if mutation.kind == "salt" and explanation["narrowed_by"] != ["cache_salt"]:
        return "the salt is not named"
    if mutation.reason == "evicted" and explanation["own_pressure"] is not True:
        return "it was for its own tenant's sake"
    return None


async def measure(options: argparse.Namespace) -> Numbers:
    kinds: dict[str, list[str | None]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.jinja"
        template.write_text(TEMPLATE, encoding="utf-8")
        command = [*COMMAND, "--chat-template", str(template), "--kv-memory", options.kv_memory]
        command += ["--max-model-len", str(CONTEXT), "--tool-call-parser", "none"]
        command += ["--model", options.model] if options.model else []
        async with (
            Process("radixserve", command, Path(folder)) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=300.0) as client,
        ):
            began = perf_counter()
            for mutation in mutations(options.count, options.seed):
                kinds[mutation.kind].append(wrong(mutation, await told(client, mutation)))
            seconds = perf_counter() - began
            shown = SPENT.search((await client.get("/metrics")).text)
            assert shown is not None, "the server says what explaining cost"
            spent = float(shown[1])
    results = [each for of_kind in kinds.values() for each in of_kind]
    right = results.count(None) / len(results)
    return {
        "machine": machine(),
        "model": options.model or "the demo model",
        "count": len(results),
        "right": right,
        "kinds": {
            kind: {"count": len(each), "right": each.count(None)} for kind, each in kinds.items()
        },
        "wrong": [f"{kind}: {each}" for kind, all_ in kinds.items() for each in all_ if each],
        "seconds": seconds,
        "explaining_seconds": spent,
        "explaining_share": spent / seconds,
        "requirements": [
            {
                "name": "reason and place right",
                "bound": f">= {RIGHT}",
                "measured": right,
                "met": right >= RIGHT,
            },
            {
                "name": "share of the run spent on explaining",
                "bound": f"< {SHARE}",
                "measured": spent / seconds,
                "met": spent / seconds < SHARE,
            },
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.explain", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=200, help="pairs of requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="as radixserve serve takes it; default: the demo model")
    parser.add_argument("--kv-memory", default=KV)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    console = Console(stderr=True)
    results = asyncio.run(measure(options))
    table = Table("changed", "pairs", "right")
    for kind, numbers in results["kinds"].items():
        table.add_row(kind, str(numbers["count"]), str(numbers["right"]))
    console.print(table, *results["wrong"], sep="\n")
    console.print(verdicts(results["requirements"]))
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, ensure_ascii=False, indent=1) + "\n"
    (options.out / "explain.json").write_text(text, encoding="utf-8")
    sys.stdout.write(json.dumps({"right": results["right"], "share": results["explaining_share"]}))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
