"""Pages take what weights, the largest step and others leave of a GPU, and never more."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.model import runner
from radixserve.model.device_sampler import Choices
from radixserve.model.gpu_memory import (
    DRIVER,
    Claims,
    CudaMemory,
    GpuSizing,
    arithmetic,
    largest_step,
    page_count,
    rehearsal,
)
from radixserve.model.kv_storage import MOST_PAGES, KvGeometry
from radixserve.model.loader import ModelFiles, describe
from radixserve.model.parallel import ALONE
from radixserve.model.transformers_model import TransformersModel
from tests.model import tiny
from tests.model.fake_memory import GIB, FakeMemory

LLAMA = KvGeometry(layers=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
PAGE_BYTES = 16 * 131_072
CLAIMS = Claims(
    device="a GPU",
    total=100 * GIB,
    others=1 * GIB,
    weights=15 * GIB,
    workspace=1 * GIB,
    activations=8 * GIB,
    graphs=2 * GIB,
)
BIG = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}


def pages(claims: Claims = CLAIMS, **settings: Any) -> int:
    return page_count(EngineConfig(**BIG, **settings), LLAMA, claims)


def refused(claims: Claims = CLAIMS, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        pages(claims, **settings)
    return str(caught.value)


# The arithmetic


def test_pages_fill_the_share_that_is_ours_less_what_we_need_ourselves():
    assert pages() == (90 - 15 - 1 - 8 - 2) * GIB // PAGE_BYTES
    assert pages(gpu_memory_utilization=0.5) == (50 - 26) * GIB // PAGE_BYTES


def test_what_others_hold_leaves_our_share_alone_until_both_do_not_fit():
    assert pages(replace(CLAIMS, others=8 * GIB)) == pages()
    crowded = replace(CLAIMS, others=50 * GIB)
    assert pages(crowded) == (98 - 50 - 26) * GIB // PAGE_BYTES
    halves = pages(replace(CLAIMS, others=45 * GIB), gpu_memory_utilization=0.45)
    assert halves == (45 - 26) * GIB // PAGE_BYTES


@pytest.mark.parametrize("others", [0, 30, 60])
@pytest.mark.parametrize("utilization", [0.35, 0.6, 0.9, 0.98])
def test_all_together_never_take_more_than_the_gpu_has(others: int, utilization: float):
    claims = replace(CLAIMS, others=others * GIB)
    ours = claims.ours + pages(claims, gpu_memory_utilization=utilization) * PAGE_BYTES
    assert ours <= utilization * claims.total
    assert ours + claims.others <= 0.98 * claims.total


def test_there_is_an_end_to_how_many_pages_can_be_kept_in_mind():
    small = KvGeometry(layers=1, kv_heads=1, head_dim=8, dtype=torch.bfloat16)
    assert page_count(EngineConfig(page_size=1), small, CLAIMS) == MOST_PAGES


def test_in_fp8_twice_as_many_pages_fill_the_same_bytes():
    config = EngineConfig(**BIG)
    static = replace(LLAMA, scales=((0.5, 0.5),) * 32)
    count = page_count(config, static, CLAIMS)
    assert count == 2 * pages()
    assert f"64.00 GiB are {count} KV pages" in arithmetic(config, static, CLAIMS, count)


def test_a_number_of_pages_or_bytes_is_taken_as_it_is():
    assert pages(num_pages=77) == 77
    assert pages(kv_memory=10 * PAGE_BYTES + 1) == 10
    assert pages(num_pages=77, kv_memory=GIB) == 77


def test_a_number_of_pages_or_bytes_that_does_not_fit_is_refused_with_the_one_that_does():
    most = (98 - 1 - 26) * GIB // PAGE_BYTES
    assert pages(num_pages=most) == most
    assert f"lower num_pages to {most}." in refused(num_pages=most + 1)
    message = refused(kv_memory=90 * GIB)
    assert f"lower kv_memory to {most * PAGE_BYTES} bytes." in message
    assert "a GPU" in message
    assert pages(kv_memory=most * PAGE_BYTES) == most
    assert f"at least {2 * PAGE_BYTES} bytes" in refused(kv_memory=PAGE_BYTES)


# Too little: each remedy that is named works


def test_a_small_share_is_refused_with_the_share_that_would_do():
    message = refused(gpu_memory_utilization=0.2)
    assert "raise gpu_memory_utilization to 0.27" in message
    assert "lacks 6.00 GiB for 2 KV pages" in message
    assert pages(gpu_memory_utilization=0.27) >= 2


def test_a_large_step_is_refused_with_the_size_that_would_do():
    tight = replace(CLAIMS, total=30 * GIB, weights=18 * GIB)
    message = refused(tight)
    found = re.search(r"lower max_num_batched_tokens to (\d+)", message)
    assert found is not None
    tokens = int(found[1])
    assert tokens == 6140
    smaller = replace(tight, activations=int(tight.activations * tokens / 8192))
    assert pages(smaller) >= 2
    assert "raise gpu_memory_utilization" not in refused(tight)


def test_graphs_may_be_turned_off_if_that_is_enough():
    tight = replace(CLAIMS, total=28 * GIB)
    assert "set enforce_eager" in refused(tight)
    assert pages(replace(tight, graphs=0)) >= 2
    assert "enforce_eager" not in refused(replace(CLAIMS, total=26 * GIB))


def test_memory_that_others_hold_is_named_with_the_amount_to_free():
    crowded = replace(CLAIMS, others=80 * GIB, activations=GIB)
    message = refused(crowded)
    assert "others hold 80.00 GiB" in message
    assert "free 1.00 GiB of what others hold on this GPU" in message
    assert pages(replace(crowded, others=79 * GIB - GIB // 100)) >= 2


def test_a_model_that_is_too_large_by_itself_is_refused_by_its_size():
    message = refused(replace(CLAIMS, total=10 * GIB, others=0))
    assert "weights are 17.00 GiB smaller" in message


# The line in the log


def test_one_line_says_where_the_memory_goes():
    config = EngineConfig(**BIG)
    line = arithmetic(config, LLAMA, CLAIMS, pages())
    assert "\n" not in line
    for part in (
        "a GPU has 100.00 GiB, of which gpu_memory_utilization 0.9 may be taken",
        "weights take 15.00 GiB",
        "8192 tokens and 256 requests 8.00 GiB",
        "CUDA graphs 2.00 GiB",
        f"64.00 GiB are {pages()} KV pages of 16 tokens, {(pages() - 1) * 16} in all",
    ):
        assert part in line
    assert "utilization" not in arithmetic(EngineConfig(num_pages=9), LLAMA, CLAIMS, 9)


# Measuring


def test_each_part_is_measured_where_it_appears():
    memory = FakeMemory(outside=3 * GIB)
    sizing = GpuSizing(memory, EngineConfig(**BIG))
    memory.take(20 * GIB)  # while it loads
    memory.take(-5 * GIB)

    def prepare() -> Callable[[], object]:
        memory.take(GIB)

        def step() -> None:
            memory.take(8 * GIB)
            memory.take(-8 * GIB)
            memory.outside += GIB // 2  # kernels that are loaded on first use

        return step

    claims = sizing.measure(prepare, GIB)
    graphs = 8 * GIB * 256 // 8192 + GIB
    assert claims == Claims("a GPU", 100 * GIB, 3 * GIB, 15 * GIB, 3 * GIB // 2, 8 * GIB, graphs)
    assert memory.trimmed == 2


def test_without_graphs_nothing_is_set_aside_for_them():
    memory = FakeMemory()

    def step() -> None:
        memory.take(GIB)

    assert GpuSizing(memory, EngineConfig(**BIG)).measure(lambda: step, 0).graphs == 0


def test_pages_are_counted_and_explained(caplog: pytest.LogCaptureFixture):
    sizing = GpuSizing(FakeMemory(), EngineConfig(**BIG))
    with caplog.at_level(logging.INFO, logger="radixserve"):
        assert sizing.pages(LLAMA, lambda: lambda: None, 0) == 90 * GIB // PAGE_BYTES
    (line,) = caplog.messages
    assert "KV pages of 16 tokens" in line


def test_a_gpu_that_somebody_else_uses_is_named(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="radixserve"):
        GpuSizing(FakeMemory(outside=DRIVER), EngineConfig())
        assert not caplog.messages
        GpuSizing(FakeMemory(outside=30 * GIB), EngineConfig())
    (line,) = caplog.messages
    assert "others hold 30.00 GiB of a GPU" in line


def test_a_step_for_which_memory_runs_out_is_a_setting_to_change():
    def prepare() -> Callable[[], object]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    sizing = GpuSizing(FakeMemory(), EngineConfig(**BIG))
    with pytest.raises(ConfigError, match=r"lower max_num_batched_tokens \(now 8192\)"):
        sizing.measure(prepare, 0)


# The step that is measured


@pytest.mark.parametrize(("length", "tokens"), [(4096, 100), (9, 7 * 9)])
def test_the_largest_step_has_all_tokens_and_all_rows_on_the_scratch_page(length: int, tokens: int):
    config = EngineConfig(max_num_seqs=7, max_num_batched_tokens=100, page_size=4)
    plan = largest_step(config, length)
    assert plan.tokens == tokens
    assert len(plan.rows) == 7
    assert all(row.sampling is not None and 0 < row.count <= length for row in plan.rows)
    assert {page for row in plan.rows for page in row.pages} == {0}


@pytest.mark.parametrize("graphs", [0, 3 * GIB])
def test_a_model_on_a_gpu_is_sized_by_running_that_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, graphs: int
):
    sampled: list[int] = []
    memory = FakeMemory()

    def spy(logits: torch.Tensor, rows: list[Any], eos: Any) -> list[Any]:
        assert logits.isfinite().all()
        sampled.append(len(rows))
        return []

    monkeypatch.setattr("radixserve.model.gpu_memory.sample", spy)
    monkeypatch.setattr(runner, "CudaMemory", lambda device: memory)
    monkeypatch.setattr(TransformersModel, "graphs", graphs)
    files = ModelFiles(tiny.write(tmp_path), tmp_path, "tiny")
    config = EngineConfig(
        device="cpu", dtype="float32", max_num_seqs=5, max_num_batched_tokens=90, num_pages=30,
        attention_backend="reference",
    )  # fmt: skip
    with caplog.at_level(logging.INFO, logger="radixserve"):
        model, count = runner._on_gpu(describe(files.model, config), config, ALONE)
    assert (count, sampled) == (30, [5])
    assert f"CUDA graphs {graphs // GIB}.00 GiB" in caplog.text or not graphs
    assert "CUDA graphs 0.0 MiB" in caplog.text or graphs
    assert model.geometry.token_bytes == 3 * 2 * 2 * 16 * 4


def test_where_the_device_samples_that_is_a_part_of_the_step(monkeypatch: pytest.MonkeyPatch):
    class Follower:
        geometry = replace(LLAMA, layers=1)
        name = "a model"
        follows = True

        def on(self, kv: torch.Tensor) -> Callable[[Any], torch.Tensor]:
            return lambda batch: torch.zeros(len(batch.sample_rows), 50)

    chosen: list[int] = []

    class Spy(Choices):
        def choose(self, logits: torch.Tensor, loaded: Any) -> Any:
            found = super().choose(logits, loaded)
            chosen.extend(found.tokens.tolist())
            return found

    monkeypatch.setattr("radixserve.model.gpu_memory.Choices", Spy)
    config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=90)
    rehearsal(Follower(), config, 64, torch.device("cpu"))()()
    assert len(chosen) == 5
    assert 0 not in chosen  # which the settings rule out, as they use all that there is to use


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_tells_what_is_taken_and_what_was_the_most():
    memory = CudaMemory(torch.device("cuda"))
    memory.trim()
    before = memory.reserved()
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    more = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    del more
    assert memory.peak() - before >= 320 << 20
    memory.trim()
    assert 64 << 20 <= memory.reserved() - before < 128 << 20
    free, total = memory.whole()
    assert 0 < free < total
    assert held.is_cuda
