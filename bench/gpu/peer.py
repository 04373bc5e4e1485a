"""transformers' continuous batching under the same load."""

from __future__ import annotations

from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch

from bench.gpu.device import Device
from bench.gpu.errors import CaseError
from bench.gpu.geometry import Geometry
from bench.gpu.prompts import load
from bench.gpu.sizes import Sizes
from radixserve.tokens import unpack

Numbers = dict[str, Any]

PATIENCE = 60.0
"""Seconds without an answer after which its thread is given up."""
BLOCK = 256
"""Tokens of its own pages."""


class Transformers:
    """A model of the same geometry with random weights, behind a manager that stays.

    It takes its defaults: block sharing (its prefix cache) is on, and graphs, asynchronous batches
    and flash attention are used where it finds them. On a CPU its memory is bounded, since it
    would fill most of the machine's.
    """

    def __init__(self, geometry: Geometry, sizes: Sizes, device: Device):
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            ContinuousBatchingConfig,
            GenerationConfig,
        )
        from transformers.generation.continuous_batching.utils import WorkloadHints

        self._sizes, self._vocabulary = sizes, geometry.vocabulary
        settings = dict(geometry.config)
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        with torch.device(device.kind):
            self._model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        options = {}
        if device.kind == "cpu":
            request = sizes.system + sizes.question + sizes.answer
            blocks = (2 + sizes.rows) * (1 + request // BLOCK)
            options = {"page_size": BLOCK, "num_blocks": blocks, "max_batch_tokens": 512}
        self._manager = self._model.init_continuous_batching(
            # No token ends an answer.
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(**options),
            # What its own generate_batch would tell it.
            workload_hints=WorkloadHints(
                max_prompt_length=sizes.system + sizes.question,
                max_generated_length=sizes.answer,
                num_requests=sizes.rows,
            ),
        )
        self._manager.warmup()
        self._manager.start()

    def about(self) -> Numbers:
        """How it runs."""
        settings = self._manager.continuous_batching_config
        names = (
            "page_size", "num_blocks", "max_batch_tokens", "max_requests_per_batch",
            "max_blocks_per_request", "allow_block_sharing", "use_async_batching", "use_cuda_graph",
        )  # fmt: skip
        attention = self._model.config._attn_implementation
        return {"attention": attention} | {name: getattr(settings, name) for name in names}

    def load(self) -> Numbers:
        """Tokens a second; see ``Ours.load``. It is slower, so that fewer repeats have to do."""
        _, *rates = [self._run(repeat) for repeat in range(min(self._sizes.repeats, 2) + 1)]
        return {"tokens_per_s": median(rates), "runs": rates}

    def close(self) -> None:
        """End its thread."""
        self._manager.stop(block=True, timeout=PATIENCE, hard_stop=True)
        self._manager.destroy()

    def _run(self, repeat: int) -> float:
        answer = self._sizes.answer
        prompts = [unpack(each) for each in load(self._sizes, self._vocabulary, repeat)]
        begin = perf_counter()
        names = set(self._manager.add_requests(prompts, max_new_tokens=answer))
        heard = monotonic()
        tokens = 0
        while names:
            output = self._manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                if output.error is not None or len(output.generated_tokens) != answer:
                    why = output.error or f"{len(output.generated_tokens)} tokens, not {answer}"
                    raise CaseError(f"transformers: {why}")
                names.discard(output.request_id)
                tokens += answer
                heard = monotonic()
            elif not self._manager.is_running():
                raise CaseError(f"transformers: its thread has ended, {len(names)} unanswered")
            elif monotonic() - heard > PATIENCE:
                raise CaseError(f"transformers: no answer in {PATIENCE:.0f} s")
        return tokens / (perf_counter() - begin)
