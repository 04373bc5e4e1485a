"""Sizes, as people write them and read them."""

from __future__ import annotations

import pytest

from radixserve.errors import ConfigError
from radixserve.terminal.sizes import both, byte_rate, byte_size, quantity

GiB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GiB),
        ("500MB", 500_000_000),
        ("1.5 k", 1500),
        ("1.5Ki", 1536),
        ("2tib", 2 * 2**40),
        ("1000000", 1_000_000),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int):
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "4x", "-1", "GiB", "1e9", "4 GiB more", "4iB"])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(ConfigError, match="is no size: write 80GB, 24GiB or a number of bytes"):
        byte_size(text)


def test_counts_and_rates_are_read_too():
    assert quantity("134.5M", name="x") == 134_500_000
    assert quantity("8.03B", name="x") == 8_030_000_000
    assert quantity("8030261248", name="x") == 8_030_261_248
    assert byte_rate("3.35TB/s", name="x") == 3_350_000_000_000
    assert byte_rate("800GB", name="x") == 800_000_000_000


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (999, "999 B"),
        (131_072, "131 kB = 128 KiB"),
        (1_677_721_600, "1.68 GB = 1.56 GiB"),
        (32 * GiB, "34.4 GB = 32 GiB"),
        (140 * 10**9, "140 GB = 130 GiB"),
        (9_999_999_999, "10 GB = 9.31 GiB"),
        (10**18, "1,000 PB = 888 PiB"),
    ],
)
def test_sizes_are_shown_in_both_units(size: int, text: str):
    assert both(size) == text
