"""A model that says one text over and over."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import CacheMode, GenerationDelta, GenerationRequest
from radixserve.model.info import ModelInfo
from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.scheduling.simulated import SimulatedModel

PROMPT = list(range(20, 61))
PAGE = 4

TEXT = "The tree keeps what it has seen, and gives it away again. "


class SayingModel(SimulatedModel):
    """Says ``TEXT`` over and over, byte by byte, from where the answer stands; checks its KV."""

    def __init__(self, config: EngineConfig, num_pages: int, offset: int):
        super().__init__(num_pages, config.page_size, config.max_num_batched_tokens)
        self._offset = offset
        self._held = False
        self._permits = threading.Semaphore(0)
        self.fail_at: int | None = None
        self.steps = 0
        self.info = ModelInfo(
            vocab_size=266,
            max_model_len=400,
            eos_token_ids=frozenset({2}),
            num_pages=num_pages,
            dtype="float32",
            backend="simulated",
            kv_bytes_per_token=1,
            sampling_defaults={},
        )

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        if self._held:
            self._permits.acquire()
        self.steps += 1
        for row in plan.rows:
            self.namespaces.setdefault(row.request_id, b"")
        if self.fail_at == self.steps:
            raise RuntimeError("the device is on fire")
        super().execute(plan)
        return [
            tuple(self._say(row.generated) for _ in range(1 + len(row.forks)))
            if row.sampling
            else ()
            for row in plan.rows
        ]

    def close(self) -> None:
        """There is nothing beside it."""

    def hold(self) -> None:
        """From now on a step only runs when it is allowed to."""
        while self._permits.acquire(blocking=False):
            pass
        self._held = True

    def allow(self, steps: int) -> None:
        """Let ``steps`` more steps run."""
        self._permits.release(steps)

    def free(self) -> None:
        """Let all steps run."""
        self._held = False
        self._permits.release()

    def _say(self, index: int) -> Sampled:
        said = TEXT.encode()[index % len(TEXT)] + self._offset
        return Sampled(said, logprob=-0.5, top=((said, -0.5), (said + 1, -1.5)))


def engine(num_pages: int = 100, **settings: int) -> EngineCore:
    config = EngineConfig(**{"page_size": PAGE, "max_num_seqs": 8, **settings})
    return EngineCore(config, SayingModel(config, num_pages, offset=3))


def add(core: EngineCore, name: str, mode: CacheMode, *, sibling: str | None = None) -> None:
    core.add(
        GenerationRequest(
            id=name,
            tokens=pack(PROMPT),
            sampling=SamplingParams(max_tokens=12, temperature=0.0),
            cache=mode,
            sibling=sibling,
        )
    )


def run(
    core: EngineCore, *names: str, begun: Iterable[GenerationDelta] = ()
) -> dict[str, tuple[str, int]]:
    """Each answer's text, and how many tokens of its prompt it reused; ``begun`` has come."""
    said = dict.fromkeys(names, "")
    cached = {}
    deltas = begun
    while deltas or not core.idle:
        for delta in deltas or core.step():
            said[delta.id] += bytes(each.token - 3 for each in delta.sampled).decode()
            cached[delta.id] = delta.usage.cached_tokens
        deltas = ()
        core.cache.check()
    assert set(said.values()) == {TEXT[:12]}
    return {name: (said[name], cached[name]) for name in names}
