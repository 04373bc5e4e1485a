"""A random life of the cache beside a simulated KV memory that knows what belongs in every slot."""

from __future__ import annotations

import random
from array import array
from collections import Counter

from radixserve.cache.node import walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.terms import Keeping, Mark
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import pack, unpack
from tests.cache.memory import Memory
from tests.cache.prompts import Prompts
from tests.cache.rules import Rules
from tests.cache.steps import Sequence, Step, Work

EPISODE = 500
TENANTS = {b"": OPEN, b"a": "a", b"ab": "a", b"b": "b"}
"""By namespace: a tenant may have several, one a salt."""
NAMESPACES = tuple(TENANTS)
SHARES = (0.0, 0.1, 0.3, 0.5)
SESSIONS = ("s", "t")
TURNS = tuple("abcd")


class Simulation:
    """One cache, its KV memory, and everybody who uses it."""

    def __init__(self, rng: random.Random, page_size: int, num_pages: int):
        self.rng = rng
        self.size = page_size
        self.seconds = 0.0
        self.cache = PrefixCache(num_pages, page_size, adaptive=page_size < 4)
        self.seen: Counter[str] = Counter()
        self.rules = Rules(self.cache, self.seen)
        self.memory = Memory(self.rules, page_size, num_pages)
        self.steps = self.memory.steps
        self.sequences: list[Sequence] = []
        self.prompts = Prompts(rng, page_size)
        if rng.random() < 0.7:
            self.set_terms()

    def act(self) -> None:
        """One random operation."""
        operations = (
            (self.acquire, 24),
            (self.plan, 30),
            (self.end_step, 26),
            (self.extend, 6),
            (self.fork, 5),
            (self.release, 8),
            (self.evict, 4),
            (self.purge, 0.4),
            (self.reset, 0.1),
            (self.reset_tenant, 0.1),
            (self.set_terms, 0.2),
            (self.set_public, 0.5),
            (self.let_time_pass, 3),
            (self.end_session, 6),
        )
        names, weights = zip(*operations, strict=True)
        self.rng.choices(names, weights)[0]()

    # The operations

    def acquire(self) -> None:
        if len(self.sequences) >= 6:
            self.release()
            return
        rules = self.rules
        namespace = self.rng.choice(NAMESPACES)
        prompt = self.prompts.draw()
        tokens = bytearray(pack(prompt))
        limit = self.rng.randrange(len(prompt) + 2) if self.rng.random() < 0.1 else None
        expected = rules.longest(namespace, prompt, limit)
        before = rules.shape()
        peeked = self.cache.peek(tokens, namespace, limit=limit)
        assert rules.shape() == before, "peek changes something"
        assert peeked.tokens == expected, f"peek says {peeked}, {expected} are there"
        ids = self.cache.block_ids(tokens, namespace, limit=limit)
        assert len(ids) * self.size == peeked.blocks

        room = self.rng.randrange(2 * len(prompt)) if self.rng.random() < 0.5 else 0
        tenant = TENANTS[namespace]
        fair = rules.entitled(tenant)
        available = self.cache.available_to(tenant)
        lease = self.cache.reserve(tokens, namespace, room, tenant=tenant, limit=limit)
        if lease is None:
            assert room > 0, "a lease without pages was refused"
            assert self.steps or rules.shape() == before, "a refusal changes something"
            needed = -(-room // self.size) - peeked.blocks // self.size
            if not self.steps and not self.cache.leases:
                assert -(-room // self.size) >= self.cache.pool.num_pages, "what fits was refused"
            self.seen["refused"] += 1
            self.seen["refused for a guarantee"] += needed <= self.cache.available
            return
        rules.expect_guaranteed(tenant, fair)
        self.seen["guarantees broken"] += len(lease.pages) - peeked.blocks // self.size > available
        assert len(lease.pages) * self.size >= room, "a lease has less room than was asked for"
        if lease.reused != expected:
            assert lease.reused == peeked.blocks, "a match is shorter than what is there"
            if room == 0:
                assert self.cache.pool.free == 0, "a page was free for a copy"
                assert len(rules.cold()) <= 1 or rules.promised(), "a page was cold for a copy"
            self.seen["copies without a page"] += 1
        assert lease.published == peeked.blocks
        assert lease.computed == lease.reused
        identities, shared = self.memory.identities(namespace, prompt), rules.public_head(prompt)
        self._begin(Sequence(namespace, tokens, lease, identities, lease.computed), len(shared))

    def extend(self) -> None:
        """Reserve pages that may never be computed."""
        sequence = self._pick()
        if sequence is not None:
            self._extend(sequence, self.rng.randrange(1, 2 * self.size + 2))

    def plan(self) -> None:
        """Plan a step of a few rows; up to three steps are in flight."""
        if len(self.steps) >= 3:
            self.end_step()
            return
        self._wait((0.01, 0.2, 5.0)[self.cache.now % 3])
        works = []
        for sequence in self.rng.sample(self.sequences, min(3, len(self.sequences))):
            lease = sequence.lease
            if lease.released:
                continue
            ahead = sequence.planned - lease.computed
            left = len(sequence.identities) - sequence.planned
            count = min(left, self.rng.randrange(1, 3 * self.size + 2))
            if count < 1 or not self._extend(sequence, ahead + count):
                if count > 0 and not self.steps:
                    self._let_go(self.rng.choice(self.sequences))
                    self.seen["preemptions"] += 1
                continue
            start, sequence.planned = sequence.planned, sequence.planned + count
            works.append(Work(sequence, array("i", lease.pages), start, sequence.planned))
        works = [work for work in works if not work.sequence.lease.released]
        if not works:
            return
        copies = [
            copy
            for work in works
            if not work.sequence.in_flight
            for copy in work.sequence.lease.copies
        ]
        step = Step(self.cache.begin_step(), copies, works, self.rng.random() < 0.05)
        for work in works:
            work.sequence.in_flight += 1
            step.touched.update(work.pages[: -(-work.end // self.size)])
        for copy in copies:
            step.touched.update((copy.source, copy.target))
        self.steps.append(step)
        self.seen["three steps in flight"] += len(self.steps) == 3
        if self.rng.random() < 0.5:
            self.memory.run(step)

    def end_step(self) -> None:
        """The oldest step commits, or fails and takes its requests with it."""
        if not self.steps:
            return
        step = self.steps.popleft()
        self.memory.run(step)
        self.seen["steps that failed"] += step.fails
        for work in step.works:
            sequence = work.sequence
            sequence.in_flight -= 1
            lease = sequence.lease
            if lease.released:
                continue
            if step.fails:
                self._let_go(sequence)
                continue
            before = lease.published
            own = lease.pages[before // self.size :]
            lease.copied()
            lease.publish(work.end)
            whole = work.end // self.size - before // self.size
            if lease.pages[before // self.size :][:whole] != own[:whole]:
                self.seen["adopted"] += 1
            self.memory.verify(lease.pages, sequence.identities, work.end)
            if work.end == len(sequence.identities) and len(sequence.identities) < 8 * self.size:
                self.memory.append(sequence, self.rng.randrange(2))
        self.cache.end_step(step.number)

    def fork(self) -> None:
        sequence = self._pick()
        if sequence is None or sequence.in_flight or sequence.lease.copies:
            return
        tokens = bytearray(sequence.tokens)
        lease = sequence.lease.fork(tokens)
        twin = Sequence(
            sequence.namespace, tokens, lease, list(sequence.identities), lease.computed
        )
        self.memory.verify(lease.pages, twin.identities, lease.computed)
        if self.rng.random() < 0.8:
            self.memory.append(twin, self.rng.randrange(2, 4))
        self.sequences.append(twin)
        self.seen["forks"] += 1

    def release(self) -> None:
        sequence = self._pick()
        if sequence is None:
            return
        self.seen["aborts in flight"] += sequence.in_flight > 0
        self.seen["aborts before copies"] += bool(sequence.lease.copies)
        self._let_go(sequence)

    def evict(self) -> None:
        cold = self.rules.cold()
        wanted = self.rng.choice((1, 1, 1, 2, self.cache.pool.num_pages))
        if wanted == 1 and cold:
            page = self.rules.first(cold).pages[-1]
            assert self.cache.evict(1) == 1
            assert self.cache.pool.holders(page) == 0, "not the coldest, deepest block was evicted"
        else:
            self.cache.evict(wanted)
        self.seen["evictions"] += 1

    def let_time_pass(self) -> None:
        self._wait(self.rng.randrange(30))

    def end_session(self) -> None:
        namespace = self.rng.choice(NAMESPACES)
        name = self.rng.choice(self.rng.choice((SESSIONS, TURNS, TURNS)))
        before = [lease.pages[:] for lease in self.cache.leases]
        pages = self.cache.end_session(TENANTS[namespace], namespace, name)
        assert before == [lease.pages for lease in self.cache.leases]
        what = "sessions" if name in SESSIONS else "turns"
        self.seen[f"{what} that ended"] += bool(pages)

    def purge(self) -> None:
        namespace = self.rng.choice(NAMESPACES)
        self.cache.purge(namespace)
        assert not self.rules.roots(namespace)
        self.seen["purges"] += 1

    def reset(self) -> None:
        self.cache.reset()
        assert not self.cache.tree.roots
        assert not self.cache.tree.hung
        self.seen["resets"] += 1

    def reset_tenant(self) -> None:
        tenant = self.rng.choice(list(TENANTS.values()))
        kept = [each for each in NAMESPACES if TENANTS[each] != tenant]
        before = [self.rules.roots(each) for each in kept]
        self.cache.reset([tenant])
        assert before == [self.rules.roots(each) for each in kept]
        assert not any(self.rules.roots(each) for each in NAMESPACES if each not in kept)
        self.seen["resets of a tenant"] += 1

    def set_terms(self) -> None:
        """Guarantees of all together are at most the whole pool."""
        rng, left = self.rng, 1.0
        terms = {}
        for tenant in ("a", "b", OPEN):
            share = min(left, rng.choice(SHARES))
            left -= share
            most = rng.choice((1.0, share, max(share, 0.2)))
            weight = rng.choice((0.5, 1.0, 4.0))
            if rng.random() < 0.8:
                keep = rng.choice((None, 0.0, 0.3, 1.0))
                terms[tenant] = Terms(weight=weight, guaranteed=share, maximum=most, keep=keep)
        self.cache.set_terms(terms)
        self.seen["terms"] += 1

    def set_public(self) -> None:
        """Heads of prompts become public, and others are no longer."""
        count = self.rng.choice((0, 1, 2, 2)) if self.prompts.last else 0
        heads = [self.rng.choice(self.prompts.last) for _ in range(count)]
        kept = [each for each in self.rules.public if self.rng.random() < 0.5]
        whole = [each[: len(each) // self.size * self.size] for each in (*kept, *heads)]
        self.rules.public = [each for each in whole if each]
        self.cache.set_public([pack(each) for each in (*kept, *heads)])
        self.seen["public prefixes"] += len(self.rules.public)

    def drain(self) -> None:
        """Everybody goes, and nothing may be left over."""
        while self.steps:
            self.end_step()
        while self.sequences:
            self._let_go(self.sequences[-1])
        cache = self.cache
        cache.check()
        self.seen["pages owed"] += cache.allocator.owed
        everything = cache.pool.num_pages - 1
        assert cache.pool.free + cache.tree.evictable == everything
        assert not any(node.pins for root in self.rules.roots() for node in walk(root))
        assert not cache.leases
        cache.evict(everything)
        cache.check()
        assert cache.pool.free == everything
        assert (cache.tree.roots, cache.tree.hung) == ({}, {})
        assert (cache.tree.nodes, cache.tree.pages) == (0, 0)

    # What the operations are made of

    def _wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.cache.time = self.seconds

    def _begin(self, sequence: Sequence, shared: int) -> None:
        """What it reuses is its own, and what it writes to is nobody's."""
        lease, memory = sequence.lease, self.memory
        memory.verify(lease.pages, sequence.identities, lease.published)
        memory.expect_untouched(lease.pages[lease.published // self.size :])
        for copy in lease.copies:
            assert copy.target == lease.pages[lease.published // self.size]
            source = sequence.identities[lease.published : lease.computed]
            assert memory.kv[copy.source][: copy.tokens] == source, "a copy has the wrong source"
            self.seen["copies"] += 1
        self.seen["reused"] += lease.reused
        self.seen["reused beyond a public prefix"] += 0 < shared < lease.reused
        self.seen["reused inside a public prefix"] += 0 < lease.reused < shared
        self.sequences.append(sequence)

    def _pick(self) -> Sequence | None:
        return self.rng.choice(self.sequences) if self.sequences else None

    def _let_go(self, sequence: Sequence) -> None:
        if self.rng.random() < 0.5 and not sequence.failed:
            self._finish(sequence)
        else:
            sequence.lease.release()
        self.sequences.remove(sequence)
        if self.rng.random() < 0.3:
            self.prompts.remember(unpack(sequence.tokens))

    def _finish(self, sequence: Sequence) -> None:
        """Keep some places of it, and find them kept."""
        rng, cache, lease = self.rng, self.cache, sequence.lease
        known = len(sequence.identities)
        places = [rng.randrange(1, known + 1) for _ in range(rng.randrange(3))]
        marks = tuple(Mark(rng.choice((None, each)), rng.randrange(1, 60)) for each in places)
        session, turn = rng.choice((*SESSIONS, "")), rng.choice((*TURNS, ""))
        tenant = lease.account
        before, room = tenant.kept.total(cache.time), tenant.quota.keep
        next_in = rng.choice((None, rng.randrange(60), rng.randrange(9000)))
        keeping = Keeping(marks, session, rng.random() < 0.1, next_in, turn, known % 5 == 0)
        kept = cache.finish(lease, keeping, lease.reused)
        if kept is None:
            assert not marks
            return
        assert tenant.kept.total(cache.time) <= max(before, room), "more is kept than may be"
        asked = max(lease.computed if each.tokens is None else each.tokens for each in marks)
        assert kept.tokens <= asked
        self.seen[f"keeping {kept.status}"] += 1

    def _extend(self, sequence: Sequence, count: int) -> bool:
        lease, pool = sequence.lease, self.cache.pool
        missing = max(0, -(-(lease.computed + count) // self.size) - len(lease.pages))
        index, filled = divmod(lease.computed, self.size)
        shared = filled > 0 and pool.holders(lease.pages[index]) > 1
        needed = missing + shared
        row = lease.pages[:]
        before = self.rules.shape()
        tenant = TENANTS[sequence.namespace]
        available = self.cache.available_to(tenant)
        fair = self.rules.entitled(tenant)
        goes = self.rules.only_page_to_go(lease.account, needed)
        if not lease.extend(count):
            assert lease.pages == row
            if not self.steps:
                assert needed > available, "pages were there, and none was given"
                assert self.rules.shape() == before, "a refusal changes something"
                if len(self.cache.leases) == 1:
                    assert needed > self.cache.available, "nobody else ran, and none was given"
                self.seen["refusals for a guarantee"] += needed <= self.cache.available
            self.seen["refusals"] += 1
            return False
        self.rules.expect_guaranteed(tenant, fair)
        self.seen["guarantees broken"] += needed > available
        assert len(lease.pages) == len(row) + missing
        changed = [page for page in lease.pages if page not in row]
        assert len(changed) == needed
        self.memory.expect_untouched(array("i", changed))
        assert goes is None or goes in changed, "another page than the first went"
        self.seen["copies on write"] += shared
        return True


def run(operations: int, seed: int, check_every: int = 1) -> Counter[str]:
    """Run ``operations`` random ones; returns how often what was met. Raises AssertionError or
    CacheError at the first fault."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for first in range(0, operations, EPISODE):
        page_size = rng.choice((1, 2, 4, 16))
        simulation = Simulation(rng, page_size, rng.choice((4, 12, 25, 41)))
        for number in range(first, min(first + EPISODE, operations)):
            simulation.act()
            if number % check_every == 0:
                simulation.cache.check()
        simulation.drain()
        seen += simulation.seen
    return seen
