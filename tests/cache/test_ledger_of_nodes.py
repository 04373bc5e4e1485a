"""``check()`` fails on one planted fault of each kind in nodes, their order, and accounts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixserve.cache.node import walk
from radixserve.cache.quota import Accounts, Quota
from radixserve.cache.terms import term
from radixserve.tenant import OPEN
from radixserve.tokens import pack
from tests.cache.busy import Busy, check_finds
from tests.cache.serving import order


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


def _children_out_of_order(busy: Busy) -> None:
    assert busy.trunk.children
    busy.trunk.children.reverse()


def _two_children_with_one_block(busy: Busy) -> None:
    first, second = busy.child(0), busy.child(1)
    second.key = first.key[:16] + second.key[16:]


def _empty_children(busy: Busy) -> None:
    leaf = busy.child(0)
    assert leaf.children is None
    leaf.children = []


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
    (_children_out_of_order, "out of order"),
    (_two_children_with_one_block, "same block|out of order"),
    (_empty_children, "empty list"),
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
    check_finds(plant, message)
