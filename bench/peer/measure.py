"""The order of things: make and start all, then case by case the peers take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from bench.peer.cases import BY_NAME, DECODED, OURS, Case, Prompts
from bench.peer.environments import PeerError

Numbers = dict[str, Any]


class Runner(Protocol):
    """A started peer: ``bench.peer.process.Worker``, or a stand-in in tests."""

    loaded: Numbers

    def ask(self, message: Numbers) -> Numbers: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


class Roster(Protocol):
    """Makes and starts peers by name: ``bench.peer.roster.Roster``, or a stand-in in tests."""

    def make(self, name: str) -> None:
        """Have everything there that it needs; PeerError if that cannot be."""

    def start(self, name: str) -> Runner:
        """Start it; PeerError if it does not."""


class Bench:
    """Measures ``names`` on ``cases``; everything that came of it is in ``results`` at any time.

    ``results["cases"][case]["samples"][peer]`` are seconds or tokens a second, one a repeat;
    ``results["peers"][peer]["error"]`` says in one line why a peer was left out from there on.
    """

    def __init__(
        self,
        names: Sequence[str],
        cases: Sequence[Case],
        roster: Roster,
        results: Numbers,
        *,
        repeats: int,
        starts: int,
        say: Callable[[str], None],
        step: Callable[[], None],
    ):
        """``say`` gets what is being done, ``step`` is called ``steps`` times on the way."""
        self._names, self._cases, self._roster = names, cases, roster
        self._repeats = repeats
        self._starts = starts if any(case.kind == "start" for case in cases) else 1
        self._say, self._step = say, step
        self._running: dict[str, Runner] = {}
        self._first: dict[str, dict[str, list[int]]] = {}
        self._results = results
        results["peers"] = {name: {"error": None} for name in names}
        results["cases"] = {}
        results["agreement"] = {}

    @property
    def steps(self) -> int:
        timed = sum(case.kind != "start" for case in self._cases)
        return len(self._names) * (self._starts + self._repeats * timed)

    def run(self) -> None:
        """All of it."""
        try:
            for name in self._names:
                with self._or_drop(name):
                    self._roster.make(name)
            self._start_all()
            for case in self._cases:
                if case.kind != "start":
                    self._measure(case)
            if OURS in self._running:
                with self._or_drop(OURS), self._awake(OURS) as worker:
                    self._results["memory"] = worker.ask({"op": "memory"})
        finally:
            for worker in self._running.values():
                worker.close()

    def _start_all(self) -> None:
        """Start each peer as often as that is timed, in turn; the last of its workers stays."""
        case = next((each for each in self._cases if each.kind == "start"), None)
        samples = self._samples(case) if case is not None else {}
        prompts = (case or BY_NAME["start"]).prompts(0)
        for repeat, name in self._turns(self._starts):
            if self._results["peers"][name]["error"] is None:
                if name in self._running:
                    self._running.pop(name).close()
                self._say(f"starting {name}")
                with self._or_drop(name):
                    begin = perf_counter()
                    worker = self._running[name] = self._roster.start(name)
                    worker.ask({"op": "begin", "requests": 1, "longest": 128, "shared": 0})
                    answer = _run(worker, prompts, 1)
                    seconds = perf_counter() - begin
                    worker.pause()
                    samples.setdefault(name, []).append(seconds)
                    self._results["peers"][name] |= worker.loaded
                    if repeat == 0:
                        self._note("start", name, answer)
            self._step()

    def _measure(self, case: Case) -> None:
        samples = self._samples(case)
        for name in list(self._running):
            self._say(f"{case.title}: {name} makes ready")
            with self._or_drop(name), self._awake(name) as worker:
                prepare(worker, case)
        for repeat, name in self._turns(self._repeats):
            if name in self._running:
                self._say(f"{case.title}: {name}")
                with self._or_drop(name), self._awake(name) as worker:
                    value, answer = measure(worker, case, repeat)
                    samples.setdefault(name, []).append(value)
                    if repeat == 0:
                        self._note(case.name, name, answer)
            self._step()

    def _turns(self, repeats: int) -> Iterator[tuple[int, str]]:
        """All peers ``repeats`` times, another one first in each repeat."""
        for repeat in range(repeats):
            shift = repeat % len(self._names)
            for name in (*self._names[shift:], *self._names[:shift]):
                yield repeat, name

    def _samples(self, case: Case) -> dict[str, list[float]]:
        samples: dict[str, list[float]] = {}
        entry = {"title": case.title, "unit": case.unit, "samples": samples}
        self._results["cases"][case.name] = entry
        return samples

    def _note(self, case: str, name: str, answer: Numbers) -> None:
        """The share of first tokens that are those of radixserve: do all run the same model?"""
        first = self._first.setdefault(case, {})
        first[name] = [tokens[0] for tokens in answer["tokens"]]
        if OURS in first:
            self._results["agreement"][case] = {
                peer: sum(map(int.__eq__, tokens, first[OURS])) / len(tokens)
                for peer, tokens in first.items()
            }

    @contextmanager
    def _awake(self, name: str) -> Iterator[Runner]:
        worker = self._running[name]
        worker.resume()
        yield worker
        worker.pause()

    @contextmanager
    def _or_drop(self, name: str) -> Iterator[None]:
        try:
            yield
        except PeerError as error:
            self._results["peers"][name]["error"] = str(error)
            self._say(f"{name} is left out: {error}")
            worker = self._running.pop(name, None)
            if worker is not None:
                worker.close()


def prepare(worker: Runner, case: Case) -> None:
    """Empty the cache, then put in what the case says is there, and warm up."""
    worker.ask(
        {"op": "begin", "requests": case.requests, "longest": case.longest, "shared": case.shared}
    )
    if case.shared:
        _run(worker, [case.trunk()], 1)
    if case.shared or case.kind == "decode":
        _run(worker, case.prompts(-1), 1)


def measure(worker: Runner, case: Case, repeat: int) -> tuple[float, Numbers]:
    """Seconds to the first tokens, or tokens a second of decoding with the prefill taken out."""
    prompts = case.prompts(repeat)
    short = _run(worker, prompts, 1)
    if case.kind == "first":
        return short["seconds"], short
    long = _run(worker, prompts, DECODED + 1)
    return DECODED * case.requests / max(long["seconds"] - short["seconds"], 1e-9), long


def _run(worker: Runner, prompts: Prompts, max_tokens: int) -> Numbers:
    return worker.ask({"op": "run", "prompts": prompts, "max_tokens": max_tokens})
