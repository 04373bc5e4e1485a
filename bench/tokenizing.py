"""What it takes to tokenize the next turn of a long conversation, all of it and the new part::

    python -m bench.tokenizing
    python -m bench.tokenizing --out bench/results

The conversation is made of the texts in Python's own documentation, with ``--message`` tokens or so
a message, and the demo model's tokenizer and template. ``full`` tokenizes the whole prompt,
``remembered`` is what the server does once it has seen the prompt before. Both have the same ids,
which is checked. Times count as ratios within one run; the last line is the summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from time import perf_counter
from typing import Any

from bench.machine import machine
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.server.text_memory import Owner, TextMemory
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count

SIZES = (12_500, 25_000, 50_000, 100_000, 200_000)
"""Tokens of history, about."""
ME = Owner("bench", b"")
CHARACTERS = 4
"""That a token stands for, about."""


def main() -> None:
    options = _options()
    results: dict[str, Any] = {"machine": machine(), "message_tokens": options.message}
    tokenizer = Tokenizer.load(prepare(EngineConfig()).tokenizer)
    results["sizes"] = [
        measured(tokenizer, size, options.message, options.repeats) for size in SIZES
    ]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "tokenizing.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    last = results["sizes"][-1]
    summary = {name: last[name] for name in ("history", "new", "ratio")}
    sys.stdout.write(json.dumps(summary) + "\n")


def measured(tokenizer: Tokenizer, size: int, message: int, repeats: int) -> dict[str, Any]:
    """Seconds for a history of ``size`` tokens: the median of so many new turns.

    Raises:
        AssertionError: the ids differ.
    """
    rng = random.Random(size)
    text = " ".join(topics.values())

    def said() -> str:
        start = rng.randrange(len(text))
        return (text[start:] + text)[: message * CHARACTERS]

    messages = [
        {"role": ("user", "assistant")[index % 2], "content": said()}
        for index in range(size // message // 2 * 2)
    ]
    memory = TextMemory(lambda: tokenizer)
    rows = []
    for _ in range(repeats):
        before = tokenizer.render_chat(messages)
        memory.encode(before, ME, param="messages")
        messages.append({"role": "user", "content": said()})
        prompt = tokenizer.render_chat(messages)
        full, whole = timed(partial(tokenizer.encode, prompt, add_special_tokens=False))
        remembered, encoded = timed(partial(memory.encode, prompt, ME, param="messages"))
        assert encoded.tokens == whole, "the ids differ"
        rows.append((full, remembered, count(whole)))
        messages.append({"role": "assistant", "content": said()})
    full, remembered = median(row[0] for row in rows), median(row[1] for row in rows)
    return {
        "history": rows[0][2],
        "new": message,
        "messages": len(messages),
        "full_seconds": full,
        "remembered_seconds": remembered,
        "ratio": full / remembered,
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = perf_counter()
    result = work()
    return perf_counter() - start, result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--message", type=int, default=500, help="tokens a message, about")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each size")
    parser.add_argument("--out", type=Path, help="a folder for tokenizing.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
