"""Keeping prefixes for a time: a rank in the eviction order, within a budget, and never a pin.

::

    tokens  0 ... system prompt ]...... conversation ]...... answer ....
    kept    [ for an hour       ][ for five minutes  ][ by age alone ]

A node's ``kept`` is a term (see ``radixserve.cache.terms``), 0, or says when somebody comes back.
Going up it never falls, since what is above a kept prefix is part of it. Nobody watches the clock:
what has run out is found to have, once somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from radixserve.cache.node import Node, Root, upper
from radixserve.cache.sessions import End, Sessions
from radixserve.cache.terms import DONE, Kept, Mark, Reason, again, end_of, term
from radixserve.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from radixserve.cache.lease import Lease
    from radixserve.cache.tree import RadixTree


def keep_marks(tree: RadixTree, lease: Lease, marks: Iterable[Mark], now: int) -> Kept | None:
    """Keep what ``lease``, which is about to be released, has published, up to each mark.

    A mark is exact: the block that holds its last token is kept, the one after it is not. What the
    budget has no room for is kept as far as it has, from the front. None where nothing is asked.
    O(edges + length of keys that are split), for each mark.
    """
    asked = kept = 0
    refused: list[Reason] = []
    for mark in sorted(marks, key=lambda each: (each.tokens is None, each.tokens or 0)):
        tokens = lease.computed if mark.tokens is None else mark.tokens
        got, short = 0, False
        if not lease.private:
            got, short = _keep(tree, lease, tokens, term(now, mark.seconds), now)
        if got < tokens:
            refused.append(_why(lease, tokens, short=short))
        asked, kept = asked + 1, max(kept, got)
    if not asked:
        return None
    if refused:
        tree.accounts.keeps.refuse(refused[0])
    return Kept("granted" if not refused else "partial" if kept else "refused", kept)


def _why(lease: Lease, tokens: int, *, short: bool) -> Reason:
    """Why not all of the first ``tokens`` tokens are kept; ``short`` is whether there was no room
    for them."""
    if lease.private:
        return "uncached"
    return "budget" if short else "unfinished" if tokens > lease.computed else "shared"


def _keep(tree: RadixTree, lease: Lease, tokens: int, kept: int, now: int) -> tuple[int, bool]:
    """Keep the first ``tokens`` tokens, and return how many of them are, and whether the budget
    had no room for the others."""
    size = tree.page_size
    tokens = min(tokens, lease.computed)
    open_block = tokens > lease.published and lease.sole_open_block
    end = min(-(-tokens // size) * size, lease.published)
    at = node_at(tree, lease.anchor, end) if end else None
    account, missing = lease.account, int(open_block)
    if at is not None and at.account is account:  # what is public is kept at nobody's cost
        missing += _not_kept(at, now)
    short = missing - max(0, account.quota.keep - account.kept.total(now))
    if short > 0:
        end -= (short - open_block) * size
        open_block = False
        whole, at = at, node_at(tree, lease.anchor, end) if end else None
        if whole is not None:
            tree.join(whole)
    if at is not None:
        raise_to(tree, at, kept)
    if open_block:
        lease.open_kept = max(lease.open_kept, kept)
    return tokens if open_block else min(tokens, end), short > 0


def node_at(tree: RadixTree, node: Node, end: int) -> Node:
    """The node on the path to ``node`` that ends at token ``end``, where blocks meet."""
    while (above := upper(node)) is not None and above.end >= end:
        node = above
    beyond = (node.end - end) * TOKEN_BYTES
    return node if beyond <= 0 else tree.split(node, len(node.key) - beyond)


def _not_kept(node: Node, now: int) -> int:
    """Pages of ``node``, and of what is above it on the same account, that are not kept."""
    pages = 0
    at: Node | None = node
    while at is not None and end_of(at.kept) <= now:
        pages += len(at.pages)
        at = at.parent
    return pages


def raise_to(tree: RadixTree, node: Node, kept: int) -> None:
    """``node``, which is pinned, and what is above it are kept at least as ``kept`` says.
    O(nodes that are kept for longer now)."""
    at: Node | None = node
    while at is not None and at.parent is not None and at.kept < kept:
        above = at.parent
        _set(at, kept)
        tree.join(at)
        at = above
    if at is not None:
        tree.join(at)


def refresh(tree: RadixTree, node: Node, now: int) -> bool:
    """The path to ``node``, which is pinned, is used: what of it is kept is so from now on, and
    whoever was awaited, or was not, has come back. What was kept for too long says so
    until it goes, as what is below it may. Returns whether anything is kept. O(edges)."""
    least, hit = 0, False
    at: Node | None = node
    while at is not None:
        above = upper(at)
        if at.kept < 0:
            _set(at, 0)
        elif end_of(at.kept) > now:
            hit = True
            least = max(least, again(at.kept, now))
            _set(at, least)
        if isinstance(at, Root):
            least = 0  # nobody's time goes on into what is public
        else:
            tree.join(at)
        at = above
    return hit


def keep_first_block(tree: RadixTree, leaf: Node, kept: int) -> None:
    """Keep the first block of the unpinned ``leaf``. O(length of its key)."""
    tree.pin(leaf)
    first = leaf.start + tree.page_size
    raise_to(tree, leaf if leaf.end <= first else node_at(tree, leaf, first), kept)
    tree.unpin(leaf, now=0)


def let_go(tree: RadixTree, sessions: Sessions, gone: End) -> int:
    """Nobody comes back for what ended at ``gone``: what of the path nobody else holds, continues
    or ends at goes before all else. Returns how many pages that are. As ``_put_back``.

    Neither do the first ``gone.shared`` tokens, which were there before, nor what is kept for
    longer than the end of what is kept: others come back for that. What stays for the sake of those
    who go on from it is theirs to let go of later, and if it was ``owned`` also theirs to keep.
    """
    at: Node | None = gone.node
    while at is not None and at.kept <= 0:
        at = at.parent
    if gone.owned:
        held = sessions.last_before(gone)
        gone.shared = -(-held // tree.page_size) * tree.page_size
    return _put_back(tree, sessions, gone, DONE, kept=0 if at is None else at.kept)


def await_return(tree: RadixTree, lease: Lease, rank: int) -> None:
    """Somebody goes on from ``lease``, which was a turn of a conversation and is released, when
    ``rank`` says. O(edges + children)."""
    sessions = lease.account.sessions
    if sessions is None or lease.turn is None:
        return
    name = lease.namespace, lease.turn[0].session
    if name in sessions:
        _put_back(tree, sessions, sessions[name], rank)
    if not lease.turn[0].session:
        sessions.pop(name)


def _put_back(tree: RadixTree, sessions: Sessions, turn: End, rank: int, *, kept: int = 0) -> int:
    """The path to ``turn`` is to go as ``rank``, below 0, says, as far as nobody else holds it or
    is awaited sooner, behind what was there before it. Where nobody is awaited at all, nothing else
    that has a name may end there. Returns how many pages that are. O(edges + their children +
    names).

    What is kept for longer than ``kept`` says, is so still.
    """
    pages, size = 0, tree.page_size
    shared, whole = turn.shared, -(-turn.tokens // size) * size
    if isinstance(turn.node, Root) or whole <= shared:
        return 0  # all that it had is gone
    end = node_at(tree, turn.node, whole)
    seam = node_at(tree, end, shared) if shared else None
    at: Node | None = end
    while at is not None and at.parent is not None and at.attached and not at.pins:
        others = any(child.kept > rank for child in at.children or ())
        others = others or (rank == DONE and sessions.any_at(at))
        if others or at.end <= shared or (at.kept > kept and end_of(at.kept) > tree.accounts.time):
            break
        above = at.parent
        if at.children is None:
            at.account.order.remove(at)
        pages += len(at.pages)
        _set(at, rank)
        if at.children is None:
            at.account.order.add(at)
        tree.join(at)
        at = above
    if at is not None and rank == DONE and at.end > shared:
        sessions.inherit(at, shared)
    if at is not None and rank == DONE and turn.owned:
        _leave_to_others(tree, at, shared, kept)
    elif at is end:
        tree.join(end)
    if seam is not None:
        tree.join(seam)
    return pages


def _leave_to_others(tree: RadixTree, node: Node, shared: int, kept: int) -> None:
    """What of the path to ``node``, behind ``shared`` tokens, is kept no longer than ``kept`` says,
    is so from now on as those say who go on from it. O(edges + their children)."""
    at: Node | None = node
    while at is not None and at.parent is not None and at.attached:
        if at.end <= shared or not 0 < at.kept <= kept:
            break
        above = at.parent
        _set(at, max([0, *(child.kept for child in at.children or ())]))
        tree.join(at)
        at = above
    if at is not None:
        tree.join(at)


def forget(node: Node) -> None:
    """``node`` is cut off: whatever was said of it is over. O(log terms + its sessions)."""
    _set(node, 0)
    move_sessions(node, None)


def move_sessions(node: Node, to: Node | None) -> None:
    """``node`` is gone: what ended there ends in ``to``, or nowhere. O(its sessions)."""
    if node.account.sessions is not None:
        node.account.sessions.move(node, to)


def split_sessions(node: Node, upper: Node) -> None:
    """``upper`` is the part that a split took off ``node``. O(its sessions)."""
    if node.account.sessions is not None:
        node.account.sessions.split(node, upper)


def shorten_sessions(leaf: Node) -> None:
    """``leaf`` has lost its end. O(its sessions)."""
    if leaf.account.sessions is not None:
        leaf.account.sessions.shorten(leaf)


def _set(node: Node, kept: int) -> None:
    if kept != node.kept:
        node.account.kept.move(len(node.pages), node.kept, kept)
        node.kept = kept
