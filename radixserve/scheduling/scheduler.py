"""Which tokens the next step computes.

There is no prefill phase and no decode phase: every running request has computed tokens chasing
known ones, and a step fills its budget with whatever is behind (Yu et al., "Orca", OSDI 2022;
Agrawal et al., "Sarathi-Serve", OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from radixserve.cache.lease import Lease
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping
from radixserve.config import EngineConfig
from radixserve.errors import ContextLengthError, InvalidRequestError, OverloadedError
from radixserve.scheduling.account import Accounts
from radixserve.scheduling.draft import Draft
from radixserve.scheduling.grammar import Matcher
from radixserve.scheduling.inflight import InFlight
from radixserve.scheduling.plan import Fork, Sampled, StepPlan
from radixserve.scheduling.progress import Progress, Totals, parted
from radixserve.scheduling.queue import WaitingQueue
from radixserve.scheduling.request import MAX_PREEMPTIONS, FinishReason, Request
from radixserve.scheduling.running import RunningRequests
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import TOKEN_BYTES


class Scheduler:
    """Deterministic and without a clock: the same calls give the same plans.

    ``plan`` and ``commit`` (or ``fail``) alternate, or one plan is made behind another before that
    is committed. ``add`` and ``abort`` may come between any two calls, also while a plan is being
    computed.
    """

    def __init__(
        self,
        cache: PrefixCache,
        config: EngineConfig,
        *,
        max_model_len: int,
        eos_tokens: frozenset[int] = frozenset(),
    ):
        self.cache = cache
        self.config = config
        self.eos_tokens = eos_tokens
        self.capacity = min(max_model_len, (cache.pool.num_pages - 1) * cache.page_size)
        """Tokens of the longest request that can ever run: what the model and the pool hold."""
        self.running = RunningRequests()
        self.in_flight = InFlight(cache, self.running)
        self.waiting = WaitingQueue(
            self.in_flight, max_passes=config.max_passes, quantum=config.max_num_batched_tokens
        )
        self.accounts = Accounts()
        self.totals = Totals()
        self.plans = 0
        self._arrivals = 0
        self._chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        """Tokens of one prefill in a step at most."""
        self._short = False
        """Whether a plan behind another one found no pages for somebody, or no seat."""

    def add(
        self,
        request_id: str,
        tokens: bytes,
        sampling: SamplingParams,
        *,
        namespace: bytes = b"",
        tenant: str = OPEN,
        priority: int = 0,
        sibling: str | None = None,
        follows: bool = False,
        reuse: bool = True,
        keep: bool = True,
        deadline: float | None = None,
        matcher: Matcher | None = None,
        keeping: Keeping | None = None,
    ) -> Request:
        """Queue a prompt (int32 big-endian). O(log requests + tokens).

        Raises:
            InvalidRequestError: the prompt is empty.
            ContextLengthError: the prompt leaves no room for an answer, ever.
            OverloadedError: the queue is full.
        """
        length = len(tokens) // TOKEN_BYTES
        if length == 0:
            raise InvalidRequestError("The prompt is empty.", param="prompt")
        if length >= self.capacity:
            raise ContextLengthError(length, self.capacity)
        # Whoever finds a free seat at the next step does not count as one that waits.
        bound = self.config.max_num_seqs + self.config.max_queue
        if len(self.running) + len(self.waiting) >= bound:
            raise OverloadedError(f"{len(self.waiting)} requests are waiting already; try later.")
        self._arrivals += 1
        room, most = self.capacity - length, sampling.max_tokens
        request = Request(
            id=request_id,
            tokens=bytearray(tokens),
            prompt_length=length,
            limit=length + (room if most is None else min(room, most)),
            sampling=sampling,
            stop_tokens=sampling.stops(self.eos_tokens),
            namespace=namespace,
            tenant=tenant,
            account=self.accounts.of(tenant),
            priority=priority if self.config.scheduling_policy == "priority" else 0,
            arrival=self._arrivals,
            sibling=sibling,
            follows=follows,
            reuse=reuse,
            keep=keep and self.cache.enabled,
            deadline=deadline,
            queued=self.plans,
            matcher=matcher,
            keeping=keeping,
        )
        self.waiting.add(request)
        return request

    def abort(self, request_id: str, reason: FinishReason = "abort") -> Request | None:
        """End a request wherever it is, and give back what it holds; None if it has ended. O(1)."""
        request = self.running.get(request_id) or self.waiting.get(request_id)
        if request is not None:
            self._finish(request, reason)
        return request

    def set_terms(self, terms: Mapping[str, Terms]) -> None:
        """These are the terms of tenants from now on. O(tenants)."""
        self.accounts.set_terms(terms)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def first(self) -> Request:
        """The first request in line, running ones before waiting ones; there has to be one."""
        return (self.running.by_rank() or sorted(self.waiting, key=attrgetter("rank")))[0]

    # Planning

    def plan(self, behind: StepPlan | None = None) -> StepPlan | None:
        """The next step, or None when there is nothing to compute.

        ``behind`` is the plan before, where that is not committed yet (all others are): it is the
        next to be committed. Then None may also mean that the step has to wait for the commit.

        O(running requests + waiting ones looked at).
        """
        self.plans += 1
        draft = Draft(self.config.max_num_batched_tokens)
        if behind is None:
            self._short = False
        elif self._short:
            return None
        else:
            draft.go_on(behind, self.running.by_id)
        preemptions = self.totals.preemptions
        prefills: list[Request] = []
        # Decoding goes first, so that a long prefill never takes a stream's turn.
        for request in self.running.by_rank():
            row, lease = request.row, request.lease
            if row is None or lease is None:
                prefills.append(request)
            elif row.start < lease.room or self._make_room(request, lease, row.start + 1, draft):
                draft.decoding[request.id] = row
        # There is always a token for each of them, and whom they preempted had no row yet.
        draft.budget -= len(draft.decoding)
        for request in prefills:
            lease, start = request.lease, draft.start(request)
            end = draft.end(request, start, self._chunk)
            # One without a lease was preempted by one before it.
            if lease is not None and end > start and self._make_room(request, lease, end, draft):
                self._compute(request, start, end, draft)
        if self.waiting and preemptions == self.totals.preemptions and not self._short:
            self._admit(draft, prefills)
        rows = [*draft.decoding.values(), *draft.chunks.values()]
        if not rows:
            return None
        draft.plan_forks(self.waiting, self.running.by_id, self._seats(draft))
        # Only now is anything in flight: what planning gave back may be used by the plan itself.
        plan = StepPlan(self.cache.begin_step(), rows, decoding=len(draft.decoding))
        for lease in draft.copying:
            plan.copies.extend(lease.copies)
        return plan

    def _compute(self, request: Request, start: int, end: int, draft: Draft) -> None:
        """Charged at once, so that whoever is chosen next in this plan is chosen knowing it."""
        draft.put(request.next_row(start, end - start))
        request.pay(start, end)

    def _make_room(self, request: Request, lease: Lease, end: int, draft: Draft) -> bool:
        """Get pages for the first ``end`` tokens, from those who come later if need be."""
        while not lease.extend(end - lease.computed):
            # Where nobody comes later it is this request that steps back.
            victim = self.running.victim(request.rank, pages_for=request.tenant) or request
            if not self._preempt(victim, draft) or victim is request:
                return False
        # The step before runs the copies of those that are in it.
        if lease.pending and request.id not in draft.reached:
            draft.copying.append(lease)
        return True

    def _preempt(self, request: Request, draft: Draft) -> bool:
        """Preemption is release: the pages turn into cold leaves, the place in the queue stays.

        Behind a plan that is being computed nobody is preempted (False): the pages would not be
        free before it ends, and the token that is being chosen would be lost. The next plan waits.
        """
        if draft.behind is not None:
            self._short = True
            return False
        draft.drop(request.id)
        self._leave(request)
        request.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.add(request)
        return True

    def _enter(self, request: Request, lease: Lease) -> None:
        """``request``, which waited, runs from now on."""
        self.waiting.start(request)
        request.lease = lease
        request.behind = None
        self.running.add(request)
        if not request.resumes:
            request.account.started += 1
            request.account.waited += self.plans - request.queued

    def _leave(self, request: Request) -> None:
        """``request`` does not run any more and holds nothing."""
        assert request.lease is not None, "a running request holds a lease"
        request.lease.release()
        request.lease = request.row = None
        self.running.remove(request)

    def _admit(self, draft: Draft, prefills: list[Request]) -> None:
        last = self.running.by_rank()[-1].priority if self.running else 0
        full = draft.budget < 1 or self._seats(draft) < 1
        if full and self.waiting.best >= last:
            return
        self.in_flight.begin([*draft.ready, *prefills], self.plans)
        for request in self.waiting.in_turn():
            if draft.budget < 1:
                break
            # A row of one of this id, that has ended, may still be being computed.
            if request.id in draft.reached or not request.ready or self.in_flight.defers(request):
                continue
            if not self._start(request, draft):
                # Whoever comes later waits too: nobody is starved by smaller ones.
                return
            start = request.computed
            end = draft.end(request, start, self._chunk)
            if end > start:
                self._compute(request, start, end, draft)
            self.in_flight.lead(request)
        # Those that find no token left may still lend their priority to a leader.
        for request in self.waiting.ahead_of(last):
            self.in_flight.defers(request)

    def _seats(self, draft: Draft) -> int:
        return self.config.max_num_seqs - len(self.running) - draft.promised

    def _start(self, request: Request, draft: Draft) -> bool:
        """Lease the cached prefix and room for the rest of what is known, if these and a seat are
        to be had, if need be from running requests of a lower class.

        A request that was preempted twice gets room for all that it may ever need, so that it is
        never in need of a page again.
        """
        if self._seats(draft) < 1 and not self._take_from_lower(request, draft):
            return False
        room = request.limit if request.preemptions >= MAX_PREEMPTIONS else request.known
        while (
            lease := self.cache.reserve(
                request.tokens,
                request.namespace,
                room,
                tenant=request.tenant,
                limit=request.reusable,
                keep=request.keep,
            )
        ) is None:
            if not self._take_from_lower(request, draft, pages=True):
                return False
        self._enter(request, lease)
        if lease.pending:
            draft.copying.append(lease)
        if request.cached is None:
            request.cached = min(lease.reused, request.prompt_length - 1)
            request.copied = max(0, request.cached - lease.published)
            request.missed = lease.missed
            if request.sibling is None and not request.follows:
                self.totals.prompt_tokens += request.prompt_length
                self.totals.cached_tokens += request.cached
        return True

    def _take_from_lower(self, request: Request, draft: Draft, *, pages: bool = False) -> bool:
        """Preempt the last running request of a lower class, if there is one; for its ``pages``,
        only where these may become those of ``request``."""
        victim = self.running.victim(request.rank, pages_for=request.tenant if pages else None)
        if victim is None or victim.priority <= request.priority:
            return False
        return self._preempt(victim, draft)

    def _fork(
        self, forks: Sequence[Fork], lease: Lease, cached: int | None, sampled: Sequence[Sampled]
    ) -> list[Progress]:
        """Siblings (n > 1) begin where the prompt ends, on the same pages."""
        progress = []
        for fork, token in zip(forks, sampled, strict=True):
            request = self.waiting.get(fork.request_id)
            if request is not None:
                request.cached = cached
                self._enter(request, lease.fork(request.tokens))
                finish = request.append(token.token)
                if finish is not None:
                    self._finish(request, finish)
                progress.append(Progress(request, token, finish))
        return progress

    # Committing

    def commit(self, plan: StepPlan, sampled: Sequence[Sequence[Sampled]]) -> list[Progress]:
        """The step has run: publish what it computed and take the tokens that it sampled.

        ``sampled`` has, for each row, its own token and those of its forks, if it samples, and then
        the tokens that it scores. O(rows + tokens scored + blocks published).
        """
        running = self.running.by_id
        progress: list[Progress] = []
        others: list[Progress] = []
        for row, tokens in zip(plan.rows, sampled, strict=True):
            request = running.get(row.request_id)
            if request is None or request.lease is None:
                continue  # aborted meanwhile
            lease = request.lease
            if lease.pending:
                lease.copied()
            scored: Sequence[Sampled] = ()
            if row.scores:
                tokens, scored = parted(request, row, tokens)
            if not tokens:
                lease.publish(row.context)
                whole = row.context >= request.limit  # nothing is to be generated
                if whole:
                    self._finish(request, "length")
                if whole or scored:
                    others.append(
                        Progress(request, None, "length" if whole else None, None, scored)
                    )
                continue
            chosen = tokens[0]
            if chosen.error is not None:
                others += self._spoilt(request, row.forks, chosen.error)
                continue
            # A row that samples ends with the last token that is known.
            lease.publish(request.known)
            if row.forks:
                progress += self._fork(row.forks, lease, request.cached, tokens[1:])
            finish = request.append(chosen.token)
            if finish is not None:
                self._finish(request, finish)
            progress.append(Progress(request, chosen, finish, None, scored))
        self.totals.computed_tokens += plan.tokens
        self.totals.generated_tokens += len(progress)
        self.cache.end_step(plan.step)
        return progress + others

    def fail(self, plan: StepPlan, error: str) -> list[Progress]:
        """The step has failed: nothing of it is published, and its requests end. O(rows)."""
        failed = [each for row in plan.rows if (each := self.running.get(row.request_id))]
        for request in failed:
            self._finish(request, "error")
        self.cache.end_step(plan.step)
        return [Progress(request, finish="error", error=error) for request in failed]

    def _spoilt(self, request: Request, forks: Sequence[Fork], error: str) -> list[Progress]:
        """A row's logits are no numbers: its KV may be as wrong, and none of it is kept."""
        assert request.lease is not None, "a running request holds a lease"
        request.lease.release(keep=False)
        ended = [request, *filter(None, [self.waiting.get(fork.request_id) for fork in forks])]
        for each in ended:
            self._finish(each, "error")
        return [Progress(each, finish="error", error=error) for each in ended]

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if reason != "error":
            request.keep_marks(self.cache)
        if request.lease is not None:
            self._leave(request)
        else:
            self.waiting.remove(request)
        if not request.follows:
            self.totals.finished[reason] = self.totals.finished.get(reason, 0) + 1
