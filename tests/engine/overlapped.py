"""A model that computes launched steps behind the host, on simulated KV, and fails on a race.

What it gets is copied when it is launched, as the arrays of a step are; it is computed as late as
nobody waits for it, at once, or at some time in between.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field, replace
from typing import Literal

from radixserve.config import EngineConfig
from radixserve.model.runner import ModelInfo
from radixserve.scheduling.plan import UNKNOWN, Row, Sampled, StepPlan
from radixserve.tokens import pack
from tests.scheduling.simulated import VOCABULARY, SimulatedModel, scores

Pace = Literal["late", "early", "random"]
POISON = -1


class RaceError(AssertionError):
    """A step that may still be computed would find something else than it was planned with."""


@dataclass(eq=False)
class Step:
    """See ``radixserve.engine.core.Launched``."""

    model: OverlappedModel
    plan: StepPlan
    before: Step | None
    followable: bool
    broken: bool = False
    """Collecting it raises; what it wrote is worth nothing."""
    ran: bool = False
    ended: bool = False
    said: dict[str, int] = field(default_factory=dict)
    poisoned: dict[str, int] = field(default_factory=dict)
    """Requests whose KV is worth nothing, and where a row that goes on with it starts."""
    result: list[tuple[Sampled, ...]] = field(default_factory=list)

    def collect(self) -> list[tuple[Sampled, ...]]:
        assert not self.ended, "a step is collected twice"
        assert self.before is None or self.before.ended, "steps are collected in order"
        self.ended = True
        if not self.model.deaf:
            self.model.run_to(self)
        self.before = None
        if self.broken:
            raise RuntimeError("the device is on fire")
        if not self.ran:
            raise RaceError("tokens are read that have not been chosen yet")
        return self.result


class OverlappedModel(SimulatedModel):
    """``faults`` are chances: that a launch raises, that a collect does, that a row is spoilt."""

    def __init__(
        self,
        config: EngineConfig,
        num_pages: int,
        *,
        pace: Pace = "late",
        seed: int = 0,
        launch_fault: float = 0.0,
        collect_fault: float = 0.0,
        row_fault: float = 0.0,
    ):
        super().__init__(num_pages, config.page_size, config.max_num_batched_tokens)
        self.info = ModelInfo(
            vocab_size=VOCABULARY,
            max_model_len=200,
            eos_token_ids=frozenset(),
            num_pages=num_pages,
            dtype="float32",
            backend="simulated",
            kv_bytes_per_token=1,
            sampling_defaults={},
        )
        self.deaf = False
        """Nobody is waited for."""
        self.behind = 0
        """Steps that were launched while one was being computed."""
        self.unknown = 0
        """Tokens that they had to take from it."""
        self._pace = pace
        self._chance = random.Random(seed)
        self._launch_fault, self._collect_fault = launch_fault, collect_fault
        self._row_fault = row_fault
        self._queue: list[Step] = []
        self._last: Step | None = None

    def launch(self, plan: StepPlan) -> Step:
        before = self._last if self._last is not None and not self._last.ended else None
        if self._chance.random() < self._launch_fault:
            raise RuntimeError("no memory for this step")
        step = Step(self, copied(plan), before, followable=not _penalised(plan))
        step.broken = self._chance.random() < self._collect_fault
        for row in plan.rows:
            self.namespaces.setdefault(row.request_id, b"")
            if row.tokens == UNKNOWN:
                assert before is not None, "nobody is choosing this token"
                assert before.followable, "penalties need tokens that are known"
                assert len(row.history) == 4 * row.start, "a token is planned twice"
                self.unknown += 1
        if before is not None:
            self.behind += 1
            self._watch(before, step)
        self._last = step
        self._queue.append(step)
        if self._pace != "late":
            ready = self._chance.randrange(len(self._queue) + 1)
            for _ in range(ready if self._pace == "random" else len(self._queue)):
                self._run(self._queue.pop(0))
        return step

    def run_to(self, step: Step) -> None:
        while not step.ran:
            self._run(self._queue.pop(0))

    def _watch(self, before: Step, step: Step) -> None:
        """What is written must not be in use by others: a page that came back too early is."""
        used = {copy.source for copy in before.plan.copies}
        owners: dict[int, set[str]] = {}
        for row in before.plan.rows:
            for page in row.pages[: -(-row.context // self.page_size)]:
                owners.setdefault(page, set()).add(row.request_id)
        for copy in step.plan.copies:
            if copy.target in used or copy.target in owners:
                raise RaceError(f"page {copy.target} is copied to while the step before uses it")
        for row in step.plan.rows:
            first, last = row.start // self.page_size, (row.context - 1) // self.page_size
            for page in row.pages[first : last + 1]:
                if page in used or owners.get(page, set()) - {row.request_id}:
                    raise RaceError(f"page {page} is written while the step before uses it")

    def _run(self, step: Step) -> None:
        step.ran = True
        before = step.before
        spoilt = before.poisoned if before is not None else {}
        step.poisoned = {
            row.request_id: row.context
            for row in step.plan.rows
            if step.broken or spoilt.get(row.request_id) == row.start
        }
        sound: list[Row] = []
        for row in step.plan.rows:
            if row.request_id in step.poisoned:
                for position in range(row.start, row.context):
                    page = row.pages[position // self.page_size]
                    self.kv[page][position % self.page_size] = POISON
                continue
            if row.tokens == UNKNOWN:
                assert before is not None
                row.tokens = pack([before.said[row.request_id]])
                row.history = row.history + row.tokens
            sound.append(row)
        decoding = sum(1 for row in step.plan.rows[: step.plan.decoding] if row in sound)
        computed = self.execute(replace(step.plan, rows=sound, decoding=decoding)) if sound else []
        results = iter(computed)
        for row in step.plan.rows:
            draws = 1 + len(row.forks) if row.sampling is not None else 0
            if row.request_id in step.poisoned:
                step.result.append((Sampled(0),) * draws + scores(row))
                continue
            tokens = next(results)
            if draws and self._chance.random() < self._row_fault:
                step.poisoned[row.request_id] = row.context
                fault = Sampled(0, error="the model's output is not a number")
                tokens = (fault,) * draws + tokens[draws:]
            step.result.append(tokens)
            if draws:
                step.said[row.request_id] = tokens[0].token


def _penalised(plan: StepPlan) -> bool:
    return any(
        params is not None and params.penalised
        for row in plan.rows
        for params in (row.sampling, *(fork.sampling for fork in row.forks))
    )


def copied(plan: StepPlan) -> StepPlan:
    rows = [
        replace(
            row,
            tokens=bytes(row.tokens),
            pages=array("i", row.pages),
            history=bytes(row.history),
            forks=list(row.forks),
        )
        for row in plan.rows
    ]
    return replace(plan, rows=rows, copies=list(plan.copies))
