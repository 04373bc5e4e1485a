"""The step loop: plan, compute, commit; on a GPU the next step is planned while one is computed.

host    plan 1, launch | plan 2, launch | collect 1, commit | plan 3, launch | collect 2, ...
device                 | step 1 ....................| step 2 ......................| step 3 ...
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from radixserve.cache.namespace import PUBLIC, on_engine
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.purge import Purge
from radixserve.config import EngineConfig
from radixserve.engine.caches import new_cache
from radixserve.engine.delta import delta_of
from radixserve.engine.grammars import NO_GRAMMARS, Grammars
from radixserve.engine.messages import EngineStats, GenerationDelta, GenerationRequest
from radixserve.engine.stats import stats_of
from radixserve.engine.waits import Waits
from radixserve.errors import EngineDeadError, InvalidRequestError, LostError, RadixServeError
from radixserve.model.info import ModelInfo
from radixserve.scheduling.ahead import tokens_before
from radixserve.scheduling.describe import describe
from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.scheduling.progress import Progress
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tenant import Terms

log = logging.getLogger(__name__)

COMPILING = 0.005
"""Seconds that a grammar is waited for until commands are looked for again."""
NO_EMBEDDINGS = (
    "This model gives no embeddings here: that takes radixserve's own decoder for CPUs, or "
    "transformers, and no other ranks."
)
STALLED_PLANS = 200
"""Plans without a single token, although requests wait, after which one of them is given up."""
FAILURES = 10
"""Steps in a row that fail, after which the engine is given up: a GPU that has failed once may
compute nothing more in the same process."""


class Launched(Protocol):
    """A step that the device computes."""

    @property
    def followable(self) -> bool:
        """Whether another may be launched behind it before its tokens are known."""

    def collect(self) -> list[tuple[Sampled, ...]]:
        """Wait for its end. One entry a row: its own token and then those of its forks, if it
        samples, and then the tokens that it scores."""


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

    def close(self) -> None:
        """End what it has started beside this process."""


class Flight(NamedTuple):
    """A step that is being computed."""

    plan: StepPlan
    launched: Launched


class EngineCore:
    """Cache, scheduler and model of one engine. Not thread-safe: one thread owns it.

    A step that cannot be computed ends its requests and nobody else's. An exception anywhere else
    leaves cache and scheduler half way between two states: they are thrown away, all requests with
    them, and new ones take their place.
    """

    def __init__(self, config: EngineConfig, runner: Runner, grammars: Grammars | None = None):
        self.config = config
        self.runner = runner
        self._grammars = grammars
        self.scheduler = self._empty()
        self.waits = Waits()
        self._terms: Mapping[str, Terms] = {}
        self._public: Sequence[bytes] = ()
        self._steps = 0
        self._flights: deque[Flight] = deque()
        """The steps that are being computed, in order: after ``step`` there is at most one."""
        self._seeds = random.Random(config.seed)
        self._barren = 0
        """Plans in a row that had nothing in them although requests wait."""
        self._failures = 0
        """Steps in a row that failed."""

    @property
    def cache(self) -> PrefixCache:
        return self.scheduler.cache

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: an empty prompt, a token id that the model does not have, a
                grammar although its answers can have none, or nothing but ends to choose from.
            ContextLengthError: the prompt can never fit.
            OverloadedError: the queue is full.
            LostError: all requests were lost, this one too.
        """
        vocabulary, sampling = self.runner.info.vocab_size, request.sampling
        sampling.check_vocabulary(vocabulary)
        sampling.check_ends(self.runner.info.eos_token_ids, vocabulary)
        tokens = np.frombuffer(request.tokens, dtype=">i4")
        unknown = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
        if unknown.size:
            position = int(unknown[0])
            raise InvalidRequestError(
                f"Token {tokens[position]} at position {position} of the prompt does not exist: "
                f"this model has {vocabulary}.",
                param="prompt",
            )
        if sampling.pooling is not None and self.runner.info.embedding_size is None:
            raise InvalidRequestError(NO_EMBEDDINGS, code="unsupported_parameter")
        if sampling.seed is None and not sampling.greedy:
            sampling = replace(sampling, seed=self._seeds.getrandbits(63))
        namespace = on_engine(self.runner.info.kv_format, request.namespace)
        matcher = None
        if sampling.grammar is not None:
            if self._grammars is None:
                raise InvalidRequestError(NO_GRAMMARS, code="unsupported_parameter")
            matcher = self._grammars.matcher(sampling.grammar)
        with self._all_or_anew():
            self.scheduler.add(
                request.id,
                request.tokens,
                sampling,
                namespace=namespace,
                tenant=request.tenant,
                deadline=request.deadline,
                priority=request.priority,
                sibling=request.sibling,
                follows=request.follows,
                # A mean is made of the hidden states of all tokens, and only KV is cached.
                reuse=request.cache != "off" and sampling.pooling != "mean",
                keep=request.cache == "on",
                matcher=matcher,
                keeping=request.keeping,
            )

    def abort(self, request_id: str) -> GenerationDelta | None:
        """End a request and give back what it holds; None if it has ended already.

        Raises:
            LostError: all requests were lost.
        """
        with self._all_or_anew():
            self.waits.forget(request_id)
            request = self.scheduler.abort(request_id)
            return None if request is None else delta_of(Progress(request, finish="abort"))

    def unstarted(self, request_id: str) -> bool:
        """Whether a request waits for its first step, and for no other of its prompt. O(1)."""
        request = self.scheduler.waiting.get(request_id)
        return request is not None and request.cached is None and request.sibling is None

    def tokens_before(self, request_id: str) -> int:
        """Tokens that are surely computed before a request that waits has its first one; 0 when it
        does not wait. O(running + waiting)."""
        request = self.scheduler.waiting.get(request_id)
        return 0 if request is None else tokens_before(self.scheduler, request)

    def step(self) -> list[GenerationDelta]:
        """Compute one step; where the runner launches steps, launch one and collect the one before.

        Empty when no sequence got a token, also when there is nothing to do. A step that cannot be
        computed fails the requests in it, and with them their rows in the step behind it; the
        others go on.

        Raises:
            EngineDeadError: what computes steps has ended, or does nothing but fail.
            LostError: all requests were lost.
        """
        with self._all_or_anew():
            launch = self.runner.launch
            return self._compute() if launch is None else self._overlap(launch)

    def _compute(self) -> list[GenerationDelta]:
        plan = self.scheduler.plan()
        if plan is None:
            return [] if self.idle else self._stalled()
        self._barren = 0
        self._steps += 1
        self.waits.end(plan)
        try:
            sampled = self.runner.execute(plan)
        except EngineDeadError:
            raise
        except Exception as error:
            return self._fail(plan, error)
        return self._commit(plan, sampled)

    def _stalled(self) -> list[GenerationDelta]:
        """Work waits and nothing can be computed: that is a fault of ours, and costs one request
        before it becomes a hang. A grammar that is being compiled is waited for a moment, in which
        nobody else could be computed either."""
        if self._grammars is not None and self._compiling():
            self._grammars.await_one(COMPILING)
            return []
        self._barren += 1
        if self._barren < STALLED_PLANS:
            return []
        self._barren = 0
        request = self.scheduler.first()
        log.error("no progress in %d plans: %s", STALLED_PLANS, describe(self.scheduler))
        self.waits.forget(request.id)
        self.scheduler.abort(request.id, "error")
        error = "The server could not make progress with it."
        return self._told([Progress(request, finish="error", error=error)])

    def _compiling(self) -> bool:
        """Whether somebody waits for a grammar. O(waiting)."""
        waiting = self.scheduler.waiting
        return any(each.matcher is not None and not each.matcher.ready for each in waiting)

    def _overlap(self, launch: Callable[[StepPlan], Launched]) -> list[GenerationDelta]:
        before = self._flights[0] if self._flights else None
        plan, fault = None, None
        if before is None or before.launched.followable:
            plan = self.scheduler.plan(None if before is None else before.plan)
        if plan is None and before is None:
            return [] if self.idle else self._stalled()
        self._barren = 0
        if plan is not None:
            self._steps += 1
            self.waits.end(plan)
            try:
                self._flights.append(Flight(plan, launch(plan)))
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
            self._flights.popleft()
            return self._fail(flight.plan, error)
        self._flights.popleft()
        return self._commit(flight.plan, sampled)

    def _commit(self, plan: StepPlan, sampled: list[tuple[Sampled, ...]]) -> list[GenerationDelta]:
        self._failures = 0
        return self._told(self.scheduler.commit(plan, sampled))

    def _fail(self, plan: StepPlan, error: Exception) -> list[GenerationDelta]:
        rows = len(plan.rows)
        log.error("step %d failed with %d requests in it", plan.step, rows, exc_info=error)
        failed = self.scheduler.fail(plan, f"The step that computed this failed: {_words(error)}")
        self._failed(error)
        return self._told(failed)

    def _told(self, progress: list[Progress]) -> list[GenerationDelta]:
        take = self.waits.take
        return [delta_of(each, take(each.request.id)) for each in progress]

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            raise EngineDeadError(
                f"{FAILURES} steps failed one after the other, the last one so: {_words(error)}"
            ) from error

    @contextmanager
    def _all_or_anew(self) -> Iterator[None]:
        """What changes cache or scheduler is done in here, to its end or not at all."""
        try:
            yield
        except (RadixServeError, GeneratorExit):
            raise  # before anything was changed
        except Exception as error:
            log.exception("all requests are lost: %d", self._begin_anew())
            self._failed(error)
            raise LostError(f"The engine has failed: {_words(error)}") from error
        except BaseException:  # somebody at a keyboard
            self._begin_anew()
            raise

    def _begin_anew(self) -> int:
        """Forget all requests and all that is cached. Returns how many requests that were."""
        before, self.scheduler, self.waits = self.scheduler, self._empty(), Waits()
        lost = len(before.running) + len(before.waiting)
        self.scheduler.totals = totals = before.totals
        totals.finished["error"] = totals.finished.get("error", 0) + lost
        self.cache.accounts.keeps.go_on(before.cache.accounts.keeps)
        self.cache.allocator.evicted = before.cache.evicted
        self.set_tenants(self._terms)
        self.set_public(self._public)
        while self._flights:
            # Its pages are taken by others, once it does not write to them any more.
            with suppress(Exception):
                self._flights.popleft().launched.collect()
        return lost

    def _empty(self) -> Scheduler:
        info, config = self.runner.info, self.config
        cache = new_cache(info.num_pages, config)
        return Scheduler(
            cache, config, max_model_len=info.max_model_len, eos_tokens=info.eos_token_ids
        )

    @property
    def idle(self) -> bool:
        """Whether no request is left, and no step is being computed."""
        return not self._flights and self.scheduler.idle

    def reset_prefix_cache(self, tenants: Collection[str] | None = None) -> Purge:
        """Forget all cached prefixes, or some tenants'; running requests keep what they hold.

        Raises:
            LostError: all requests were lost, and of prefixes nothing is left.
        """
        with self._all_or_anew():
            return self.cache.reset(tenants)

    def purge(self, namespace: bytes) -> Purge:
        """The same of one namespace, which says nothing of how KV is kept.

        Raises:
            LostError: as ``reset_prefix_cache``.
        """
        with self._all_or_anew():
            return self.cache.purge(on_engine(self.runner.info.kv_format, namespace))

    def end_session(self, tenant: str, namespace: bytes, session: str) -> int | None:
        """See ``PrefixCache.end_session``; ``namespace`` says nothing of how KV is kept.

        Raises:
            LostError: as ``reset_prefix_cache``.
        """
        with self._all_or_anew():
            namespace = on_engine(self.runner.info.kv_format, namespace)
            return self.cache.end_session(tenant, namespace, session)

    def set_tenants(self, terms: Mapping[str, Terms]) -> None:
        """These are the terms of tenants from now on."""
        self._terms = terms
        self.cache.set_terms(terms)
        self.scheduler.set_terms(terms)

    def set_public(self, prefixes: Sequence[bytes]) -> None:
        """All tenants share these prefixes from now on, and no others."""
        self._public = prefixes
        namespace = on_engine(self.runner.info.kv_format, PUBLIC)
        self.cache.set_public(prefixes, namespace=namespace)

    def stats(self, *, whole: bool = True) -> EngineStats:
        """Gauges and totals as of now. O(1), and O(tenants + requests) for what they add to it."""
        return stats_of(self.scheduler, self._steps, whole=whole)


def _words(error: Exception) -> str:
    return str(error) or repr(error)
