"""What the front end costs while many chats stream at once, and whether it still answers others::

    python -m bench.front_end [--streams 64] [--tokens 256] [--out bench/results]

The engine is a process of its own, so that the front end's time is the processor time of the
server's process: HTTP, rendering, tokenizing, detokenizing, events. It is told as a share of a run
at 500 tokens a second. What a token costs depends on how fast they come, since a processor that
has other things to do meanwhile forgets; so the model is cut to some layers with which this machine
makes about as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Annotated, Any

import aiohttp
import typer
from tqdm import tqdm

from bench.client import session
from bench.machine import machine
from bench.servers import Server
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare

RATE = 500
"""Tokens a second."""
SHARE = 0.1
HEALTH_SECONDS = 0.1
HEALTH_EVERY = 0.05
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far; not of its children (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def streamed(http: aiohttp.ClientSession, number: int, tokens: int, bar: Any) -> int:
    """One chat to its end; returns how many tokens it got."""
    body = {
        "messages": [{"role": "user", "content": f"Tell story number {number}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    got = 0
    async with http.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                bar.update(len(chunk["choices"]))
                if chunk.get("usage"):
                    got = chunk["usage"]["completion_tokens"]
    return got


async def asked_for_health(http: aiohttp.ClientSession, seconds: list[float]) -> None:
    """Ask again and again, until cancelled."""
    while True:
        begun = perf_counter()
        async with http.get("/health") as answer:
            answer.raise_for_status()
        seconds.append(perf_counter() - begun)
        await asyncio.sleep(HEALTH_EVERY)


def shortened(folder: Path, layers: int) -> str:
    """The demo model's geometry with so many layers, and its tokenizer; returns where."""
    demo = prepare(EngineConfig()).model
    for each in (*demo.glob("*.json"), *demo.glob("*.jinja")):
        shutil.copy(each, folder)
    config = folder / "config.json"
    geometry = json.loads(config.read_text(encoding="utf-8")) | {"num_hidden_layers": layers}
    config.write_text(json.dumps(geometry), encoding="utf-8")
    return str(folder)


async def measure(model: str, streams: int, tokens: int, options: list[str]) -> dict[str, Any]:
    """One round for the processor time, and one in which somebody asks for its health."""
    with tempfile.TemporaryDirectory(prefix="radixserve-") as folder:
        async with (
            Server("front-end", model, options, Path(folder)) as server,
            session(server.url, total=600) as http,
        ):
            assert server.pid is not None
            bar = tqdm(total=2 * streams * tokens, desc="streams", unit="chunk", disable=None)

            async def round_of(first: int) -> int:
                numbers = range(first, first + streams)
                return sum(await asyncio.gather(*(streamed(http, i, tokens, bar) for i in numbers)))

            await streamed(http, -1, 8, bar)
            before, begun = processor_seconds(server.pid), perf_counter()
            total = await round_of(0)
            took, spent = perf_counter() - begun, processor_seconds(server.pid) - before
            health: list[float] = []
            asker = asyncio.create_task(asked_for_health(http, health))
            await round_of(streams)
            asker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asker
            bar.close()
    return {
        "machine": machine(),
        "options": options,
        "streams": streams,
        "tokens": total,
        "tokens_per_second": total / took,
        "front_end_seconds": spent,
        "front_end_us_per_token": 1e6 * spent / total,
        "share_at_500": spent / total * RATE,
        "health_p99": quantiles(health, n=100)[98],
        "health_asked": len(health),
    }


def requirements(results: dict[str, Any]) -> dict[str, bool]:
    """What was promised, and whether it holds."""
    return {
        "less than a tenth of a run at 500 tokens a second": results["share_at_500"] < SHARE,
        "p99 of /health below 100 ms": results["health_p99"] < HEALTH_SECONDS,
    }


def main(
    layers: Annotated[
        int, typer.Option(help="Of the demo model's, so that it makes some 500 tokens a second.")
    ] = 12,
    streams: Annotated[int, typer.Option(help="Chats at once.")] = 64,
    tokens: Annotated[int, typer.Option(help="Of each.")] = 256,
    threads: Annotated[int, typer.Option(help="Of the engine.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
) -> None:
    """Measure; print what came of it as JSON in the last line, and fail if a promise is broken."""
    options = ["--threads", str(threads), "--max-num-seqs", str(streams)]
    options += ["--load-format", "dummy"]
    with tempfile.TemporaryDirectory(prefix="radixserve-") as folder:
        model = shortened(Path(folder), layers)
        results = {"layers": layers, **asyncio.run(measure(model, streams, tokens, options))}
    results["requirements"] = met = requirements(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "front-end.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(results) + "\n")
    raise typer.Exit(0 if all(met.values()) else 1)


if __name__ == "__main__":
    typer.run(main)
