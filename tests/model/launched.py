"""A runner whose steps are launched on a device that is late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.cache.pages import PageCopy
from radixserve.model import family
from radixserve.model.kv_storage import KvStorage
from radixserve.model.launch import Launcher
from radixserve.model.ops import TorchOps
from radixserve.model.runner import ModelInfo, outcome
from radixserve.model.torch_decoder import TorchDecoder, geometry
from radixserve.scheduling.plan import Sampled, StepPlan
from tests.attention.fake_device import FakeDevice
from tests.model import tiny

CPU = torch.device("cpu")
EOS = frozenset({2})

PAGE = 4
PAGES = 60


class LateDevice(FakeDevice):
    """One that copies nothing before somebody waits for it."""

    def receive(self, source: torch.Tensor) -> torch.Tensor:
        """What is read of it before it has come is -1."""
        host = torch.full(source.shape, -1, dtype=source.dtype, device=self.device)
        self.stream.give(partial(host.copy_, source.clone()))
        return host


class TinyRunner:
    """The decoder for GPUs, here on a CPU; it launches steps if it gets a ``device``."""

    def __init__(self, path: Path, device: LateDevice | None):
        config = AutoConfig.from_pretrained(path)
        decoder = TorchDecoder(
            config,
            torch.float32,
            family.checkpoint(path),
            TorchOps(),
            device=CPU,
            max_model_len=tiny.CONTEXT,
        )
        storage = KvStorage(geometry(config, torch.float32), PAGES, PAGE, CPU)
        backend = ReferenceAttention(storage.kv.fill_(torch.nan))
        self.unknown = 0

        def compute(copies: Sequence[PageCopy], batch: PagedBatch) -> torch.Tensor:
            self.unknown += 0 if batch.unknown is None else len(batch.unknown.places)
            storage.copy_pages(copies)
            return decoder.logits(batch, backend)

        self.compute = compute
        self.info = ModelInfo(
            vocab_size=tiny.VOCABULARY,
            max_model_len=tiny.CONTEXT,
            eos_token_ids=EOS,
            num_pages=PAGES,
            dtype="float32",
            backend="tiny",
            kv_bytes_per_token=1,
            sampling_defaults={},
        )
        self.launch = None if device is None else launcher(compute, device)

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        return outcome(plan, self.compute(plan.copies, paged_batch(plan, PAGE)), EOS)


def launcher(
    compute: Callable[[Sequence[PageCopy], PagedBatch], torch.Tensor], device: LateDevice
) -> Launcher:
    return Launcher(compute, device, page_size=PAGE, vocabulary=tiny.VOCABULARY, eos_token_ids=EOS)
