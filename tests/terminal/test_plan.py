"""What ``radixserve plan`` works out, says, and refuses."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.config import EngineConfig
from radixserve.model.kv_storage import KvGeometry, page_count
from radixserve.terminal.sizes import byte_size
from tests.terminal.planning import (
    LLAMA_8B,
    LLAMA_8B_FULL,
    LLAMA_70B,
    invoke,
    line,
    numbers,
    refusal,
    room,
)

GiB = 2**30
EIGHT = "--requests 180,650,90,1200,300,75,420,260 --context 4096"

# One token.


@pytest.mark.parametrize(
    ("kv_dtype", "size"),
    [("bf16", 131_072), ("fp16", 131_072), ("fp8", 65_536), ("int8", 65_536), ("fp32", 262_144)],
)
def test_a_token_of_llama_8b_takes_128_kib_in_16_bits_and_half_in_8(kv_dtype: str, size: int):
    assert numbers(f"{LLAMA_8B} --kv-dtype {kv_dtype}")["token"] == size


@pytest.mark.parametrize(("kv_heads", "kib"), [(32, 512), (8, 128), (1, 16)])
def test_fewer_kv_heads_take_less(kv_heads: int, kib: int):
    sizes = f"--layers 32 --heads 32 --head-dim 128 --kv-heads {kv_heads}"
    assert numbers(sizes)["token"] == kib * 1024


def test_without_kv_heads_each_query_head_has_its_own():
    assert numbers("--layers 32 --hidden-size 4096 --heads 32")["token"] == 512 * 1024


def test_a_token_takes_what_the_engine_gives_it():
    geometry = KvGeometry(layers=30, kv_heads=3, head_dim=64, dtype=torch.bfloat16)
    assert numbers("--layers 30 --kv-heads 3 --head-dim 64")["token"] == geometry.token_bytes


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("fp32", "fp32"), ("bf16", "bf16"), ("fp8", "bf16"), ("int4", "bf16")]
)
def test_kv_is_kept_as_the_weights_are_but_in_16_bits_at_least(dtype: str, kv_dtype: str):
    assert numbers(f"{LLAMA_8B} --dtype {dtype}")["kv_dtype"] == kv_dtype


# One request, and several.


def test_8192_tokens_of_llama_8b_are_a_gibibyte_and_both_units_are_shown():
    output, _ = invoke(f"{LLAMA_8B} --context 8192")
    assert numbers(f"{LLAMA_8B} --context 8192")["request_per_card"] == GiB
    assert line(output, "KV of a request") == (
        "KV of a request of 8,192 tokens 1.07 GB = 1 GiB 8,192 tokens · 131,072 B"
    )


def test_opt_13b_takes_about_1_6_gb_for_one_request_of_2048():
    opt = "--layers 40 --heads 40 --head-dim 128 --context 2048"
    assert numbers(opt)["request_per_card"] == 1_677_721_600
    assert "1.68 GB = 1.56 GiB" in line(invoke(opt)[0], "KV of a request")


def test_pages_waste_less_than_whole_lengths():
    mix = numbers(f"{LLAMA_8B} {EIGHT}")["mix"]
    assert (mix["tokens"], mix["reserved_slots"], mix["paged_slots"]) == (3175, 32_768, 3232)
    assert round(mix["reserved_used"], 3) == 0.097
    assert round(mix["paged_used"], 3) == 0.982
    output, _ = invoke(f"{LLAMA_8B} {EIGHT}")
    assert line(output, "reserved").endswith("32,768 slots 8 · 4,096; 9.7% of them used")
    assert line(output, "paged").endswith("3,232 slots 202 pages · 16; 98.2% of them used")


def test_small_pages_waste_nothing_and_large_ones_more():
    used = [
        numbers(f"{LLAMA_8B} {EIGHT} --page-size {size}")["mix"]["paged_used"]
        for size in (1, 16, 256)
    ]
    assert used[0] == 1.0
    assert used == sorted(used, reverse=True)


# A memory.


def test_80_gb_less_weights_of_20_gb_leave_53_6_gb():
    found = room(f"{LLAMA_8B} --memory 80GB --weights-memory 20GB --context 8192")
    assert (found["usable"], found["kv"]) == (73_600_000_000, 53_600_000_000)
    assert found["tokens"] == 408_935
    assert found["pages"] == 25_558
    assert found["reserved_requests"] == found["paged_requests"] == 49


def test_about_410_requests_of_1000_tokens_fit_there():
    memory = f"{LLAMA_8B} --memory 80GB --weights-memory 20GB --context 1000"
    assert room(memory)["reserved_requests"] == 408
    assert room(memory)["paged_requests"] == 25_557 // 63 == 405


@pytest.mark.parametrize(
    ("left", "page_size", "reserved", "paged"),
    [("53.6GB", 16, 49, 798), ("53.6GB", 4, 49, 817), ("54GB", 16, 50, 804)],
)
def test_short_requests_fit_sixteen_times_as_often_in_pages(
    left: str, page_size: int, reserved: int, paged: int
):
    memory = f"--memory {byte_size(left) / 1e9 + 20:g}GB --utilization 1 --weights-memory 20GB"
    found = room(f"{LLAMA_8B} {memory} --context 8192 --requests 500 --page-size {page_size}")
    assert found["reserved_requests"] == reserved
    assert found["paged_requests"] == paged


def test_of_a_mix_as_many_fit_as_of_its_mean_in_pages():
    memory = "--memory 24GiB --weights-memory 16GB"
    found = room(f"{LLAMA_8B} {EIGHT} {memory}")
    assert found["paged_requests"] == (found["pages"] - 1) * 8 // 202


def test_the_pages_are_those_that_the_engine_would_make():
    found = room("--layers 30 --kv-heads 3 --head-dim 64 --memory 1GiB --weights-memory 300MB")
    geometry = KvGeometry(layers=30, kv_heads=3, head_dim=64, dtype=torch.bfloat16)
    assert found["pages"] == page_count(EngineConfig(kv_memory=found["kv"]), geometry, 8192, 0)


@given(
    memory=st.integers(10**9, 10**12),
    page_size=st.integers(1, 1024),
    length=st.integers(1, 8192),
)
def test_what_fits_fits_and_one_more_does_not(memory: int, page_size: int, length: int):
    answer = numbers(
        f"--layers 32 --kv-heads 8 --head-dim 128 --weights-memory 1MB --memory {memory}B"
        f" --context 8192 --requests {length} --page-size {page_size}"
    )
    found, pages = answer["room"], -(-length // page_size)
    count, page = found["paged_requests"], answer["token"] * page_size
    assert (count * pages + 1) * page <= found["kv"] < ((count + 1) * pages + 2) * page
    whole = 8192 * answer["token"]
    assert found["reserved_requests"] * whole <= found["kv"]
    assert found["kv"] < (found["reserved_requests"] + 1) * whole


def test_a_request_that_does_not_fit_is_warned_about():
    arguments = f"{LLAMA_8B} --memory 20GB --weights-memory 18GB --context 8192"
    output, warning = invoke(arguments)
    assert line(output, "requests, paged").split()[2] == "0"
    assert warning.startswith("Warning: Not one such request fits: at most 3,")
    assert warning.count("\n") == 1
    assert numbers(f"{arguments} --bandwidth 1TB/s")["decode"] == []


def test_every_size_in_the_table_is_in_both_units():
    output, _ = invoke(f"{LLAMA_8B_FULL} --memory 80GB --context 8192 --bandwidth 2TB/s")
    for what in ("weights", "KV of a request", "usable memory", "left for KV"):
        assert re.search(r"[\d.]+ GB = [\d.]+ GiB", line(output, what)), what
    assert "131 kB = 128 KiB" in output
    assert "2 TB = 1.82 TiB" in output


# Several cards.


def test_four_cards_hold_a_quarter_of_the_weights_each():
    answer = numbers(f"{LLAMA_70B} --tensor-parallel 4")
    assert (answer["weights"], answer["weights_per_card"]) == (140 * 10**9, 35 * 10**9)
    output, _ = invoke(f"{LLAMA_70B} --tensor-parallel 4")
    assert "35 GB = 32.6 GiB" in line(output, "weights on each card")


def test_kv_stops_shrinking_when_each_card_has_one_kv_head():
    cards = (1, 2, 4, 8, 16, 32)
    shares = [
        numbers(f"{LLAMA_70B} --tensor-parallel {each}")["token_per_card"] // 1024 for each in cards
    ]
    assert shares == [320, 160, 80, 40, 40, 40]
    output, _ = invoke(f"{LLAMA_70B} --tensor-parallel 16")
    assert "2 cards hold the same one" in line(output, "KV heads on each card")


# Speed.


def test_decoding_is_bound_by_what_a_step_reads():
    arguments = f"{LLAMA_8B} --weights-memory 16GB --context 8192 --bandwidth 2TB/s"
    answer = numbers(arguments)
    speed = {step["batch"]: step["tokens_per_second"] for step in answer["decode"]}
    assert round(speed[1]) == 117
    assert round(speed[32]) == 1271  # 1,280 where weights and KV are rounded to 50 GB
    assert answer["decode"][2]["kv_bytes"] == 32 * GiB
    assert "34.4 GB = 32 GiB" in invoke(arguments)[0]


def test_only_batches_that_fit_are_shown_and_the_largest_is():
    memory = "--memory 80GB --weights-memory 20GB --context 8192 --bandwidth 2TB/s"
    assert [step["batch"] for step in numbers(f"{LLAMA_8B} {memory}")["decode"]] == [1, 8, 32, 49]


def test_with_several_cards_each_reads_its_share():
    answer = numbers(f"{LLAMA_70B} --tensor-parallel 8 --context 8192 --bandwidth 2TB/s")
    step = answer["decode"][0]
    assert step["weight_bytes"] == 17_500_000_000
    assert step["kv_bytes"] == 8192 * 40 * 1024


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--layers 0", "--layers must be at least 1, not 0."),
        ("--kv-heads -8", "--kv-heads must be at least 1, not -8."),
        ("--head-dim 10000000000", "--head-dim must be at most 1,000,000,000, not 10000000000."),
        ("--heads 31", "--hidden-size 4096 is not divisible by --heads 31: give --head-dim."),
        ("--kv-heads 7", "--heads 32 is not divisible by --kv-heads 7."),
        ("--context 0", "--context must be at least 1, not 0."),
        ("--page-size 0", "--page-size must be at least 1, not 0."),
        ("--page-size 2048", "--page-size must be at most 1,024, not 2048."),
        ("--tensor-parallel 0", "--tensor-parallel must be at least 1, not 0."),
        ("--tensor-parallel 3", "--tensor-parallel 3 does not divide --heads 32 evenly."),
        (
            "--kv-heads 4 --heads 12 --head-dim 8 --tensor-parallel 6",
            "--tensor-parallel 6 does not divide --kv-heads 4 evenly.",
        ),
        ("--utilization 1.01", "--utilization must be above 0 and at most 1, not 1.01."),
        ("--utilization 0", "--utilization must be above 0 and at most 1, not 0.0."),
        ("--utilization nan", "--utilization must be above 0 and at most 1, not nan."),
        ("--memory 80", "--memory '80' is no size: write 80GB, 24GiB."),
        ("--memory -80GB", "--memory '-80GB' is no size: write 80GB, 24GiB."),
        ("--memory 0GB", "--memory must be at least 1, not 0GB."),
        ("--weights-memory lots", "--weights-memory 'lots' is no size: write 80GB, 24GiB."),
        (
            "--parameters 8GB",
            "--parameters '8GB' is no number: write 8.03B, 135M or all its digits.",
        ),
        ("--parameters 0", "--parameters must be at least 1, not 0."),
        ("--bandwidth 2", "--bandwidth '2' is no bandwidth: write 2TB/s or 800GB/s."),
        ("--dtype fp7", "--dtype 'fp7' is not known: use one of fp32, "),
        ("--kv-dtype auto", "--kv-dtype 'auto' is not known: use one of fp32, "),
        ("--requests 1,,2", "--requests '1,,2' is no list of lengths: write 500, or 180,650,90."),
        ("--requests 5,0", "--requests: each must be at least 1, not 0."),
        ("--requests 5,9000", "--requests: 9000 tokens are more than --context 8192."),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: str, message: str):
    assert refusal(f"{LLAMA_8B} {options}").startswith(message)


def test_a_number_beyond_all_reason_is_refused_and_not_repeated():
    message = refusal(f"{LLAMA_8B} --memory {'9' * 400}GB")
    assert message == "--memory must be at most 1e+18, not 99999999999999999999…."


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("", "--layers, --kv-heads, --head-dim"),
        ("--heads 8 --head-dim 64", "--layers"),
        ("--layers 8 --hidden-size 64", "--kv-heads, --head-dim"),
    ],
)
def test_sizes_that_are_missing_are_asked_for(given: str, missing: str):
    question = "How large is the model? Name one that says it, or give"
    assert refusal(given) == f"{question} {missing}."


def test_memory_that_does_not_hold_the_weights_is_refused_with_the_numbers():
    message = refusal(f"{LLAMA_70B} --memory 80GB")
    assert "80 GB = 74.5 GiB at --utilization 0.92 leaves 73.6 GB = 68.5 GiB" in message
    assert "weights of 140 GB = 130 GiB a card" in message
    assert "--tensor-parallel" in message


def test_two_pages_are_the_least_that_is_planned():
    memory = f"{LLAMA_8B} --weights-memory 1MB --utilization 1 --requests 1 --memory"
    least = 10**6 + 2 * 16 * 131_072
    assert room(f"{memory} {least}B")["pages"] == 2
    assert "two KV pages of 2.1 MB = 2 MiB" in refusal(f"{memory} {least - 1}B")


# How it reads.


def test_the_table_says_how_each_number_comes_about():
    output, _ = invoke(f"{LLAMA_8B} --memory 80GB --weights-memory 20GB --context 8192")
    token = line(output, "KV of a token")
    assert "key and value (2) · 32 layers · 8 KV heads · head size 128 · 2 B (bf16)" in token
    assert line(output, "left for KV").endswith("73.6 GB less 20 GB of weights")
    assert line(output, "requests, reserved").endswith("49 408,935 tokens / 8,192 = 49.9")
    assert line(output, "without sharing heads").startswith(
        "without sharing heads 524 kB = 512 KiB"
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    arguments = f"{LLAMA_8B_FULL} --memory 80GB --context 8192 --bandwidth 2TB/s"
    output, _ = invoke(arguments, width)
    assert max(map(len, output.splitlines())) <= width


def test_sizes_alone_need_nothing_heavy():
    code = (
        "import sys; from radixserve.terminal.plan import plan;"
        "plan(layers=32, kv_heads=8, head_dim=128);"
        "print({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "set()"
