"""What a stable order of documents saves, and whether answers change by it::

    python -m bench.rag [--quick] [--out bench/results]

Two live servers are asked the same, in turns: one with documents in the order of their rank, one in
the order of what is cached. Their caches hold a quarter of the documents. The traffic goes to a
small random model with the demo model's tokenizer, since which tokens are reused does not depend on
the weights; the questions with known answers go to the demo model. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from tqdm import tqdm

from bench import plot
from bench.machine import machine
from bench.passages import FACTS, Fact, Retriever, chunks, questions
from bench.report import verdicts
from bench.servers import Server, ServerError
from bench.tiny import tiny
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.errors import RadixServeError
from radixserve.rag import Document, Order, Rag, RagAnswer
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count

Numbers = dict[str, Any]

K = 4
CHUNK = 256
"""Tokens of a chunk at most."""
CACHE = 0.25
"""Of the documents' tokens."""
PAGE = 16
BLOCK = 25
"""Requests to one server before the other one has its turn."""
GAIN = 1.5
ANSWER = 48
"""Tokens of an answer at most."""
ORDERS: tuple[Order, ...] = ("rank", "cached")


class Setting:
    """The documents, and servers for them."""

    def __init__(self, folder: Path, threads: int):
        tokenizer = Tokenizer.load(prepare(EngineConfig()).tokenizer)
        self.documents = chunks(lambda text: count(tokenizer.encode(text)), CHUNK)
        self.tokens = sum(count(tokenizer.encode(each.text)) for each in self.documents)
        self.retriever = Retriever(self.documents)
        self._folder = folder
        self._options = ["--threads", str(threads), "--page-size", str(PAGE)]

    def small(self, name: str) -> Server:
        """A small random model, whose cache holds ``CACHE`` of the documents."""
        model = tiny(self._folder)
        pages = 1 + round(CACHE * self.tokens / PAGE)
        options = ["--load-format", "dummy", "--dtype", "float32", "--num-pages", str(pages)]
        options += ["--tokenizer", str(model.tokenizer), *self._options]
        return Server(name, str(model.config), options, self._folder)

    def demo(self, name: str) -> Server:
        return Server(name, None, self._options, self._folder)


async def traffic(setting: Setting, requests: int, results: Numbers) -> None:
    """The same questions to two servers, in turns."""
    asked = questions(setting.documents, requests)
    found: dict[str, list[Numbers]] = {order: [] for order in ORDERS}
    results["traffic"] = {"cache_tokens": round(CACHE * setting.tokens), "requests": found}
    async with AsyncExitStack() as stack:
        rags = {}
        for order in ORDERS:
            server = await stack.enter_async_context(setting.small(order))
            rag = Rag(server.url, order=order, count_tokens=False, max_tokens=1)
            rags[order] = await stack.enter_async_context(rag)
        bar = stack.enter_context(tqdm(total=2 * requests, desc="traffic", disable=None))
        for start in range(0, requests, BLOCK):
            for order, rag in rags.items():
                for question in asked[start : start + BLOCK]:
                    answer = await rag.aask(question, setting.retriever.top(question, K))
                    found[order].append(_numbers(answer))
                    bar.update()


async def answers(setting: Setting, facts: Sequence[Fact], results: Numbers) -> None:
    """Questions with known answers, in both orders and, to see what any other order does to this
    model, in the reverse of the first."""
    said: list[Numbers] = []
    results["answers"] = said
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(setting.demo("demo"))
        rags = {}
        for name in (*ORDERS, "reverse"):
            # What one order leaves in the cache is no gain for the others.
            rag = Rag(
                server.url,
                order="cached" if name == "cached" else "rank",
                cache_salt=name,
                count_tokens=False,
                max_tokens=ANSWER,
            )
            rags[name] = await stack.enter_async_context(rag)
        for rag in rags.values():  # what a server does once is no part of any answer
            await rag.aask("Ready?", [Document("ready", "Yes.")], max_tokens=1)
        bar = stack.enter_context(tqdm(total=len(facts) * len(rags), desc="answers", disable=None))
        for fact in facts:
            best = setting.retriever.top(fact.question, K)
            row: Numbers = {"question": fact.question, "expected": fact.expected}
            for order, rag in rags.items():
                start = perf_counter()
                answer = await rag.aask(fact.question, best[:: -1 if order == "reverse" else 1])
                row[order] = {
                    **_numbers(answer),
                    "text": answer.text,
                    "right": any(each in answer.text.lower() for each in fact.expected),
                    "moved": [each.document for each in answer.documents] != best,
                    "seconds": perf_counter() - start,
                }
                bar.update()
            said.append(row)


def _numbers(answer: RagAnswer) -> Numbers:
    return {
        "prompt": answer.prompt_tokens,
        "cached": answer.cached_tokens,
        "seen": answer.seen_tokens,
    }


def summary(results: Numbers) -> Numbers:
    """Shares of what was measured; None of what was not."""
    shown: Numbers = {}
    requests = results.get("traffic", {}).get("requests", {})
    # Interrupted in between, one order has been asked more.
    both = min((len(rows) for rows in requests.values()), default=0)
    if both:
        totals = {
            order: {name: sum(row[name] for row in rows[:both]) for name in rows[0]}
            for order, rows in requests.items()
        }
        shown["requests"] = both
        shown["hit_tokens"] = {order: total["cached"] for order, total in totals.items()}
        shown["hit_rate"] = {
            order: total["cached"] / total["prompt"] for order, total in totals.items()
        }
        shown["seen_rate"] = totals["rank"]["seen"] / totals["rank"]["prompt"]
        shown["gain"] = totals["cached"]["cached"] / max(totals["rank"]["cached"], 1)
    said = results.get("answers", [])
    if said:
        shown["questions"] = len(said)
        shown["right"] = {
            order: sum(row[order]["right"] for row in said) for order in (*ORDERS, "reverse")
        }
        shown["moved"] = sum(row["cached"]["moved"] for row in said)
        shown["same_text"] = {
            order: sum(row[order]["text"] == row["rank"]["text"] for row in said)
            for order in ("cached", "reverse")
        }
        shown["median_seconds"] = {
            order: median(row[order]["seconds"] for row in said) for order in ORDERS
        }
    return shown


def requirements(results: Numbers) -> list[Numbers]:
    """Promise, bound, what was measured, and whether it holds."""
    gain = results["summary"].get("gain")
    return [
        {
            "name": "hit tokens, order by cache / by rank",
            "bound": f">= {GAIN}",
            "measured": gain,
            "met": None if gain is None else gain >= GAIN,
        }
    ]


def draw(results: Numbers, path: Path) -> Path:
    """Reuse over the requests, and what became of the answers."""
    title = f"{K} of {results['chunks']} chunks, a cache for {CACHE:.0%} of them"
    figure, (left, right) = plot.panels(2, title=title)
    plot.style(left, title="prompt tokens reused so far", x="requests", y="%")
    for order, rows in results.get("traffic", {}).get("requests", {}).items():
        cached = prompt = 0
        shares = []
        for row in rows:
            cached, prompt = cached + row["cached"], prompt + row["prompt"]
            shares.append(100 * cached / prompt)
        left.plot(range(1, len(shares) + 1), shares, label=f"documents by {_word(order)}")
    if left.lines:
        left.legend(fontsize=7, frameon=False)
    left.set_ylim(bottom=0)
    shown = results["summary"]
    plot.style(right, title=f"{shown.get('questions', 0)} questions, right answers by order")
    for number, (order, times) in enumerate(shown.get("right", {}).items()):
        right.bar([_word(order)], [times], 0.5, color=plot.COLOURS[number])
    return plot.save(figure, path)


def _word(order: str) -> str:
    return {"rank": "rank", "cached": "what is cached", "reverse": "reverse rank"}[order]


async def measure(results: Numbers, *, quick: bool, threads: int, requests: int | None) -> None:
    with tempfile.TemporaryDirectory(prefix="radixserve-bench-") as folder:
        setting = Setting(Path(folder), threads)
        results |= {"chunks": len(setting.documents), "corpus_tokens": setting.tokens}
        await traffic(setting, requests or (100 if quick else 1500), results)
        await answers(setting, FACTS[: 4 if quick else None], results)


def main(
    quick: Annotated[bool, typer.Option(help="Fewer requests and questions.")] = False,
    requests: Annotated[int | None, typer.Option(help="Of the traffic, to each server.")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of each server.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
) -> None:
    """Measure; print what was promised and, as JSON in the last line, what came of it."""
    console = Console(stderr=True)
    results: Numbers = {"status": "running", "machine": machine(), "chunks": 0}
    start = perf_counter()
    try:
        asyncio.run(measure(results, quick=quick, threads=threads, requests=requests))
        results["status"] = "complete"
    except KeyboardInterrupt:
        results["status"] = "interrupted"
    except (ServerError, RadixServeError) as error:
        results["status"] = str(error)
    results["seconds"] = perf_counter() - start
    results["summary"] = summary(results)
    results["requirements"] = requirements(results)
    console.print(verdicts(results["requirements"]))
    if results["status"] != "complete":
        console.print(f"{results['status']}; what was measured is kept", markup=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / ("rag-quick.json" if quick else "rag.json")
    path.write_text(json.dumps(results) + "\n")
    draw(results, path)
    shown = {"status": results["status"], "seconds": results["seconds"], **results["summary"]}
    sys.stdout.write(json.dumps(shown) + "\n")
    sys.exit(0 if results["status"] == "complete" else 1)


if __name__ == "__main__":
    typer.run(main)
