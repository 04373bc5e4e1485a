"""Prompts are as long as the sizes say and share what they say; the pages hold them."""

from __future__ import annotations

import pytest

from bench.gpu.prompts import Tokens, load
from bench.gpu.sizes import Sizes
from radixserve.tokens import unpack
from tests.bench.gpu.here import SMALL


def test_shrinking_divides_lengths_and_keeps_numbers():
    small = Sizes().shrunk(32)
    assert (small.cached, small.long, small.new, small.apart) == (256, 1024, 4, 64)
    assert (small.rows, small.steps, small.repeats, small.groups) == (64, 32, 5, 4)


def test_lengths_of_less_than_a_token_are_refused():
    with pytest.raises(ValueError, match="new is less than a token"):
        Sizes().shrunk(129)


def test_the_pages_hold_the_rows_of_every_case():
    sizes = Sizes()
    tokens = (sizes.pages - 1) * 16
    timed = sizes.warm + (sizes.repeats + 1) * sizes.steps
    assert tokens > sizes.rows * (sizes.apart + timed)
    assert tokens > sizes.long + sizes.rows * (sizes.own + timed)
    assert tokens > sizes.groups * sizes.system + sizes.rows * (sizes.question + sizes.answer)
    assert sizes.longest > sizes.long + sizes.own + timed


def test_prompts_share_their_head_and_nothing_else():
    prompts = [unpack(each) for each in Tokens(1000, "one").sharing(3, 20, 5)]
    assert [len(each) for each in prompts] == [25, 25, 25]
    assert {tuple(each[:20]) for each in prompts} == {tuple(prompts[0][:20])}
    assert len({tuple(each[20:]) for each in prompts}) == 3
    assert all(100 <= token < 1000 for each in prompts for token in each)


def test_tokens_are_the_same_in_every_run_and_others_under_another_name():
    assert Tokens(1000, "one").some(9) == Tokens(1000, "one").some(9)
    assert Tokens(1000, "one").some(9) != Tokens(1000, "two").some(9)
    drawn = Tokens(1000, "one")
    assert drawn.some(9) != drawn.some(9)


def test_a_load_is_all_rows_in_groups_that_share_a_prefix_and_repeats_that_share_none():
    prompts, later = load(SMALL, 512, 0), load(SMALL, 512, 1)
    heads = [prompt[: 4 * SMALL.system] for prompt in prompts]
    assert len(prompts) == SMALL.rows
    assert [len(set(heads[at : at + 2])) for at in (0, 2)] == [1, 1]
    assert len(set(heads)) == SMALL.groups
    assert not set(heads) & {prompt[: 4 * SMALL.system] for prompt in later}
