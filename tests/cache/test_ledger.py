"""``check()`` must fail on one planted fault of each kind."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from radixserve.cache.errors import CacheError
from radixserve.cache.lease import Lease
from radixserve.cache.node import Node, Root, walk
from radixserve.cache.pages import PageCopy
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import Accounts, Quota
from radixserve.cache.terms import Keeping, Mark, term
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.cache.serving import order, prefill, serve


class Busy:
    """A cache with something of everything in it.

    ::

        root - trunk [0 .. 7] - left  [10 .. 13]   pinned by ``lease``, which has an open block
                              - right [20 .. 27]   cold
                              - open  [30]         cold, an open leaf
    """

    def __init__(self) -> None:
        self.cache = PrefixCache(64, 4)
        self.lease = prefill(self.cache, [*range(8), 10, 11, 12, 13, 14, 15])
        serve(self.cache, [*range(8), *range(20, 28)])
        serve(self.cache, [*range(8), 30])
        self.twin = self.lease.fork(bytearray(self.lease.tokens))
        self.reader = self.cache.acquire(pack([*range(8), 20, 21, 99]), b"")
        self.writer = self.lease.fork(bytearray(self.lease.tokens))
        assert self.writer.extend(1)
        self.purged = prefill(self.cache, range(6), b"gone")
        self.cache.purge(b"gone")
        spare = prefill(self.cache, range(500, 504), b"b")
        assert spare.extend(4)
        marked = prefill(self.cache, range(600, 608), b"kept")
        self.cache.finish(marked, Keeping((Mark(4, 60),), "s"))
        self.cache.begin_step()
        spare.release()
        self.cache.check()

    @property
    def root(self) -> Root:
        return self.cache.tree.roots[b""]

    @property
    def trunk(self) -> Node:
        assert self.root.children
        return self.root.children[0]

    def child(self, index: int) -> Node:
        assert self.trunk.children
        return self.trunk.children[index]

    @property
    def kept(self) -> Node:
        """Has one child, which is not kept."""
        (node,) = self.cache.tree.roots[b"kept"].children or ()
        return node

    @property
    def cold(self) -> Node:
        return order(self.cache).leaves()[0]


def _page_in_two_nodes(busy: Busy) -> None:
    busy.child(0).pages[0] = busy.child(2).pages[0]


def _page_in_tree_and_free(busy: Busy) -> None:
    busy.cache.pool._free.append(busy.trunk.pages[0])


def _page_in_tree_and_private(busy: Busy) -> None:
    page = busy.child(1).pages[0]
    busy.cache.pool.share([page])
    busy.purged.pages.append(page)


def _page_free_twice(busy: Busy) -> None:
    busy.cache.pool._free.append(busy.cache.pool._free[0])


def _page_free_and_waiting(busy: Busy) -> None:
    busy.cache.pool._free.append(busy.cache.pool._quarantine[0][1])


def _page_leaked(busy: Busy) -> None:
    busy.cache.pool._free.pop()


def _page_leaked_by_a_lease(busy: Busy) -> None:
    busy.lease.pages.pop()


def _page_held_by_nobody(busy: Busy) -> None:
    busy.cache.pool.take(1)


def _holder_forgotten(busy: Busy) -> None:
    busy.cache.pool.share(busy.lease.pages[-1:])


def _scratch_page_free(busy: Busy) -> None:
    busy.cache.pool._free.append(0)


def _scratch_page_leased(busy: Busy) -> None:
    busy.lease.pages.append(0)


def _page_waiting_for_no_step(busy: Busy) -> None:
    busy.cache.pool.ended = busy.cache.pool.begun


def _too_many_pins(busy: Busy) -> None:
    busy.child(0).pins += 1


def _too_few_pins(busy: Busy) -> None:
    busy.trunk.pins -= 1


def _pins_on_a_cold_leaf(busy: Busy) -> None:
    busy.cold.pins = 1


def _pins_on_the_root(busy: Busy) -> None:
    busy.root.pins += 1


def _pins_of_what_was_purged(busy: Busy) -> None:
    busy.purged.anchor.pins += 1


def _cold_leaf_missing_from_the_order(busy: Busy) -> None:
    order(busy.cache).remove(busy.cold)


def _pinned_leaf_in_the_order(busy: Busy) -> None:
    order(busy.cache).add(busy.lease.anchor)


def _inner_node_in_the_order(busy: Busy) -> None:
    order(busy.cache).add(busy.trunk)


def _leaf_twice_in_the_order(busy: Busy) -> None:
    order(busy.cache).add(busy.cold)


def _leaf_aged_in_place(busy: Busy) -> None:
    busy.cold.last_use += 1


def _key_list_stale(busy: Busy) -> None:
    assert busy.trunk.keys
    busy.trunk.keys[0] = bytearray(busy.trunk.keys[0])


def _key_list_short(busy: Busy) -> None:
    assert busy.trunk.keys
    busy.trunk.keys.pop()


def _children_out_of_order(busy: Busy) -> None:
    assert busy.trunk.keys
    assert busy.trunk.children
    busy.trunk.keys.reverse()
    busy.trunk.children.reverse()


def _two_children_with_one_block(busy: Busy) -> None:
    first, second = busy.child(0), busy.child(1)
    second.key[:16] = first.key[:16]


def _empty_children(busy: Busy) -> None:
    leaf = busy.child(0)
    assert leaf.children is None
    leaf.keys, leaf.children = [], []


def _keys_without_children(busy: Busy) -> None:
    busy.cold.keys = []


def _wrong_parent(busy: Busy) -> None:
    busy.child(2).parent = busy.root


def _wrong_depth(busy: Busy) -> None:
    leaf = busy.child(1)
    order(busy.cache).remove(leaf) if not leaf.pins else None
    leaf.end += 4
    order(busy.cache).add(leaf) if not leaf.pins else None


def _key_without_page(busy: Busy) -> None:
    busy.cold.key += pack(range(4))


def _page_without_key(busy: Busy) -> None:
    busy.cold.pages.extend(busy.cache.pool.take(1))
    busy.cache.tree.pages += 1
    busy.cache.tree.evictable += 1


def _open_leaf_with_a_child(busy: Busy) -> None:
    leaf = busy.child(2)
    assert busy.cache.tree.is_open(leaf)
    busy.cache.tree.pin(leaf)
    busy.cache.tree.add(leaf, pack(range(4)), busy.cache.pool.take(1), now=0)
    busy.cache.tree.unpin(leaf, now=0)


def _chain_unjoined(busy: Busy) -> None:
    busy.cache.tree.split(busy.lease.anchor.parent or busy.trunk, 16)


def _attached_node_marked_as_cut_off(busy: Busy) -> None:
    busy.cold.attached = False


def _empty_root(busy: Busy) -> None:
    busy.cache.tree.root(b"empty", busy.cache.accounts.of(OPEN))


def _root_under_another_name(busy: Busy) -> None:
    roots = busy.cache.tree.roots
    roots[b"x"] = roots.pop(b"")


def _root_with_an_edge(busy: Busy) -> None:
    busy.root.parent = busy.trunk


def _released_lease_on_the_books(busy: Busy) -> None:
    busy.lease.released = True


def _lease_off_the_books(busy: Busy) -> None:
    busy.cache.leases.discard(busy.lease)


def _lease_row_differs(busy: Busy) -> None:
    pages = busy.lease.pages
    pages[0], pages[1] = pages[1], pages[0]


def _lease_tokens_differ(busy: Busy) -> None:
    assert isinstance(busy.lease.tokens, bytearray)
    busy.lease.tokens[3] = 77


def _lease_anchored_elsewhere(busy: Busy) -> None:
    busy.lease.published -= 4
    busy.cache.pool.share(busy.lease.pages[2:3])


def _lease_computed_too_much(busy: Busy) -> None:
    busy.lease.computed = 17


def _lease_computed_too_little(busy: Busy) -> None:
    busy.lease.computed = busy.lease.published - 1


def _pages_miscounted(busy: Busy) -> None:
    busy.cache.tree.pages += 1


def _cold_pages_miscounted(busy: Busy) -> None:
    busy.cache.tree.evictable -= 1


def _nodes_miscounted(busy: Busy) -> None:
    busy.cache.tree.nodes += 1


def _tenant_miscounted(busy: Busy) -> None:
    busy.lease.account.used += 1


def _pages_booked_to_another_tenant(busy: Busy) -> None:
    other = busy.cache.accounts.of("other")
    busy.lease.account.used -= 1
    other.used += 1


def _cold_pages_of_a_tenant_miscounted(busy: Busy) -> None:
    busy.lease.account.cold -= 1


def _leases_of_a_tenant_miscounted(busy: Busy) -> None:
    busy.lease.account.leases -= 1


def _node_on_another_account(busy: Busy) -> None:
    busy.child(0).account = busy.cache.accounts.of("other")


def _lease_on_a_closed_account(busy: Busy) -> None:
    busy.lease.account = Accounts(9).of(OPEN)


def _root_on_a_closed_account(busy: Busy) -> None:
    for node in walk(busy.root):
        node.account = Accounts(9).of(OPEN)


def _account_changed_behind_its_rank(busy: Busy) -> None:
    busy.cache.accounts.spare(None)
    busy.lease.account.quota = Quota(1000, 1000, 1.0)


def _account_ranked_as_another(busy: Busy) -> None:
    busy.cache.accounts.spare(None)
    busy.lease.account.rank = (-1, False, 0.0, 0)


def _copy_without_its_pin(busy: Busy) -> None:
    ((_, source),) = busy.reader.pending
    assert source is not None
    busy.cache.tree.unpin(source, now=0)


def _copy_without_its_hold(busy: Busy) -> None:
    ((copy, _),) = busy.writer.pending
    busy.cache.pool.give_back([copy.source])


def _copy_into_a_page_of_another(busy: Busy) -> None:
    ((copy, source),) = busy.reader.pending
    busy.reader.pending[0] = (PageCopy(copy.source, busy.trunk.pages[0], copy.tokens), source)


def _copy_from_a_page_that_is_not_pinned(busy: Busy) -> None:
    ((copy, source),) = busy.reader.pending
    other = busy.child(2).pages[0]
    busy.reader.pending[0] = (PageCopy(other, copy.target, copy.tokens), source)


def _kept_pages_miscounted(busy: Busy) -> None:
    busy.lease.account.kept.move(1, 0, term(0, 60))


def _kept_pages_not_counted(busy: Busy) -> None:
    busy.kept.kept = term(0, 90)


def _kept_pages_of_all_miscounted(busy: Busy) -> None:
    busy.lease.account.kept._total += 1


def _kept_for_longer_than_what_is_above(busy: Busy) -> None:
    (leaf,) = busy.kept.children or ()
    order(busy.cache).remove(leaf)
    leaf.kept = term(0, 90)
    order(busy.cache).add(leaf)


def _kept_in_place(busy: Busy) -> None:
    (leaf,) = busy.kept.children or ()
    leaf.kept = busy.kept.kept


def _session_that_ends_outside(busy: Busy) -> None:
    sessions = busy.lease.account.sessions
    assert sessions is not None
    sessions.put((b"", "x"), busy.purged.anchor, 0)


def _session_that_is_longer_than_what_it_ends_in(busy: Busy) -> None:
    sessions = busy.lease.account.sessions
    assert sessions is not None
    next(iter(sessions._ends.values())).length += 1000


def _session_forgotten_where_it_ends(busy: Busy) -> None:
    sessions = busy.lease.account.sessions
    assert sessions is not None
    sessions._at.clear()


FAULTS: list[tuple[Callable[[Busy], None], str]] = [
    (_page_in_two_nodes, "stands 2 times"),
    (_page_in_tree_and_free, "is in 2 places"),
    (_page_in_tree_and_private, "other holders"),
    (_page_free_twice, "is in 2 places"),
    (_page_free_and_waiting, "is in 2 places"),
    (_page_leaked, "is in 0 places"),
    (_page_leaked_by_a_lease, "holders"),
    (_page_held_by_nobody, "has 0 holders"),
    (_holder_forgotten, "holders"),
    (_scratch_page_free, "scratch"),
    (_scratch_page_leased, "scratch"),
    (_page_waiting_for_no_step, "waits for a step"),
    (_too_many_pins, "pins, but"),
    (_too_few_pins, "pins, but"),
    (_pins_on_a_cold_leaf, "pins, but"),
    (_pins_on_the_root, "pins, but"),
    (_pins_of_what_was_purged, "pins, but"),
    (_cold_leaf_missing_from_the_order, "not the set"),
    (_pinned_leaf_in_the_order, "not the set"),
    (_inner_node_in_the_order, "not the set"),
    (_leaf_twice_in_the_order, "twice"),
    (_leaf_aged_in_place, "wrong place"),
    (_key_list_stale, "lost touch"),
    (_key_list_short, "differ in number"),
    (_children_out_of_order, "out of order"),
    (_two_children_with_one_block, "same block|out of order"),
    (_empty_children, "empty list"),
    (_keys_without_children, "keys or children only"),
    (_wrong_parent, "another parent"),
    (_wrong_depth, "miscounts its depth"),
    (_key_without_page, "key and pages differ|miscounts its depth"),
    (_page_without_key, "key and pages differ"),
    (_open_leaf_with_a_child, "open leaf is not a leaf"),
    (_chain_unjoined, "not joined"),
    (_attached_node_marked_as_cut_off, "says that it was cut off"),
    (_empty_root, "empty root"),
    (_root_under_another_name, "another namespace"),
    (_root_with_an_edge, "not a root"),
    (_released_lease_on_the_books, "released lease"),
    (_lease_off_the_books, "holders"),
    (_lease_row_differs, "row differs"),
    (_lease_tokens_differ, "tokens differ"),
    (_lease_anchored_elsewhere, "other holders|not anchored"),
    (_lease_computed_too_much, "more than it has pages"),
    (_lease_computed_too_little, "more than it has pages"),
    (_pages_miscounted, "pages and has"),
    (_cold_pages_miscounted, "cold pages"),
    (_nodes_miscounted, "nodes and has"),
    (_tenant_miscounted, "pages and has"),
    (_pages_booked_to_another_tenant, "pages and has"),
    (_cold_pages_of_a_tenant_miscounted, "cold pages and has"),
    (_leases_of_a_tenant_miscounted, "leases and has"),
    (_node_on_another_account, "not the set|another account"),
    (_lease_on_a_closed_account, "(pages|leases) and has"),
    (_root_on_a_closed_account, "not the set|no open account|another account"),
    (_account_changed_behind_its_rank, "not ranked"),
    (_account_ranked_as_another, "not ranked"),
    (_copy_without_its_pin, "pins, but"),
    (_copy_without_its_hold, "holders"),
    (_copy_into_a_page_of_another, "into a page of another"),
    (_copy_from_a_page_that_is_not_pinned, "not pinned"),
    (_kept_pages_miscounted, "kept pages and has"),
    (_kept_pages_not_counted, "kept pages and has|does not count"),
    (_kept_pages_of_all_miscounted, "miscounts what it keeps"),
    (_kept_for_longer_than_what_is_above, "longer than what is above"),
    (_kept_in_place, "wrong place|not joined"),
    (_session_that_ends_outside, "outside the tree"),
    (_session_forgotten_where_it_ends, "sessions of .* are miscounted"),
    (_session_that_is_longer_than_what_it_ends_in, "sessions of .* are miscounted"),
]


@pytest.mark.parametrize(("plant", "message"), FAULTS, ids=[f[0].__name__[1:] for f in FAULTS])
def test_a_planted_fault_is_found(plant: Callable[[Busy], None], message: str) -> None:
    busy = Busy()
    plant(busy)
    with pytest.raises(CacheError, match=message):
        busy.cache.check()


def test_a_busy_cache_without_a_fault_passes() -> None:
    Busy()


def test_an_empty_cache_passes() -> None:
    PrefixCache(1, 16).check()


def test_a_lease_of_a_root_that_is_gone_is_found() -> None:
    cache = PrefixCache(8, 4)
    cache.acquire(pack(range(4)), b"")
    cache.check()
    cache.tree.roots.clear()
    with pytest.raises(CacheError):
        cache.check()


def test_private_pages_at_different_places_of_two_rows_are_found() -> None:
    cache = PrefixCache(16, 4)
    one = cache.acquire(pack(range(12)), b"")
    two = cache.acquire(pack(range(50, 62)), b"")
    assert one.extend(12)
    assert two.extend(4)
    _steal(cache, one, two)
    with pytest.raises(CacheError):
        cache.check()


def _steal(cache: PrefixCache, one: Lease, two: Lease) -> None:
    page = array("i", [one.pages[2]])
    cache.pool.share(page)
    two.pages.extend(page)
