"""Replays of a trace against plain models of the same caches, block by block."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from radixserve.simulation.replay import Plan, least_recently_used, optimum, replay
from radixserve.simulation.trace import Line, Trace

Prompt = tuple[int, ...]
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=8)


def plan_of(prompts: Sequence[Prompt], *, tokens: int = 10) -> Plan:
    """Each prompt has one token more than its blocks of ten, so that all of them can hit."""
    trace = Trace(block_size=tokens)
    for moment, prompt in enumerate(prompts):
        length = len(prompt) * tokens + 1
        trace.add(Line(timestamp=1000 * moment, input_length=length, hash_ids=list(prompt)), 1)
    return Plan.of(trace)


def heads(prompt: Prompt) -> list[Prompt]:
    """The blocks of a prompt, each with all before it."""
    return [prompt[:end] for end in range(1, len(prompt) + 1)]


def reached(prompt: Prompt, kept: frozenset[Prompt] | dict[Prompt, int]) -> int:
    return len(list(itertools.takewhile(kept.__contains__, heads(prompt))))


def rate(hits: int, prompts: Sequence[Prompt]) -> float:
    return 10 * hits / max(sum(10 * len(prompt) + 1 for prompt in prompts), 1)


def coldest_first(prompts: Sequence[Prompt], blocks: int) -> float:
    """Least recently used, of equally old ones the longest."""
    kept: dict[Prompt, int] = {}
    hits = 0
    for moment, prompt in enumerate(prompts):
        hits += reached(prompt, kept)
        kept |= dict.fromkeys(heads(prompt), moment)
        while len(kept) > blocks:
            del kept[min(kept, key=lambda head: (kept[head], -len(head), head))]
    return rate(hits, prompts)


def best(prompts: Sequence[Prompt], blocks: int) -> float:
    """The most that any choice of what to keep hits, by trying all."""
    states: dict[frozenset[Prompt], int] = {frozenset(): 0}
    for prompt in prompts:
        following: dict[frozenset[Prompt], int] = {}
        for kept, hits in states.items():
            total = hits + reached(prompt, kept)
            there = kept | set(heads(prompt))
            for choice in itertools.combinations(there, min(blocks, len(there))):
                state = frozenset(choice)
                following[state] = max(total, following.get(state, 0))
        states = following
    return rate(max(states.values(), default=0), prompts)


@given(PROMPTS, st.integers(1, 6))
def test_least_recently_used_is_that_of_single_blocks(prompts: list[Prompt], blocks: int):
    plan = plan_of(prompts)
    assert replay(plan, least_recently_used(plan), blocks) == coldest_first(prompts, blocks)


@given(PROMPTS.filter(lambda prompts: len(prompts) < 6), st.integers(1, 3))
def test_nothing_hits_more_than_the_optimum(prompts: list[Prompt], blocks: int):
    plan = plan_of(prompts)
    assert replay(plan, optimum(plan), blocks) == best(prompts, blocks)


def test_a_newcomer_takes_nothing_that_was_used_within_the_grace():
    old, new = (1, 2, 3), (7, 8, 9)
    plan = plan_of([old, new, old])
    least = least_recently_used(plan)
    assert replay(plan, least, 3) == 0
    assert replay(plan, least, 3, grace=1.5) == rate(3, [old, new, old])
    assert replay(plan, least, 3, grace=0.5) == 0
    # What does not fit beside it is its end.
    prompts = [old, new, new, old]
    plan = plan_of(prompts)
    assert replay(plan, least_recently_used(plan), 4, grace=9) == rate(1 + 3, prompts)


def test_what_is_given_up_goes_first_unless_it_was_used_again():
    first, second, third = (1, 2), (4, 5), (7, 8)
    prompts = [first, second, third, first, second]
    plan = plan_of(prompts)
    least = least_recently_used(plan)
    assert replay(plan, least, 4) == 0
    # The second goes when the third comes, at 2, if it was given up by then.
    never = float("inf")
    for end, hits in ((1.5, 2), (2.0, 0), (never, 0)):
        ends = [[never], [end], [never], [never], [never]]
        assert replay(plan, least, 4, ends=ends.__getitem__) == rate(hits, prompts)
    again = [first, second, second, third, second]
    plan = plan_of(again)
    ends = [[never], [2.5], [never], [never], [never]]
    assert replay(plan, least, 4, ends=ends.__getitem__) == rate(4, again)


def test_tenants_share_nothing():
    trace = Trace(block_size=10)
    for tenant in ("a", "b", "a"):
        trace.add(Line(timestamp=0, input_length=21, hash_ids=[1, 2], tenant=tenant), 1)
    plan = Plan.of(trace)
    assert replay(plan, least_recently_used(plan), 9) == 20 / 63


def test_a_prompt_never_hits_whole():
    trace = Trace(block_size=10)
    for _ in range(2):
        trace.add(Line(timestamp=0, input_length=15, hash_ids=[1, 2]), 1)
    plan = Plan.of(trace)
    assert replay(plan, least_recently_used(plan), 9) == 14 / 30
