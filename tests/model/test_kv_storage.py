"""How many pages there are, and what a page is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.model.kv_storage import (
    MOST_PAGES,
    KvGeometry,
    KvStorage,
    Scales,
    page_count,
)
from radixserve.model.memory import _cgroup_left, free_memory

SMOLLM = KvGeometry(layers=30, kv_heads=3, head_dim=64, dtype=torch.bfloat16)
PAGE_BYTES = 23_040 * 16
GIB = 1 << 30
CPU = torch.device("cpu")


def test_a_token_weighs_keys_and_values_in_all_layers():
    assert SMOLLM.token_bytes == 23_040


def test_under_static_scales_an_element_is_a_byte_and_the_scales_are_nowhere():
    static = replace(SMOLLM, scales=((0.5, 0.25),) * 30)
    assert static.token_bytes == 23_040 / 2
    kv = KvStorage(static, 3, 16, CPU).kv
    assert (kv.shape, kv.dtype) == ((30, 3, 2, 16, 3, 64), torch.float8_e4m3fn)
    assert kv.nbytes == 3 * 16 * static.token_bytes


def test_kv_of_another_dtype_code_or_scale_is_of_another_format():
    static = replace(SMOLLM, scales=((0.5, 0.25),) * 30)
    others = [
        SMOLLM,
        replace(SMOLLM, dtype=torch.float32),
        replace(SMOLLM, code="int8"),
        replace(SMOLLM, code="fp8_e4m3"),
        static,
        replace(static, scales=(*static.scales[:-1], (0.5, 0.25000003))),
        replace(static, scales=((0.25, 0.5),) * 30),
    ]
    assert len({each.format for each in others}) == len(others)
    assert replace(static, scales=tuple(static.scales)).format == static.format


def test_a_number_of_pages_is_taken_as_it_is():
    config = EngineConfig(num_pages=7, kv_memory=GIB)
    assert page_count(config, SMOLLM, 8192, free_bytes=0) == 7


def test_a_number_of_bytes_is_filled():
    config = EngineConfig(kv_memory=10 * PAGE_BYTES + 1)
    assert page_count(config, SMOLLM, 8192, free_bytes=0) == 10


def test_a_share_of_the_free_memory_is_filled():
    config = EngineConfig(kv_memory_share=0.5)
    assert page_count(config, SMOLLM, 8192, free_bytes=20 * PAGE_BYTES) == 10


def test_automatic_sizing_stops_at_four_times_what_can_run():
    config = EngineConfig(max_num_seqs=2)
    assert page_count(config, SMOLLM, 160, free_bytes=100 * GIB) == 4 * 2 * 10 + 1


def test_automatic_sizing_stops_at_what_can_be_kept_in_mind():
    config = EngineConfig(page_size=1)
    tiny = KvGeometry(layers=1, kv_heads=1, head_dim=1, dtype=torch.float32)
    assert page_count(config, tiny, 1 << 20, free_bytes=100 * GIB) == MOST_PAGES


@pytest.mark.parametrize(
    "config", [EngineConfig(kv_memory=2 * PAGE_BYTES - 1), EngineConfig(kv_memory_share=0.1)]
)
def test_memory_for_less_than_two_pages_is_refused_with_the_number_needed(config: EngineConfig):
    with pytest.raises(ConfigError, match=f"at least {2 * PAGE_BYTES} bytes"):
        page_count(config, SMOLLM, 8192, free_bytes=3 * PAGE_BYTES)


def test_memory_that_the_machine_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="Lower num_pages"):
        KvStorage(SMOLLM, 1 << 40, 16, CPU)


def test_a_pool_takes_no_memory_before_it_is_written():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    storage = KvStorage(SMOLLM, GIB // PAGE_BYTES, 16, CPU)
    assert storage.kv.nbytes > 0.9 * GIB
    assert resident() - before < GIB // 10


@pytest.mark.parametrize("scales", [None, ((1.0, 1.0),) * 30], ids=["plain", "float8"])
def test_copies_reach_all_layers(scales: Scales | None):
    storage = KvStorage(replace(SMOLLM, scales=scales), 3, 4, CPU)
    bits = storage.kv.view(torch.uint8)
    bits.zero_()
    bits[:, 2] = 1
    storage.copy_pages([PageCopy(source=2, target=1, tokens=3)])
    assert bits[:, 1].eq(1).all()
    assert bits[:, 0].eq(0).all()


def test_free_memory_is_below_what_is_installed():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < free_memory(CPU) < total


@pytest.mark.parametrize(
    ("folder", "limit", "usage"),
    [
        (".", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_a_control_group_leaves_its_limit_less_what_cannot_be_dropped(
    tmp_path: Path, folder: str, limit: str, usage: str
):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / limit).write_text("1000\n")
    (tmp_path / folder / usage).write_text("700\n")
    (tmp_path / folder / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    assert _cgroup_left(tmp_path) == 400


def test_a_control_group_without_a_limit_limits_nothing(tmp_path: Path):
    assert _cgroup_left(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("")
    assert _cgroup_left(tmp_path) is None
