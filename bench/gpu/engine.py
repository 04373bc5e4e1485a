"""radixserve under measurement: the real engine over a model with dummy weights, step by step."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

from bench.gpu.device import Device
from bench.gpu.errors import CaseError
from bench.gpu.geometry import Geometry
from bench.gpu.idle import idle
from bench.gpu.prompts import Tokens, load
from bench.gpu.sizes import PAGE, Sizes
from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.messages import GenerationDelta, GenerationRequest
from radixserve.engine.model_files import prepare, settle
from radixserve.model import ranks
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import count

Numbers = dict[str, Any]


class Ours:
    """An engine at its defaults, but for memory: it has the pages that the cases need.

    Each method measures one thing, after everything cached has been forgotten, and returns numbers
    that can be written as JSON; times are in seconds.

    Raises:
        ConfigError, ModelError: it cannot be loaded so.
        CaseError: a method: a request failed, or what should have been cached was not.
    """

    def __init__(self, geometry: Geometry, sizes: Sizes, device: Device, *, cascade: bool = True):
        self._sizes, self._device = sizes, device
        self._vocabulary = geometry.vocabulary
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(geometry.config), encoding="utf-8")
            config = settle(_config(file, sizes, device.kind, cascade))
            runner = ranks.load(prepare(config), config)
        self.core = EngineCore(config, runner)
        self._asked = 0

    def about(self) -> Numbers:
        """How it runs."""
        info, config = self.core.runner.info, self.core.config
        return {
            "backend": info.backend,
            "dtype": info.dtype,
            "cascade_attention": config.cascade_attention,
            "pages": info.num_pages,
            "page_size": config.page_size,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": info.max_model_len,
        }

    def first(self, cached: int) -> Numbers:
        """Time to the first token of ``cached`` and ``new`` tokens, alternately cold and with the
        first ``cached`` of them cached."""
        new = self._sizes.new
        tokens = self._fresh(f"first {cached}")
        times: dict[str, list[float]] = {"cold": [], "warm": []}
        for _ in range(self._sizes.repeats + 1):
            for kind, prompt in zip(times, tokens.sharing(2, cached, new), strict=True):
                times[kind].append(self._first(prompt, 0 if kind == "cold" else cached))
        # What is made on first use, such as a workspace, is in the first pair.
        cold, warm = times["cold"][1:], times["warm"][1:]
        return {
            "cold_s": median(cold), "warm_s": median(warm), "cold": cold, "warm": warm,
            "cached_tokens": cached, "tokens": cached + new,
        }  # fmt: skip

    def prefill(self, tokens: int) -> Numbers:
        """Time to the first token of a prompt of which nothing is cached."""
        drawn = self._fresh(f"prefill {tokens}")
        _, *times = [self._first(drawn.some(tokens), 0) for _ in range(self._sizes.repeats + 1)]
        return {"seconds": median(times), "times": times, "tokens": tokens}

    def decode(self, shared: int, own: int) -> Numbers:
        """Time of a step in which ``rows`` requests decode, on ``own`` tokens each behind
        ``shared`` ones that are the same.

        ``kv_once`` and ``kv_each`` are the tokens whose KV a step reads, on average, if it reads
        what is shared once, or once for each row.
        """
        sizes, rows = self._sizes, self._sizes.rows
        generated = self._decoding("decode", shared, own)
        before = mean(generated.values())
        windows = []
        for _ in range(sizes.repeats):
            begin = perf_counter()
            for _ in range(sizes.steps):
                self._step(generated)
            windows.append((perf_counter() - begin) / sizes.steps)
        # A step reads all tokens but the one that it brings, and contexts grow by one a step.
        private = own + before + (sizes.repeats * sizes.steps - 1) / 2
        self._end(generated)
        return {
            "step_s": median(windows), "windows": windows, "rows": rows, "shared": shared,
            "private": private, "kv_once": shared + rows * private,
            "kv_each": rows * (shared + private),
        }  # fmt: skip

    def idle(self, shared: int, own: int) -> Numbers:
        """How long the device waits while ``rows`` requests decode as in ``decode``."""
        generated = self._decoding("idle", shared, own)

        def run() -> None:
            for _ in range(self._sizes.steps):
                self._step(generated)

        found = idle(self._device.kernels(run))
        self._end(generated)
        return asdict(found) | {"steps": self._sizes.steps, "shared": shared}

    def load(self) -> Numbers:
        """Tokens a second of the requests of ``prompts.load``, all queued at the start."""
        self._fresh("load")
        sampling = _greedy(self._sizes.answer)
        runs = []
        for repeat in range(self._sizes.repeats + 1):
            prompts = load(self._sizes, self._vocabulary, repeat)
            before = self.core.stats()
            begin = perf_counter()
            self._add(prompts, sampling)
            self._drain()
            seconds = perf_counter() - begin
            after = self.core.stats()
            tokens = after.generated_tokens - before.generated_tokens
            if tokens != len(prompts) * self._sizes.answer:
                raise CaseError(f"{tokens} tokens came of {len(prompts)} requests")
            runs.append((tokens / seconds, after.cached_tokens - before.cached_tokens))
        rates = [rate for rate, _ in runs[1:]]
        return {"tokens_per_s": median(rates), "runs": rates, "cached_tokens": runs[-1][1]}

    # Requests and steps

    def _fresh(self, name: str) -> Tokens:
        self.core.reset_prefix_cache()
        return Tokens(self._vocabulary, name)

    def _first(self, prompt: bytes, cached: int) -> float:
        begin = perf_counter()
        self._add([prompt], _greedy(1))
        deltas: list[GenerationDelta] = []
        while not deltas:
            deltas = self.core.step()
        seconds = perf_counter() - begin
        self._drain()
        _checked(deltas)
        found = deltas[0].usage.cached_tokens
        # Random tokens may be alike by chance, and a few are then reused.
        if not cached <= found < cached + PAGE:
            raise CaseError(f"{found} of {count(prompt)} tokens were cached, not {cached}")
        return seconds

    def _decoding(self, name: str, shared: int, own: int) -> dict[str, int]:
        """All rows decode, and have for some steps: the tokens that each has generated."""
        tokens = self._fresh(f"{name} {shared}")
        prompts = list(tokens.sharing(self._sizes.rows, shared, own))
        if shared:
            self._add([prompts[0][: 4 * shared]], _greedy(1))
            self._drain()
        generated = dict.fromkeys(self._add(prompts, _greedy(self._sizes.generated)), 0)
        while min(generated.values()) < self._sizes.warm:
            for delta in _checked(self.core.step()):
                generated[delta.id] += 1
                if delta.usage.cached_tokens < shared:
                    raise CaseError(f"{delta.usage.cached_tokens} of {shared} tokens were cached")
        return generated

    def _step(self, generated: dict[str, int]) -> None:
        deltas = _checked(self.core.step())
        for delta in deltas:
            generated[delta.id] += 1
        if len(deltas) != len(generated):
            raise CaseError(f"{len(deltas)} of {len(generated)} requests got a token in a step")

    def _add(self, prompts: Sequence[bytes], sampling: SamplingParams) -> list[str]:
        self.core.cache.time = perf_counter()
        names = []
        for prompt in prompts:
            self._asked += 1
            names.append(str(self._asked))
            self.core.add(GenerationRequest(id=names[-1], tokens=prompt, sampling=sampling))
        return names

    def _end(self, generated: dict[str, int]) -> None:
        for name in generated:
            self.core.abort(name)
        self._drain()

    def _drain(self) -> None:
        while not self.core.idle:
            _checked(self.core.step())


def _config(file: Path, sizes: Sizes, device: Any, cascade: bool) -> EngineConfig:
    return EngineConfig(
        model=str(file),
        load_format="dummy",
        dtype="bfloat16",
        device=device,
        cascade_attention=cascade,
        max_model_len=sizes.longest,
        max_num_seqs=sizes.rows,
        num_pages=sizes.pages,
    )


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def _checked(deltas: list[GenerationDelta]) -> list[GenerationDelta]:
    for delta in deltas:
        if delta.error is not None:
            raise CaseError(delta.error)
    return deltas
