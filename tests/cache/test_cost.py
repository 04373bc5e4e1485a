"""Costs grow with what is asked for, not with what is there. Counted, not timed."""

from __future__ import annotations

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping
from radixserve.tenant import OPEN
from radixserve.tokens import TOKEN_BYTES, pack, unpack
from tests.cache.cost import CountingBytes, bytecodes
from tests.cache.serving import append, compute, found, prefill, serve


def leaves(count: int) -> PrefixCache:
    cache = PrefixCache(2 * count + 10, 1)
    for first in range(count):
        serve(cache, [first, 1])
    return cache


@pytest.mark.parametrize("call", ["evict", "serve", "acquire"])
def test_a_call_among_ten_times_as_many_leaves_costs_the_same(call: str):
    costs = []
    for count in (500, 5000):
        cache = leaves(count)

        def evict(cache: PrefixCache = cache) -> None:
            for _ in range(50):
                assert cache.evict(1) == 1

        def serve_more(cache: PrefixCache = cache) -> None:
            for first in range(-50, 0):
                serve(cache, [first])

        def acquire(cache: PrefixCache = cache, count: int = count) -> None:
            for first in range(0, count, count // 50):
                with cache.acquire(pack([first, 1, 2]), b"") as lease:
                    assert lease.reused == 2

        costs.append(bytecodes({"evict": evict, "serve": serve_more, "acquire": acquire}[call]))
    few, many = costs
    assert few > 1000
    assert many < 2 * few


@pytest.mark.parametrize("blocks", [1, 30])
def test_pages_go_as_easily_where_a_thousand_conversations_end(blocks: int):
    """In one node of many blocks, or in many nodes of one."""
    costs = []
    for count in (10, 1000):
        cache = PrefixCache(100, 4)
        prompt = range(4 * 30)
        for end in range(4 * blocks, 4 * 30, 4 * blocks):
            serve(cache, [*prompt[:end], *[-1] * 4])
        for number in range(count):
            lease = prefill(cache, prompt)
            cache.finish(lease, Keeping(session=str(number)))

        def evict(cache: PrefixCache = cache) -> None:
            for _ in range(20):
                assert cache.evict(1) == 1

        costs.append(bytecodes(evict))
        cache.check()
    few, many = costs
    assert few > 1000
    assert many < 2 * few


@pytest.mark.parametrize("edges", [20, 150, 600])
def test_the_end_of_a_branch_costs_each_name_and_each_node_once(edges: int):
    """Each conversation began behind the first block, and goes on along all of the others."""
    cache, packed = chain(edges, 16 * edges)
    prompt = unpack(packed)
    for number in range(300):
        for length in (8, len(prompt)):
            lease = prefill(cache, prompt[:length])
            cache.finish(lease, Keeping(session=str(number)), 4)
    cache.finish(prefill(cache, prompt[:8]), Keeping(session="first"))
    cost = bytecodes(lambda: cache.end_session(OPEN, b"", "first"))
    cache.check()
    assert 1000 < cost < 100 * (300 + 2 * edges)


def test_the_end_of_a_branch_costs_nothing_for_names_elsewhere():
    costs = []
    for count in (10, 1000):
        cache = PrefixCache(200, 4)
        for number in range(count):
            cache.finish(prefill(cache, range(40)), Keeping(session=str(number)))
        other = [7, *range(40)]
        cache.finish(prefill(cache, other), Keeping(session="other"))
        with prefill(cache, other[:20]):
            costs.append(bytecodes(lambda cache=cache: cache.end_session(OPEN, b"", "other")))
        cache.check()
    few, many = costs
    assert few > 100
    assert many < 2 * few


def chain(edges: int, tokens: int) -> tuple[PrefixCache, bytes]:
    """A cached prompt with a side branch at each seam between its edges."""
    page = 4
    cache = PrefixCache(tokens // page + edges * 2 + 10, page)
    packed = pack(range(tokens))
    trunk = cache.acquire(packed, b"")
    assert trunk.extend(tokens)
    step = tokens // edges
    for end in range(step, tokens, step):
        trunk.publish(end)
        with trunk.fork(packed[: end * TOKEN_BYTES] + pack([-2] * page)) as branch:
            compute(branch, page)
    trunk.publish(tokens)
    trunk.release()
    assert cache.tree.nodes >= 2 * edges - 1
    return cache, packed


@pytest.mark.parametrize("edges", [50, 500])
def test_a_match_touches_each_byte_of_the_prompt_a_few_times_however_many_edges(edges: int):
    tokens = 40_000
    cache, packed = chain(edges, tokens)
    peeked = CountingBytes(packed + pack([-3]))
    assert cache.peek(peeked, b"").tokens == tokens
    assert len(packed) <= peeked.touched <= 3 * len(packed)
    acquired = CountingBytes(packed + pack([-3]))
    with cache.acquire(acquired, b"") as lease:
        assert lease.reused == tokens
    assert len(packed) <= acquired.touched <= 3 * len(packed)


def test_twice_the_edges_cost_a_match_twice_the_work():
    costs = []
    for edges in (250, 500):
        cache, packed = chain(edges, edges * 40)
        asked = packed + pack([-3])
        costs.append(bytecodes(lambda cache=cache, asked=asked: cache.peek(asked, b"")))
    few, many = costs
    assert 1.5 * few < many < 2.5 * few


def test_the_thousandth_generated_token_costs_what_the_first_did():
    cache = PrefixCache(3000, 1)
    lease = prefill(cache, range(10))

    def generate() -> None:
        for token in range(50):
            append(lease, token)

    generate()
    early = bytecodes(generate)
    for _ in range(40):
        generate()
    late = bytecodes(generate)
    assert early > 1000
    assert late < 1.2 * early
    lease.release()
    assert found(cache, range(10)) == 10
