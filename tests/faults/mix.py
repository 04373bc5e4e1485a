"""A small mix of requests that comes to nearly everything that a step can do."""

from __future__ import annotations

from collections.abc import Callable

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationDelta, GenerationRequest
from radixserve.errors import LostError
from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.engine.overlapped import OverlappedModel
from tests.faults.points import WORDS
from tests.scheduling.simulated import expected_output, prompt

MOST_STEPS = 200
BROKEN = "the device is on fire"
SPOILT = "the model's output is not a number"
STEM = prompt(19)


class Model(OverlappedModel):
    """Fails when it is told to, and says of one request that it is spoilt."""

    def __init__(self, config: EngineConfig, num_pages: int, *, overlapped: bool):
        super().__init__(config, num_pages, pace="late")
        self.broken_step = False
        if not overlapped:
            self.launch = None  # type: ignore[assignment]

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        if self.broken_step and self.launch is None:
            raise RuntimeError(BROKEN)
        for row in plan.rows:
            self.namespaces.setdefault(row.request_id, b"")
        return [
            tuple(Sampled(0, error=SPOILT) for _ in tokens)
            if row.request_id == "spoilt" and row.generated == 1
            else tokens
            for row, tokens in zip(plan.rows, super().execute(plan), strict=True)
        ]


class Mix:
    """The requests, and how each of them ended.

    ``core`` is called as ``EngineLoop`` calls it: whoever cannot be queued is refused, what is lost
    is lost for all who were there, and any other exception is the end of the engine.
    """

    def __init__(self, *, overlapped: bool):
        config = EngineConfig(
            page_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=10,
            scheduling_policy="priority",
        )
        self.model = Model(config, 16, overlapped=overlapped)
        self.core = EngineCore(config, self.model)
        self.wanted: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        """Of each: stop, length, abort; or why there is no answer."""
        self.errors: list[str] = []
        self.over: Exception | None = None
        """What ended the engine."""
        self._script = self._steps()

    def run(self) -> None:
        for step in range(MOST_STEPS):
            self._guard(self._script.pop(step, _nothing))
            if self._ended():
                return
            self._guard(self._step)
            self.mend()
        raise AssertionError("the engine does not come to an end")

    def _ended(self) -> bool:
        try:
            return bool(self.over) or (not self._script and self.core.idle)
        except Exception as error:
            self.over = error
            return True

    def _steps(self) -> dict[int, Callable[[], object]]:
        """What is done before which step."""
        three = prompt(6, seed=1)
        siblings = [
            self._request(f"n/{i}", three, 6, seed=i, sibling="n/0" if i else None)
            for i in range(3)
        ]
        return {
            0: self._asking(self._request("long", STEM, 9)),
            1: self._asking(self._request("sharer", [*STEM[:14], 7, 8], 8)),
            3: self._asking(*siblings),
            5: self._asking(self._request("gone", prompt(9, seed=2), 20)),
            6: self._asking(self._request("urgent", prompt(13, seed=3), 12, priority=-1)),
            9: lambda: self._abort("gone"),
            12: self._asking(self._request("spoilt", prompt(5, seed=4), 6)),
            14: self.core.reset_prefix_cache,
            16: self._asking(self._request("again", STEM, 4)),
            18: self._break,
            21: self._asking(self._request("last", [*STEM[:10], 3], 3, cache="read-only")),
        }

    def ask_and_run(self, name: str, tokens: list[int], count: int) -> None:
        """One request more, after all others."""
        self._add(self._request(name, tokens, count))
        while not self.core.idle:
            self._step()

    def _request(
        self, name: str, tokens: list[int], count: int, *, seed: int = 0, **fields
    ) -> GenerationRequest:
        self.wanted[name] = expected_output(tokens, count, seed)
        sampling = SamplingParams(max_tokens=count, temperature=0.0, seed=seed)
        return GenerationRequest(id=name, tokens=pack(tokens), sampling=sampling, **fields)

    def _asking(self, *requests: GenerationRequest) -> Callable[[], None]:
        def ask() -> None:
            for request in requests:
                self._add(request)

        return ask

    def _add(self, request: GenerationRequest) -> None:
        self.outputs[request.id] = []
        try:
            self.core.add(request)
        except LostError as error:
            self._lost(error)
        except Exception as error:
            self.errors.append(repr(error))
            self.ends[request.id] = "refused"
            self.core.abort(request.id)

    def _break(self) -> None:
        self.model.broken_step, self.model._collect_fault = True, 1.0

    def mend(self) -> None:
        self.model.broken_step, self.model._collect_fault = False, 0.0

    def _abort(self, name: str) -> None:
        if (delta := self.core.abort(name)) is not None:
            self._take([delta])

    def _step(self) -> None:
        self._take(self.core.step())

    def _guard(self, do: Callable[[], object]) -> None:
        if self.over:
            return
        try:
            do()
        except LostError as error:
            self._lost(error)
        except Exception as error:
            self.over = error

    def _lost(self, error: LostError) -> None:
        self.errors.append(str(error))
        for name in self.outputs:
            self.ends.setdefault(name, "lost")

    def _take(self, deltas: list[GenerationDelta]) -> None:
        for delta in deltas:
            assert delta.id not in self.ends, "something comes after the end"
            self.outputs[delta.id] += [sampled.token for sampled in delta.sampled]
            if delta.finish == "error":
                assert delta.error is not None
                self.errors.append(delta.error)
            else:
                said = self.outputs[delta.id]
                assert said == self.wanted[delta.id][: len(said)]
            if delta.finish is not None:
                self.ends[delta.id] = delta.finish
                self.cached[delta.id] = delta.usage.cached_tokens

    # What must hold when it is over

    def check_ends(self) -> None:
        assert self.ends.keys() == self.outputs.keys(), "somebody waits for ever"
        for name, end in self.ends.items():
            if end == "length":
                assert self.outputs[name] == self.wanted[name]

    def check_idle(self) -> None:
        cache = self.core.cache
        cache.check()
        assert not cache.leases
        assert cache.pool.quarantined == 0
        assert cache.available == cache.pool.num_pages - 1

    def check_service(self) -> None:
        """Two who share are answered right, and the second one computes only what is new."""
        self.ask_and_run("one", [*STEM, 1], 4)
        self.ask_and_run("two", [*STEM, 2], 4)
        self.check_ends()
        assert self.ends["one"] == self.ends["two"] == "length"
        assert self.cached["two"] == len(STEM)
        self.check_idle()

    @property
    def told(self) -> bool:
        """Whether what was planted reached those who asked."""
        said = [*self.errors, repr(self.over)]
        return any(WORDS in each or MemoryError.__name__ in each for each in said)


def _nothing() -> None:
    pass
