"""Runs step plans: plan -> arrays -> logits -> tokens."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.attention.staging import CudaDevice
from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.model.cuda_graphs import CudaGraphs
from radixserve.model.execution import Executable, executable
from radixserve.model.facts import gpu_facts, reach_tools
from radixserve.model.gpu_memory import CudaMemory, GpuSizing, rehearsal
from radixserve.model.info import ModelInfo
from radixserve.model.kv_storage import KvStorage, page_count
from radixserve.model.launch import Launcher
from radixserve.model.loader import Description, ModelFiles, describe
from radixserve.model.memory import free_memory
from radixserve.model.parallel import ALONE, Parallel
from radixserve.model.pooler import Pooler
from radixserve.model.sampler import sample
from radixserve.model.scorer import Scoring, joined
from radixserve.model.startup import require_gpu
from radixserve.scheduling.plan import Sampled, StepPlan

log = logging.getLogger(__name__)


class ModelRunner:
    """A loaded model with its KV pages.

    Args:
        files: where it is.
        config: how it is to be loaded, and how much memory its pages may take.
        eos_token_ids: tokens that end an answer besides those that the model's files name.
        parallel: which rank this is of those that compute the model together.

    Raises:
        ModelError: the model cannot be read or served.
        ConfigError: it does not fit, or ``config`` asks for what it does not have.
    """

    def __init__(
        self,
        files: ModelFiles,
        config: EngineConfig,
        *,
        eos_token_ids: Iterable[int] = (),
        parallel: Parallel = ALONE,
    ):
        described = replace(describe(files.model, config), tokenizer=files.tokenizer)
        if parallel.device is not None:
            described = replace(described, device=parallel.device)
        device = described.device
        place = _on_gpu if device.type == "cuda" else _on_cpu
        model, num_pages = place(described, config, parallel)
        num_pages = parallel.smallest(num_pages)
        geometry = model.geometry
        self._storage = KvStorage(geometry, num_pages, config.page_size, device)
        self._logits = model.on(self._storage.kv, CudaGraphs(device) if model.graphs else None)
        states = model.states(self._storage.kv)
        self._pooler = states and Pooler(states, config.page_size, config.max_num_seqs)
        log.info("%s; %d KV pages of %d tokens", model.name, num_pages - 1, config.page_size)
        self.info = ModelInfo(
            vocab_size=described.config.vocab_size,
            max_model_len=min(described.max_model_len, (num_pages - 1) * config.page_size),
            eos_token_ids=described.eos_token_ids.union(eos_token_ids),
            num_pages=num_pages,
            dtype=str(described.dtype).removeprefix("torch."),
            backend=model.name,
            kv_bytes_per_token=geometry.token_bytes * parallel.size,
            sampling_defaults=described.sampling_defaults,
            embedding_size=described.config.hidden_size if self._pooler else None,
            kv_format=geometry.format,
        )
        self.launch: Launcher | None = None
        """See ``radixserve.engine.core.Runner``."""
        if model.follows:
            self.launch = Launcher(
                self._queue,
                CudaDevice(device),
                page_size=config.page_size,
                vocabulary=self.info.vocab_size,
                eos_token_ids=self.info.eos_token_ids,
            )

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        """Run ``plan``: its copies, then its rows.

        Returns:
            One entry a row: its token and those of its forks, if it samples, then the tokens that
            it scores.
        """
        if any(row.pooling is not None for row in plan.rows[plan.decoding :]):
            return self._execute_apart(plan)
        batch = paged_batch(plan, self._storage.page_size) if plan.rows else None
        logits = self.compute(plan.copies, batch)
        if logits is None:
            return []
        return outcome(plan, logits, self.info.eos_token_ids)

    def _execute_apart(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        """A plan with rows that are pooled: of these no logits are computed."""
        assert self._pooler is not None, "a model that has no hidden states pools nothing"
        pooled = [row for row in plan.rows if row.pooling is not None]
        others = [row for row in plan.rows if row.pooling is None]
        self._storage.copy_pages(plan.copies)
        vectors = iter(self._pooler.execute(plan.step, pooled))
        rest = self.execute(StepPlan(plan.step, others, decoding=plan.decoding)) if others else []
        tokens = iter(rest)
        return [next(tokens if row.pooling is None else vectors) for row in plan.rows]

    def compute(self, copies: Sequence[PageCopy], batch: PagedBatch | None) -> torch.Tensor | None:
        """Run ``copies``, then the rows of ``batch``; the logits of its ``sample_rows``."""
        if batch is not None:
            return self._queue(copies, batch)
        self._storage.copy_pages(copies)
        return None

    def _queue(self, copies: Sequence[PageCopy], batch: PagedBatch) -> torch.Tensor:
        self._storage.copy_pages(copies)
        return self._logits(batch)

    def close(self) -> None:
        """End what was started for this model beside this process."""


def outcome(
    plan: StepPlan, logits: torch.Tensor, eos_token_ids: Collection[int]
) -> list[tuple[Sampled, ...]]:
    """What ``ModelRunner.execute`` returns, from the logits of the ``sample_rows`` of ``plan``."""
    sampling = [row for row in plan.rows if row.sampling is not None]
    sampled = sample(logits[: len(sampling)], sampling, eos_token_ids)
    scoring = Scoring(plan, logits.shape[-1])
    if not len(scoring.targets):
        return joined(plan.rows, iter(sampled), ())
    targets = torch.from_numpy(scoring.targets).to(logits.device, torch.int64)
    scores = scoring.score(logits[len(sampling) :], targets).cpu()
    return joined(plan.rows, iter(sampled), scoring.sampled(scores))


def _on_cpu(
    described: Description, config: EngineConfig, parallel: Parallel
) -> tuple[Executable, int]:
    """The model in memory, and how many KV pages it gets."""
    model = executable(described, config, parallel)
    free = free_memory(described.device)
    return model, page_count(config, model.geometry, described.max_model_len, free)


def _on_gpu(
    described: Description, config: EngineConfig, parallel: Parallel
) -> tuple[Executable, int]:
    """The model on the GPU, and how many KV pages fit beside it and its largest step."""
    if config.attention_backend != "reference":
        reach_tools()
        require_gpu(gpu_facts())
    sizing = GpuSizing(CudaMemory(described.device), config)
    with sizing.explained("the model", "serve a smaller one, or free what others hold"):
        model = executable(described, config, parallel)
    prepare = rehearsal(model, config, described.max_model_len, described.device)
    return model, sizing.pages(model.geometry, prepare, model.graphs)
