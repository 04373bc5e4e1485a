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
        ("max_num_seqs", 0),
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
