from __future__ import annotations

from bench.static import PAD, padded
from bench.workloads import Turn


def test_a_static_batch_is_as_long_as_its_longest_prompt_and_answer() -> None:
    batch = padded([Turn([7, 8], 9), Turn([5, 6, 7, 8], 2)])

    assert [turn.prompt for turn in batch] == [[PAD, PAD, 7, 8], [5, 6, 7, 8]]
    assert [turn.output for turn in batch] == [9, 9]


def test_one_request_alone_is_not_padded() -> None:
    assert padded([Turn([7, 8], 9)]) == [Turn([7, 8], 9)]
