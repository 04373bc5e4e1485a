"""The step loop: plan, compute, commit; on a GPU the next step is planned while one is computed.

host    plan 1, launch | plan 2, launch | collect 1, commit | plan 3, launch | collect 2, ...
device                 | step 1 ....................| step 2 ......................| step 3 ...
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from radixserve.cache.namespace import on_engine
from radixserve.cache.prefix_cache import PrefixCache, Purge
from radixserve.config import EngineConfig
from radixserve.engine.messages import EngineStats, GenerationDelta, GenerationRequest, Usage
from radixserve.errors import EngineDeadError, InvalidRequestError
from radixserve.model.info import ModelInfo
from radixserve.scheduling.describe import describe
from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.scheduling.progress import Progress
from radixserve.scheduling.request import Request
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tenant import Terms

log = logging.getLogger(__name__)

STALLED_PLANS = 200
"""Plans without a single token, although requests wait, after which one of them is given up."""


class Launched(Protocol):
    """A step that the device computes."""

    @property
    def followable(self) -> bool:
        """Whether another may be launched behind it before its tokens are known."""

    def collect(self) -> list[tuple[Sampled, ...]]:
        """Wait for its end. One entry a row: empty if the row samples nothing, else its own token
        and then those of its forks."""


class Runner(Protocol):
    """What computes a step: ``radixserve.model.runner.ModelRunner``, or a stand-in in tests."""

    info: ModelInfo

    @property
    def launch(self) -> Callable[[StepPlan], Launched] | None:
        """Queues a step behind the one that was launched before, which chooses the tokens that are
        ``UNKNOWN`` in it; the plan may change once this has returned. None where a step is computed
        at once, by ``execute``."""

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        """Run the copies, then the rows; returns what ``collect`` does."""


class Flight(NamedTuple):
    """A step that is being computed."""

    plan: StepPlan
    launched: Launched


class EngineCore:
    """Cache, scheduler and model of one engine. Not thread-safe: one thread owns it."""

    def __init__(self, config: EngineConfig, runner: Runner):
        info = runner.info
        self.config = config
        self.runner = runner
        self.cache = PrefixCache(info.num_pages, config.page_size, enabled=config.prefix_cache)
        self.scheduler = Scheduler(
            self.cache, config, max_model_len=info.max_model_len, eos_tokens=info.eos_token_ids
        )
        self._steps = 0
        self._flight: Flight | None = None
        self._seeds = random.Random(config.seed)
        self._barren = 0
        """Plans in a row that had nothing in them although requests wait."""

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: an empty prompt, or a token id that the model does not have.
            ContextLengthError: the prompt can never fit.
            OverloadedError: the queue is full.
        """
        vocabulary = self.runner.info.vocab_size
        request.sampling.check_vocabulary(vocabulary)
        tokens = np.frombuffer(request.tokens, dtype=">i4")
        unknown = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
        if unknown.size:
            position = int(unknown[0])
            raise InvalidRequestError(
                f"Token {tokens[position]} at position {position} of the prompt does not exist: "
                f"this model has {vocabulary}.",
                param="prompt",
            )
        sampling = request.sampling
        if sampling.seed is None and not sampling.greedy:
            sampling = replace(sampling, seed=self._seeds.getrandbits(63))
        self.scheduler.add(
            request.id,
            request.tokens,
            sampling,
            namespace=on_engine(self.runner.info.kv_format, request.namespace),
            tenant=request.tenant,
            deadline=request.deadline,
            priority=request.priority,
            sibling=request.sibling,
            reuse=request.cache != "off",
            keep=request.cache == "on",
        )

    def abort(self, request_id: str) -> GenerationDelta | None:
        """End a request and give back what it holds; None if it has ended already."""
        request = self.scheduler.abort(request_id)
        return None if request is None else _delta(Progress(request, finish="abort"))

    def unstarted(self, request_id: str) -> bool:
        """Whether a request waits for its first step, and for no other of its prompt. O(1)."""
        request = self.scheduler.waiting.get(request_id)
        return request is not None and request.cached is None and request.sibling is None

    def step(self) -> list[GenerationDelta]:
        """Compute one step; where the runner launches steps, launch one and collect the one before.

        Empty when no sequence got a token, also when there is nothing to do. A step that raises
        fails the requests in it, and with them their rows in the step behind it; the others go on.

        Raises:
            EngineDeadError: what computes steps has ended.
        """
        launch = self.runner.launch
        if launch is not None:
            return self._overlap(launch)
        plan = self.scheduler.plan()
        if plan is None:
            return [] if self.idle else self._stalled()
        self._barren = 0
        self._steps += 1
        try:
            sampled = self.runner.execute(plan)
        except EngineDeadError:
            raise
        except Exception as error:
            return self._fail(plan, error)
        return [_delta(progress) for progress in self.scheduler.commit(plan, sampled)]

    def _stalled(self) -> list[GenerationDelta]:
        """Work waits and nothing can be computed: that is a fault of ours, and costs one request
        before it becomes a hang."""
        self._barren += 1
        if self._barren < STALLED_PLANS:
            return []
        self._barren = 0
        request = self.scheduler.first()
        log.error("no progress in %d plans: %s", STALLED_PLANS, describe(self.scheduler))
        self.scheduler.abort(request.id, "error")
        error = "The server could not make progress with it."
        return [_delta(Progress(request, finish="error", error=error))]

    def _overlap(self, launch: Callable[[StepPlan], Launched]) -> list[GenerationDelta]:
        before, self._flight = self._flight, None
        plan, fault = None, None
        if before is None or before.launched.followable:
            plan = self.scheduler.plan(None if before is None else before.plan)
        if plan is None and before is None:
            return [] if self.idle else self._stalled()
        self._barren = 0
        if plan is not None:
            self._steps += 1
            try:
                self._flight = Flight(plan, launch(plan))
            except EngineDeadError:
                raise
            except Exception as error:
                fault = error
        deltas = [] if before is None else self._collect(before)
        if plan is not None and fault is not None:
            # Only now: those that the step before has ended had no need of this one.
            deltas += self._fail(plan, fault)
        return deltas

    def _collect(self, flight: Flight) -> list[GenerationDelta]:
        try:
            sampled = flight.launched.collect()
        except EngineDeadError:
            raise
        except Exception as error:
            return self._fail(flight.plan, error)
        return [_delta(progress) for progress in self.scheduler.commit(flight.plan, sampled)]

    def _fail(self, plan: StepPlan, error: Exception) -> list[GenerationDelta]:
        rows = len(plan.rows)
        log.error("step %d failed with %d requests in it", plan.step, rows, exc_info=error)
        failed = self.scheduler.fail(plan, f"The step that computed this failed: {error}")
        return [_delta(progress) for progress in failed]

    @property
    def idle(self) -> bool:
        """Whether no request is left, and no step is being computed."""
        return self._flight is None and self.scheduler.idle

    def reset_prefix_cache(self, tenant: str | None = None) -> Purge:
        """Forget all cached prefixes, or a tenant's; running requests keep what they hold."""
        return self.cache.reset(tenant)

    def set_tenants(self, terms: Mapping[str, Terms]) -> None:
        """These are the terms of tenants from now on."""
        self.cache.set_terms(terms)
        self.scheduler.set_terms(terms)

    def stats(self) -> EngineStats:
        """Gauges and totals as of now. O(1)."""
        totals = self.scheduler.totals
        return EngineStats(
            steps=self._steps,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            pages_total=self.cache.pool.num_pages - 1,
            pages_free=self.cache.pool.free,
            pages_evictable=self.cache.tree.evictable,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            computed_tokens=totals.computed_tokens,
            generated_tokens=totals.generated_tokens,
            preemptions=totals.preemptions,
            evicted_pages=self.cache.evicted,
            radix_nodes=self.cache.tree.nodes,
            finished=dict(totals.finished),
        )


def _delta(progress: Progress) -> GenerationDelta:
    request = progress.request
    sampled = progress.sampled
    return GenerationDelta(
        id=request.id,
        sampled=() if sampled is None else (sampled,),
        finish=progress.finish,
        stop_token=sampled.token if sampled is not None and progress.finish == "stop" else None,
        usage=_usage(request),
        error=progress.error,
    )


def _usage(request: Request) -> Usage:
    return Usage(request.prompt_length, request.generated, request.cached or 0, request.copied)
