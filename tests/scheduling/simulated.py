"""A model without weights: its KV remembers what it was computed from, and it checks what it reads.

A slot of KV holds the identity of the whole prefix up to its token. Before a row is computed, every
slot that it attends to must hold the identity of the row's own prefix: the reuse of a wrong page, a
copy that has not run, or a page that was handed out twice is seen at once.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

from radixserve.cache.pages import SCRATCH_PAGE
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import EngineConfig
from radixserve.scheduling.plan import MAX_SCORED, Row, Sampled, StepPlan
from radixserve.scheduling.progress import Progress
from radixserve.scheduling.request import Request
from radixserve.scheduling.sampling import SamplingParams
from radixserve.scheduling.scheduler import Scheduler
from radixserve.tokens import TOKEN_BYTES, pack, unpack

VOCABULARY = 1000


def identities(
    tokens: bytes | bytearray, namespace: bytes, count: int, public: bytes = b""
) -> list[int]:
    """What the KV of the first ``count`` tokens must hold; ``public`` is a shared prefix."""
    shared = len(public) if public and tokens.startswith(public) else 0
    found, state = [], zlib.crc32(b"public" if shared else namespace)
    for at in range(0, count * TOKEN_BYTES, TOKEN_BYTES):
        if shared and at == shared:
            state = zlib.crc32(namespace, state)
        state = zlib.crc32(tokens[at : at + TOKEN_BYTES], state)
        found.append(state)
    return found


def next_token(history: bytes | bytearray, salt: int = 0) -> int:
    """The token that the simulated model always says after ``history``."""
    return zlib.crc32(bytes(history), salt) % VOCABULARY


def expected_output(prompt: list[int], count: int, salt: int = 0) -> list[int]:
    """What a request for ``count`` tokens must answer, however it is scheduled."""
    history = bytearray(pack(prompt))
    for _ in range(count):
        history += pack([next_token(history, salt)])
    return unpack(history)[len(prompt) :]


def scores(row: Row) -> tuple[Sampled, ...]:
    """A token that is scored has its own position as its rank."""
    tokens = unpack(row.history)
    assert set(row.scores) <= set(range(row.start, row.context))
    return tuple(Sampled(tokens[at + 1], -1.0, rank=at + 1) for at in row.scores)


class SimulatedModel:
    """Executes plans on simulated KV. ``namespaces`` says which request is in which."""

    launch = None

    def __init__(self, num_pages: int, page_size: int, budget: int):
        self.page_size = page_size
        self.budget = budget
        self.kv = [[0] * page_size for _ in range(num_pages)]
        self.namespaces: dict[str, bytes] = {}
        self.computed = 0
        self.public = b""

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        assert plan.rows
        assert plan.tokens <= self.budget, "a step computes more than its budget"
        assert sum(len(row.scores) for row in plan.rows) <= MAX_SCORED
        assert plan.tokens == sum(row.count for row in plan.rows)
        for row in plan.rows[: plan.decoding]:
            assert row.count == 1
            assert row.sampling is not None
        self.computed += plan.tokens
        for copy in plan.copies:
            self.kv[copy.target][: copy.tokens] = self.kv[copy.source][: copy.tokens]
        sampled: list[tuple[Sampled, ...]] = []
        written: set[tuple[int, int]] = set()
        for row in plan.rows:
            namespace = self.namespaces[row.request_id]
            start, end = row.start, row.context
            assert row.tokens == row.history[start * TOKEN_BYTES : end * TOKEN_BYTES]
            assert SCRATCH_PAGE not in row.pages
            right = identities(row.history, namespace, end, self.public)
            for position in range(start):
                page, slot = row.pages[position // self.page_size], position % self.page_size
                assert self.kv[page][slot] == right[position], f"wrong KV at {position}"
            for position in range(start, end):
                place = (row.pages[position // self.page_size], position % self.page_size)
                assert place not in written, "two rows write the same slot"
                written.add(place)
                self.kv[place[0]][place[1]] = right[position]
            scored = scores(row)
            if row.sampling is None:
                sampled.append(scored)
                continue
            assert row.context * TOKEN_BYTES == len(row.history)
            choices = [row.sampling, *(fork.sampling for fork in row.forks)]
            sampled.append(
                tuple(Sampled(next_token(row.history, each.seed or 0)) for each in choices) + scored
            )
        return sampled


class Simulation:
    """A scheduler, its cache and a simulated model, stepped by hand and checked at every step."""

    def __init__(
        self, *, num_pages: int = 64, page_size: int = 4, max_model_len: int = 200, **settings
    ):
        settings.setdefault("max_num_seqs", 8)
        settings.setdefault("max_num_batched_tokens", 32)
        self.config = EngineConfig(page_size=page_size, **settings)
        self.cache = PrefixCache(num_pages, page_size, enabled=self.config.prefix_cache)
        self.scheduler = Scheduler(self.cache, self.config, max_model_len=max_model_len)
        self.model = SimulatedModel(num_pages, page_size, self.config.max_num_batched_tokens)
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.requests: dict[str, Request] = {}
        self.check = True
        self.on_plan: Callable[[StepPlan], None] = lambda plan: None

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 4,
        *,
        namespace: bytes = b"",
        priority: int = 0,
        sibling: str | None = None,
        tenant: str = "",
        deadline: float | None = None,
        follows: bool = False,
        **sampling,
    ) -> Request:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **sampling)
        request = self.scheduler.add(
            name,
            pack(prompt),
            params,
            namespace=namespace,
            priority=priority,
            sibling=sibling,
            tenant=tenant,
            deadline=deadline,
            follows=follows,
        )
        self.model.namespaces[name] = namespace
        self.outputs[name] = []
        self.requests[name] = request
        return request

    def abort(self, name: str) -> None:
        self.scheduler.abort(name)
        self.finished[name] = "abort"

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.on_plan(plan)
        sampled = self.model.execute(plan)
        self.take(self.scheduler.commit(plan, sampled))
        if self.check:
            self.cache.check()
        return plan

    def take(self, progress: list[Progress]) -> None:
        for each in progress:
            if each.sampled is not None:
                self.outputs[each.request.id].append(each.sampled.token)
            if each.finish is not None:
                self.finished[each.request.id] = each.finish

    def run(self, most: int = 10_000) -> int:
        """Step until nothing is left; returns the steps that it took."""
        for steps in range(most):
            if self.scheduler.idle:
                return steps
            assert self.step() is not None, "work is waiting and nothing is planned"
        raise AssertionError("the scheduler does not come to an end")

    def assert_idle(self) -> None:
        self.cache.check()
        assert not self.cache.leases
        assert len(self.scheduler.in_flight) == 0
        assert self.cache.available == self.cache.pool.num_pages - 1
        assert self.cache.tree.evictable == self.cache.tree.pages


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000) for _ in range(length)]


def planned(simulation: Simulation) -> StepPlan:
    plan = simulation.scheduler.plan()
    assert plan is not None
    return plan
