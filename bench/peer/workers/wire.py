"""What a worker and the benchmark say to each other: lines of JSON over stdin and stdout.

A worker runs inside the environment of the engine that it measures, so this file and its
neighbours import nothing but the standard library and that engine. Requests and answers::

    {"op": "load", ...settings}                          -> {"versions": {...}, "settings": {...}}
    {"op": "begin", "requests": n, "longest": n, "shared": n}  -> {}
    {"op": "run", "prompts": [[int]], "max_tokens": n}   -> {"seconds": float, "tokens": [[int]]}
    {"op": "memory"}                                     -> {...bytes}

An answer with "error" is the last one. What engines print goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, Protocol

Message = dict[str, Any]


class Engine(Protocol):
    """A peer, loaded."""

    settings: Message
    """How it runs, for the record."""
    packages: tuple[str, ...]
    """Distributions whose versions say what was measured."""

    def begin(self, requests: int, longest: int, shared: int) -> None:
        """Forget all prompts, and prepare for runs of ``requests`` at once.

        They are of at most ``longest`` tokens with their answers, the first ``shared`` in common.
        """

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Greedy answers of exactly ``max_tokens``, all prompts at once."""

    def memory(self) -> Message:
        """Bytes of the process, if this peer tells them."""


def serve(load: type[Engine]) -> None:
    """Answer until stdin ends; ``load`` is called with the settings of the first request."""
    _end_with_parent()
    # Engines print to stdout, also from native code: that is made stderr, and ours a copy.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: Message) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    engine: Engine | None = None
    try:
        for line in sys.stdin:
            message = json.loads(line)
            op = message.pop("op")
            if op == "load":
                engine = load(**message)
                answer({"settings": engine.settings, "versions": _versions(engine.packages)})
            elif engine is None:
                raise RuntimeError(f"{op} before load")
            elif op == "begin":
                engine.begin(**message)
                answer({})
            elif op == "run":
                answer(_run(engine, **message))
            elif op == "memory":
                answer(engine.memory())
            else:
                raise RuntimeError(f"{op}: no such request")
    except BaseException as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
        raise SystemExit(1) from error


def _end_with_parent() -> None:
    """A worker that is paused would not see that its stdin has ended, and stay for ever."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def _run(engine: Engine, prompts: list[list[int]], max_tokens: int) -> Message:
    start = perf_counter()
    tokens = engine.generate(prompts, max_tokens)
    seconds = perf_counter() - start
    lengths = {len(each) for each in tokens}
    if len(tokens) != len(prompts) or lengths != {max_tokens}:
        raise RuntimeError(f"{len(tokens)} answers of {sorted(lengths)} tokens, not {max_tokens}")
    return {"seconds": seconds, "tokens": tokens}


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
