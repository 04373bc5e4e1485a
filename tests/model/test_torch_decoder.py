"""The decoder in torch gives the logits of transformers, alone and as several ranks together."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from radixserve.attention.arrays import PagedBatch, Unknown, paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.attention.staging import Staging
from radixserve.errors import ConfigError
from radixserve.model import family
from radixserve.model.kv_storage import KvStorage
from radixserve.model.ops import TorchOps
from radixserve.model.parallel import ALONE, Parallel, check_size
from radixserve.model.torch_decoder import TorchDecoder, geometry
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.attention.fake_device import FakeDevice, RaceError
from tests.model import tiny
from tests.model.decoders import CPU, FORMS, PROMPT, SMALL, in_ranks

PAGE = 16
PAGES = array("i", [7, 3, 11, 1, 15])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def checkpoint(form: str) -> Path:
        if form not in made:
            made[form] = tiny.save(tmp_path_factory.mktemp("model"), FORMS[form])
        return made[form]

    return checkpoint


class Model:
    """One rank over its own KV, a pool of NaN."""

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype = torch.float32,
        parallel: Parallel = ALONE,
        staging: Staging | None = None,
    ):
        config = AutoConfig.from_pretrained(path)
        self.decoder = TorchDecoder(
            config,
            dtype,
            family.checkpoint(path),
            TorchOps(),
            device=CPU,
            max_model_len=128,
            parallel=parallel,
            staging=staging,
        )
        self.geometry = geometry(config, dtype, parallel)
        self.kv = KvStorage(self.geometry, 20, PAGE, CPU).kv.fill_(torch.nan)

    def step(self, batch: PagedBatch) -> torch.Tensor:
        return self.decoder.logits(batch, ReferenceAttention(self.kv))

    def logits(self) -> torch.Tensor:
        """Of all tokens of PROMPT, in chunks of 50."""
        return torch.cat([self.step(chunk(start, start + 50)) for start in (0, 50)])


def chunk(start: int, stop: int, *, sample_all: bool = True) -> PagedBatch:
    row = Row("r", pack(PROMPT[start:stop]), start, PAGES, SamplingParams())
    batch = paged_batch(StepPlan(1, [row]), PAGE)
    if sample_all:
        batch.sample_rows = torch.arange(len(batch.token_ids))
    return batch


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_family_gives_the_logits_of_transformers(
    checkpoints: Callable[[str], Path], form: str
):
    path = checkpoints(form)
    torch.testing.assert_close(Model(path).logits(), tiny.truth(path, PROMPT), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_in_bf16_it_is_as_close_to_the_truth_as_transformers_is(
    checkpoints: Callable[[str], Path], form: str
):
    path = checkpoints(form)
    truth = tiny.truth(path, PROMPT)
    found = Model(path, torch.bfloat16).logits().float()
    theirs = (tiny.truth(path, PROMPT, torch.bfloat16) - truth).norm()
    assert (found - truth).norm() < 1.2 * theirs


class Launching(TorchOps):
    """As kernels on a GPU, which cannot be launched over nothing."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        assert len(x)
        return super().add_rms_norm(x, residual, weight, epsilon)


def test_only_the_sampled_rows_get_logits(
    checkpoints: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.modules[__name__], "TorchOps", Launching)
    path = checkpoints("plain")
    whole, model = Model(path).logits(), Model(path)
    torch.testing.assert_close(
        model.step(chunk(0, 50, sample_all=False)), whole[49:50], atol=2e-4, rtol=2e-4
    )
    silent = chunk(50, 60)
    silent.sample_rows = torch.arange(0)
    assert model.step(silent).shape == (0, 250)
    # The KV of tokens without logits is there all the same.
    torch.testing.assert_close(model.step(chunk(60, 70)), whole[60:], atol=2e-4, rtol=2e-4)


class NoAttention:
    """Stands where attention would, to look at the decoder alone."""

    def begin(self, batch: PagedBatch) -> None:
        pass

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        pass

    def run(
        self, layer: int, query: torch.Tensor, *, scale: float, soft_cap: float | None = None
    ) -> torch.Tensor:
        return query


@pytest.mark.parametrize("form", FORMS)
def test_no_value_is_ever_looked_at_so_that_a_graph_can_hold_the_pass(
    checkpoints: Callable[[str], Path], form: str
):
    nowhere = torch.device("meta")  # whose tensors have shapes, and no values to be read
    decoder = TorchDecoder(
        FORMS[form],
        torch.bfloat16,
        family.checkpoint(checkpoints(form)),
        TorchOps(),
        device=nowhere,
        max_model_len=128,
    )
    tokens = torch.empty(7, dtype=torch.int64, device=nowhere)
    found = decoder.forward(tokens, tokens, tokens[:3], NoAttention())
    assert (found.shape, found.device) == ((3, FORMS[form].vocab_size), nowhere)


def steps(path: Path, device: FakeDevice) -> torch.Tensor:
    """The logits of a prompt in steps that are queued behind each other."""
    model, found = Model(path, staging=Staging(device)), []
    for start in range(0, 70, 10):
        before = device.stream.queued
        found.append(model.step(chunk(start, start + 10)))
        assert device.stream.queued == before + 1, "one copy"
    return torch.cat(found)


def test_token_ids_reach_a_busy_device_in_one_copy_that_the_next_step_does_not_disturb(
    checkpoints: Callable[[str], Path],
):
    path, device = checkpoints("plain"), FakeDevice()
    torch.testing.assert_close(steps(path, device), Model(path).logits(), atol=2e-4, rtol=2e-4)
    assert device.stream._done == device.stream.queued - 1, "only copies before were waited for"
    device.stream.finish()


def test_the_stand_in_notices_token_ids_that_are_overwritten(checkpoints: Callable[[str], Path]):
    device = FakeDevice(deaf=True)
    steps(checkpoints("plain"), device)
    with pytest.raises(RaceError):
        device.stream.finish()


@pytest.mark.parametrize("sampled", [0, 1, 10])
def test_a_step_without_graphs_reads_nothing_from_the_device(
    checkpoints: Callable[[str], Path], sampled: int
):
    nowhere = torch.device("meta")
    decoder = TorchDecoder(
        FORMS["plain"],
        torch.bfloat16,
        family.checkpoint(checkpoints("plain")),
        TorchOps(),
        device=nowhere,
        max_model_len=128,
        staging=Staging(FakeDevice("meta")),
    )
    batch = chunk(0, 10)
    batch.sample_rows = batch.sample_rows[:sampled]
    ids = torch.empty(1, dtype=torch.int64, device=nowhere)
    batch.unknown = Unknown(places=ids, tokens=ids)
    assert decoder.logits(batch, NoAttention()).shape == (sampled, FORMS["plain"].vocab_size)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_give_the_logits_of_one(
    checkpoints: Callable[[str], Path], form: str, size: int
):
    path = checkpoints(form)
    alone = Model(path).logits()
    ranks = in_ranks(size, lambda rank: Model(path, parallel=rank).logits())
    for logits in ranks:  # 4 ranks of 2 KV heads, or of 1, hold copies of them
        torch.testing.assert_close(logits, alone, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("size", "kv_heads", "heads"), [(1, 2, 4), (2, 1, 2), (4, 1, 1)])
def test_a_rank_keeps_the_kv_of_its_own_heads(size: int, kv_heads: int, heads: int):
    found = geometry(FORMS["plain"], torch.float32, Parallel(size - 1, size, CPU))
    assert (found.kv_heads, found.heads) == (kv_heads, heads)


def test_a_rank_reads_its_own_share_alone(checkpoints: Callable[[str], Path]):
    read: dict[str, int] = {}

    class Watched:
        def __init__(self, name: str, stored: family.Stored):
            self.name, self.stored = name, stored

        def __getitem__(self, index: Any) -> torch.Tensor:
            part = self.stored[index]
            read[self.name] = read.get(self.name, 0) + part.numel()
            return part

    path = checkpoints("plain")
    tensors = family.checkpoint(path)
    watched = {name: Watched(name, stored) for name, stored in tensors.items()}
    TorchDecoder(
        FORMS["plain"],
        torch.float32,
        watched,
        TorchOps(),
        device=CPU,
        max_model_len=128,
        parallel=Parallel(1, 2, CPU),
    )
    for name, stored in tensors.items():
        split = "_proj" in name or name.startswith("lm_head")
        assert read[name] * (2 if split else 1) == stored[:].numel(), name


@pytest.mark.parametrize(
    ("size", "change"),
    [
        (3, {}),
        (8, {}),
        (2, {"intermediate_size": 95}),
        (2, {"num_attention_heads": 6, "num_key_value_heads": 3}),
    ],
)
def test_a_number_of_ranks_that_does_not_divide_the_model_is_refused(
    size: int, change: dict[str, int]
):
    config = LlamaConfig(**{**SMALL, **change})
    with pytest.raises(ConfigError, match=rf"tensor_parallel_size {size}.*choose one of 1"):
        check_size(config, size)
    check_size(LlamaConfig(**SMALL), 4)
