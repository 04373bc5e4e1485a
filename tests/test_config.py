"""Settings that cannot work are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "fp8"),
        ("device", "tpu"),
        ("load_format", "pickle"),
        ("scheduling_policy", "lpm"),
        ("page_size", 0),
        ("page_size", 1025),
        ("num_pages", 1),
        ("kv_memory_share", 1.0),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 0.99),
        ("gpu_memory_utilization", float("nan")),
        ("max_num_seqs", -1),
        ("queue_timeout", 0.0),
        ("queue_timeout", float("inf")),
        ("queue_timeout", float("nan")),
        ("step_timeout", 0.0),
        ("step_timeout", float("inf")),
        ("step_timeout", float("nan")),
        ("threads", 0),
        ("tensor_parallel_size", 0),
        ("long_prefill_token_threshold", -1),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(name: str, value: Any):
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**{name: value})


def test_each_running_request_needs_a_token_of_the_budget():
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens.*max_num_seqs"):
        EngineConfig(max_num_seqs=8, max_num_batched_tokens=7)


def test_several_ranks_have_nothing_to_compile():
    with pytest.raises(ConfigError, match=r"torch_compile.*several ranks.*leave it out"):
        EngineConfig(torch_compile=True, tensor_parallel_size=2)


def test_what_was_left_to_the_device_follows_it():
    config = EngineConfig(max_queue=7)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (64, 512)
    on_gpu = config.on("cuda")
    assert (on_gpu.max_num_seqs, on_gpu.max_num_batched_tokens) == (256, 8192)
    assert on_gpu.max_queue == 7
    assert on_gpu.on("cpu") == config.on("cpu")


def test_what_was_chosen_stays():
    chosen = EngineConfig(max_num_seqs=64).on("cuda")
    assert (chosen.max_num_seqs, chosen.max_num_batched_tokens) == (64, 8192)
    assert EngineConfig(**chosen.chosen()) == chosen
    assert EngineConfig(**chosen.chosen()).by_device == {"max_num_batched_tokens"}
