"""What is shown of the tree: bounded, what was used last first, and nothing of others."""

from __future__ import annotations

from msgspec.structs import replace

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.view import EXACT, HEAD, NodeView, view
from radixserve.tenant import OPEN
from radixserve.tokens import pack, unpack
from tests.cache.serving import idle, prefill, serve, serve_as

COMMON = list(range(8))


def spans(nodes: list[NodeView]) -> list[tuple[int, int]]:
    return [(node.start, node.end) for node in nodes]


def test_parents_come_before_children_and_children_by_their_last_use() -> None:
    cache = PrefixCache(64, 4)
    for tail in ([20, 21, 22, 23], [30, 31, 32, 33, 34, 35, 36, 37]):
        cache.end_step(cache.begin_step())
        serve(cache, [*COMMON, *tail])
    tree = view(cache, 10)
    assert spans(tree.nodes) == [(0, 8), (8, 16), (8, 12)]
    trunk, young, old = tree.nodes
    assert trunk.above is None
    assert young.above == old.above == trunk.id
    assert (young.idle, old.idle) == (0, 1)
    assert [unpack(node.head) for node in tree.nodes] == [
        COMMON,
        [*range(30, 38)],
        [*range(20, 24)],
    ]
    assert tree.total == 3
    assert idle(cache)


def test_what_prompts_have_in_common_is_used_whenever_one_of_them_is() -> None:
    cache = PrefixCache(64, 4)
    for tail in (20, 30, 20, 20):
        cache.end_step(cache.begin_step())
        serve(cache, [*COMMON, *range(tail, tail + 8)])
    cache.end_step(cache.begin_step())
    assert [node.idle for node in view(cache, 10).nodes] == [1, 1, 3]
    # One tenant is told the order alone, in which the trunk is no later than what is behind it.
    assert [node.idle for node in view(cache, 10, OPEN).nodes] == [0, 0, 1]


def test_what_is_in_use_is_told_and_comes_first() -> None:
    cache = PrefixCache(64, 4)
    with prefill(cache, [*COMMON, *range(20, 24)]):
        cache.end_step(cache.begin_step())
        serve(cache, [*COMMON, *range(30, 34)])
        trunk, used, _ = view(cache, 10).nodes
        assert unpack(used.head) == [20, 21, 22, 23]
        assert (used.pins, used.idle) == (1, 0)
        assert trunk.pins == 1
    assert [node.pins for node in view(cache, 10).nodes] == [0, 0, 0]


def test_what_there_is_no_room_for_is_counted() -> None:
    cache = PrefixCache(2000, 4)
    for number in range(300):
        serve(cache, [*COMMON, number, 1, 2, 3])
    tree = view(cache, 5)
    assert len(tree.nodes) == 5
    assert tree.nodes[0].hidden == 296
    assert all(node.above == tree.nodes[0].id for node in tree.nodes[1:])


def test_a_long_edge_is_told_by_its_head() -> None:
    cache = PrefixCache(64, 4)
    serve(cache, range(200))
    [node] = view(cache, 5).nodes
    assert (node.start, node.end) == (0, 200)
    assert unpack(node.head) == list(range(HEAD))


def test_one_tenant_is_shown_its_own_and_nothing_of_what_is_public() -> None:
    cache = PrefixCache(64, 4)
    cache.set_public([pack(COMMON)])
    serve_as(cache, "a", [*COMMON, *range(20, 28)])
    serve_as(cache, "b", [*COMMON, *range(30, 38)])
    serve_as(cache, "b", range(50, 58))
    all_of_it = view(cache, 10)
    assert {node.tenant for node in all_of_it.nodes} == {None, "a", "b"}
    [public] = [node for node in all_of_it.nodes if node.tenant is None]
    behind = [node for node in all_of_it.nodes if node.start == 8]
    assert [node.above for node in behind] == [public.id, public.id]
    for tenant, starts in (("a", [8]), ("b", [0, 8]), ("nobody", [])):
        shown = view(cache, 10, tenant)
        assert shown.total is None
        assert sorted(node.start for node in shown.nodes) == starts
        assert all(node.tenant == tenant and node.above is None for node in shown.nodes)


def test_ages_tell_a_tenant_an_order_and_not_how_busy_others_are() -> None:
    cache = PrefixCache(64, 4)
    for first in (20, 30, 40):
        serve_as(cache, "a", range(first, first + 8))
        for _ in range(first):
            cache.end_step(cache.begin_step())
    assert [node.idle for node in view(cache, 10).nodes] == [40, 70, 90]
    assert [node.idle for node in view(cache, 10, "a").nodes] == [0, 1, 2]


def test_ids_tell_a_tenant_nothing_of_the_pages_that_others_take() -> None:
    shown = []
    for others in (0, 3):
        cache = PrefixCache(64, 4)
        for number in range(others):
            serve_as(cache, "b", range(100 * number, 100 * number + 4))
        for tail in (20, 30):
            serve_as(cache, "a", [*COMMON, *range(tail, tail + 4)])
        shown.append(view(cache, 10, "a"))
        pages = {node.id for node in view(cache, 10).nodes}
        assert not pages & {node.id for node in shown[-1].nodes}
    bare = [[replace(node, id=0, above=None) for node in each.nodes] for each in shown]
    assert bare[0] == bare[1]
    trunk, *tails = shown[0].nodes
    assert [node.above for node in (trunk, *tails)] == [None, trunk.id, trunk.id]
    assert len({node.id for node in (trunk, *tails)}) == 3


def test_a_tenant_knows_a_node_again_whatever_is_used_in_between():
    cache = PrefixCache(64, 4)
    for first in (20, 30):
        cache.end_step(cache.begin_step())
        serve_as(cache, "a", range(first, first + 8))
    before = view(cache, 10, "a").nodes
    cache.end_step(cache.begin_step())
    serve_as(cache, "b", range(40, 48))
    serve_as(cache, "a", range(20, 28))
    after = view(cache, 10, "a").nodes
    assert [node.head for node in after] == [node.head for node in before][::-1]
    assert {node.head: node.id for node in after} == {node.head: node.id for node in before}
    assert all(node.id <= EXACT for node in after)
