"""An engine over overlapped steps that is checked at each of them, and random traffic for it."""

from __future__ import annotations

import random
from typing import Any

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationDelta, GenerationRequest
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.overlapped import OverlappedModel
from tests.scheduling.simulated import expected_output, prompt

ENDED = ("stop", "length")
INJECTED = ("no memory for this step", "the device is on fire", "output is not a number")


class Watched:
    """An engine over the stand-in, checked at every step."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        model: dict[str, Any] | None = None,
        **more,
    ):
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32} | more
        self.config = EngineConfig(page_size=page_size, **settings)
        self.model = OverlappedModel(self.config, num_pages, **(model or {}))
        self.core = EngineCore(self.config, self.model)
        self.wanted: dict[str, tuple[list[int], str]] = {}
        """The whole answer, and why it ends."""
        self.prompts: dict[str, int] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.errors: dict[str, str | None] = {}
        self.scores: dict[str, list[tuple[int, int]]] = {}
        """What is still to be scored of each prompt, by place."""
        self.planted = False
        """Whether something is wrong on purpose, for the stand-in to notice."""

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 4,
        *,
        namespace: bytes = b"",
        priority: int = 0,
        sibling: str | None = None,
        **sampling: Any,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **sampling)
        self.model.namespaces[name] = namespace
        self.core.add(
            GenerationRequest(
                id=name,
                tokens=pack(prompt),
                sampling=params,
                namespace=namespace,
                priority=priority,
                sibling=sibling,
            )
        )
        room = self.core.scheduler.capacity - len(prompt)
        answer = expected_output(prompt, min(max_tokens, room), params.seed or 0)
        stops = [i for i, token in enumerate(answer) if token in params.stop_token_ids]
        stop = next((i for i in stops if i >= params.min_tokens), None)
        self.wanted[name] = (answer, "length") if stop is None else (answer[: stop + 1], "stop")
        self.prompts[name] = len(prompt)
        start = len(prompt) if params.prompt_logprobs is None else params.prompt_logprobs_start
        self.scores[name] = list(enumerate(prompt))[start:]
        self.outputs[name] = []

    def abort(self, name: str) -> None:
        delta = self.core.abort(name)
        if delta is not None:
            self.take([delta])

    def step(self) -> list[GenerationDelta]:
        deltas = self.core.step()
        self.core.cache.check()
        assert len(self.core.scheduler.running) <= self.config.max_num_seqs
        self.take(deltas)
        return deltas

    def take(self, deltas: list[GenerationDelta]) -> None:
        for delta in deltas:
            assert delta.id not in self.finished, "something comes after the end"
            for each in delta.scored:
                assert not self.outputs[delta.id], "a prompt is scored after its answer"
                assert (each.rank, each.token) == self.scores[delta.id].pop(0)
            self.outputs[delta.id] += [sampled.token for sampled in delta.sampled]
            answer, reason = self.wanted[delta.id]
            if delta.finish == "error":
                assert delta.error is not None
                assert self.planted or delta.error.endswith(INJECTED), delta.error
            else:
                assert self.outputs[delta.id] == answer[: len(self.outputs[delta.id])]
                assert delta.usage.completion_tokens == len(self.outputs[delta.id])
            assert delta.usage.prompt_tokens == self.prompts[delta.id]
            if delta.finish is not None:
                self.finished[delta.id] = delta.finish
                self.errors[delta.id] = delta.error
            if delta.finish in ENDED:
                assert (self.outputs[delta.id], delta.finish) == (answer, reason)
                assert not self.scores[delta.id], "a score was lost"

    def run(self, most: int = 5000) -> int:
        for steps in range(most):
            if self.core.idle:
                return steps
            self.step()
        raise AssertionError("the engine does not come to an end")

    def assert_nothing_is_left(self) -> None:
        cache = self.core.cache
        cache.check()
        assert not cache.leases
        assert cache.pool.quarantined == 0
        assert cache.available == cache.pool.num_pages - 1
        assert self.finished.keys() == self.wanted.keys()


def traffic(watched: Watched, chance: random.Random, steps: int = 120) -> None:
    """Random requests: shared prefixes, stops, siblings, priorities, penalties, aborts, resets."""
    room = watched.core.scheduler.capacity
    stems = [prompt(chance.randrange(1, room), seed=100 + index) for index in range(4)]
    live: list[str] = []
    for step in range(steps):
        if chance.random() < 0.3 and step < steps - 30:
            stem = chance.choice(stems)
            tokens = stem[: chance.randrange(1, len(stem) + 1)]
            tokens = (tokens + prompt(chance.randrange(0, 4), seed=step))[: room - 1]
            live += ask(watched, chance, str(step), tokens)
        if live and chance.random() < 0.08:
            watched.abort(live.pop(chance.randrange(len(live))))
        if chance.random() < 0.01:
            watched.core.reset_prefix_cache()
            watched.core.cache.check()
        watched.step()
    watched.run()
    watched.assert_nothing_is_left()


def ask(watched: Watched, chance: random.Random, name: str, tokens: list[int]) -> list[str]:
    """A random request for an answer to ``tokens``, maybe an empty one, or for three."""
    names = [f"{name}/{index}" for index in range(chance.choice([1, 1, 1, 3]))]
    count = chance.randrange(14)
    for index, each in enumerate(names):
        answer = expected_output(tokens, count, index)
        stop = (answer[chance.randrange(count)],) if chance.random() < 0.4 and count else ()
        more = {"frequency_penalty": 0.1} if chance.random() < 0.05 else {}
        if not index and chance.random() < 0.15:
            more["prompt_logprobs"] = 0
            more["prompt_logprobs_start"] = chance.choice([1, 1, len(tokens) // 2 + 1])
        watched.add(
            each,
            tokens,
            count,
            seed=index,
            stop_token_ids=stop,
            min_tokens=chance.choice([0, 0, count // 2]),
            sibling=names[0] if index else None,
            namespace=chance.choice([b"", b"x"]) if len(names) == 1 else b"",
            priority=chance.randrange(-1, 2) if len(names) == 1 else 0,
            **more,
        )
    return names


def random_engine(chance: random.Random, seed: int, **faults: float) -> Watched:
    return Watched(
        num_pages=chance.choice([16, 24, 60]),
        page_size=chance.choice([1, 2, 4]),
        max_num_seqs=chance.choice([1, 3, 8]),
        max_num_batched_tokens=chance.choice([8, 16, 40]),
        long_prefill_token_threshold=chance.choice([0, 3]),
        scheduling_policy=chance.choice(["fcfs", "priority"]),
        prefix_cache=chance.random() < 0.85,
        model={"pace": chance.choice(["late", "early", "random"]), "seed": seed, **faults},
    )
