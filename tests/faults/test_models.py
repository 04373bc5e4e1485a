"""An exception at every point of what computes a step: arrays, attention, model, sampler, copies.

It ends those who are in that step, and nobody else; nothing of it is in the way of the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore, Runner
from radixserve.engine.messages import GenerationDelta, GenerationRequest
from radixserve.errors import LostError
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.computing import engine
from tests.faults.points import fault, planted, points
from tests.model import tiny
from tests.model.launched import PAGE, PAGES, LateDevice, TinyRunner

NATIVE = ("model", "attention", "kernels")
LAUNCHED = ("model/launch.py", "model/device_sampler.py", "attention/staging.py")
SEED = 1
OFTEN = 10
MOST_LOST = 2
"""Faults that may lie outside of what computes: a step is asked whether it can be followed."""
TOLD = (
    "The step that computed this failed: ",
    "its next token could not be chosen: ",
    "The engine has failed: ",
)
STEM = [(37 * i * i + 11 * i + 5) % tiny.VOCABULARY for i in range(30)]
ASKED = {
    "long": (STEM, {"temperature": 0.0}),
    "sharer": ([*STEM[:22], 7, 8], {"temperature": 0.0, "logprobs": 2}),
    "drawn": ([9, *STEM[:6]], {"seed": 3, "top_p": 0.9}),
    "n/0": (STEM[3:16], {"seed": 1, "top_k": 9}),
    "n/1": (STEM[3:16], {"seed": 2, "top_k": 9}),
    "careful": ([5, 6, *STEM[:4]], {"temperature": 0.0, "frequency_penalty": 0.4}),
}
CONFIG = {"page_size": PAGE, "num_pages": PAGES, "max_num_seqs": 5, "max_num_batched_tokens": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("qwen3"), "qwen3")


def native(checkpoint: Path) -> Runner:
    return engine(checkpoint, **CONFIG, max_model_len=tiny.CONTEXT).runner


def launched(checkpoint: Path) -> Runner:
    return TinyRunner(checkpoint, LateDevice())


class Conversation:
    """The requests, which come one after the other, and their answers."""

    def __init__(self, runner: Runner):
        self.core = EngineCore(EngineConfig(**CONFIG, device="cpu"), runner)
        self.answers: dict[str, list[int]] = {}
        self.errors: dict[str, str] = {}
        self.cached: dict[str, int] = {}
        self.ended: set[str] = set()
        self.lost = 0
        """Times that all were lost."""
        self.requests = [
            GenerationRequest(
                id=name,
                tokens=pack(tokens),
                sampling=SamplingParams(max_tokens=4, ignore_eos=True, **fields),
                sibling="n/0" if name == "n/1" else None,
            )
            for name, (tokens, fields) in ASKED.items()
        ]

    def run(self) -> None:
        for request in self.requests:
            self.answers[request.id] = []
            self.core.add(request)
            if request.id != "n/0":
                self._step()
                self._step()
        while not self.core.idle:
            self._step()

    def _step(self) -> None:
        try:
            self._take(self.core.step())
        except LostError as error:
            self.lost += 1
            for name in self.answers.keys() - self.ended:
                self.errors[name] = str(error)

    def _take(self, deltas: list[GenerationDelta]) -> None:
        for delta in deltas:
            self.answers[delta.id] += [sampled.token for sampled in delta.sampled]
            self.cached[delta.id] = delta.usage.cached_tokens
            if delta.finish is not None:
                self.ended.add(delta.id)
            if delta.error is not None:
                self.errors[delta.id] = delta.error

    def check_idle(self) -> None:
        cache = self.core.cache
        cache.check()
        assert not cache.leases
        assert cache.available == cache.pool.num_pages - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "code"), [(native, NATIVE), (launched, LAUNCHED)], ids=["native", "launched"]
)
def test_an_exception_at_any_point_of_the_model_ends_its_step_and_nothing_else(
    checkpoint: Path, make: Callable[[Path], Runner], code: Sequence[str]
):
    # One for all faults, so that what one of them breaks is in the way of the next.
    runner = make(checkpoint)
    alone = Conversation(runner)
    alone.run()
    assert not alone.errors
    assert alone.cached["sharer"] == 22
    found = points(lambda: Conversation(runner).run, code)
    seen: Counter[str] = Counter()
    for number, point in enumerate(found):
        occurrence, error = fault(point, SEED)
        what = f"{error!r} at {point}, time {occurrence}, seed {SEED}"
        conversation = Conversation(runner)
        with planted(point, occurrence, error) as happened:
            conversation.run()
        assert happened(), what
        assert conversation.errors, what
        seen["lost"] += conversation.lost
        for name, answer in conversation.answers.items():
            if name in conversation.errors:
                assert conversation.errors[name].startswith(TOLD), what
                seen["failed"] += 1
            else:
                assert answer == alone.answers[name], f"{name} after {what}"
                seen["right"] += 1
        conversation.check_idle()
        if number % OFTEN == 0:
            again = Conversation(runner)
            again.core = conversation.core
            again.run()
            assert again.answers == alone.answers, what
            assert again.cached["sharer"] >= 22
    assert len(found) > 100
    assert seen["lost"] <= MOST_LOST
    assert seen["failed"] > 100
    assert seen["right"] > 100
