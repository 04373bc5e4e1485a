"""A random life of the cache beside a simulated KV memory that knows what belongs in every slot.

A slot's right content is the identity of ``(namespace, tokens[:position + 1])``: that is what the
keys and values at a position depend on. Whoever reads another identity has read a wrong answer.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter, deque

from radixserve.cache.eviction import SLACK, UNUSED
from radixserve.cache.namespace import PUBLIC
from radixserve.cache.node import Node, Root, walk
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.quota import Account
from radixserve.cache.terms import DONE, Keeping, Mark, due, end_of
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import pack, unpack
from tests.cache.steps import Sequence, Step, Work

GARBAGE = -1
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
        self.kv = [[GARBAGE] * page_size for _ in range(num_pages)]
        self.sequences: list[Sequence] = []
        self.steps: deque[Step] = deque()
        self.known: dict[tuple[object, int], int] = {}
        self.prompts: list[list[int]] = []
        self.seen: Counter[str] = Counter()
        self.public: list[list[int]] = []
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
        namespace = self.rng.choice(NAMESPACES)
        prompt = self._prompt()
        tokens = bytearray(pack(prompt))
        limit = self.rng.randrange(len(prompt) + 2) if self.rng.random() < 0.1 else None
        expected = self._longest(namespace, prompt, limit)
        before = self._shape()
        peeked = self.cache.peek(tokens, namespace, limit=limit)
        assert self._shape() == before, "peek changes something"
        assert peeked.tokens == expected, f"peek says {peeked}, {expected} are there"
        ids = self.cache.block_ids(tokens, namespace, limit=limit)
        assert len(ids) * self.size == peeked.blocks

        room = self.rng.randrange(2 * len(prompt)) if self.rng.random() < 0.5 else 0
        tenant = TENANTS[namespace]
        fair = self._entitled(tenant)
        available = self.cache.available_to(tenant)
        lease = self.cache.reserve(tokens, namespace, room, tenant=tenant, limit=limit)
        if lease is None:
            assert room > 0, "a lease without pages was refused"
            assert self.steps or self._shape() == before, "a refusal changes something"
            needed = -(-room // self.size) - peeked.blocks // self.size
            if not self.steps and not self.cache.leases:
                assert -(-room // self.size) >= self.cache.pool.num_pages, "what fits was refused"
            self.seen["refused"] += 1
            self.seen["refused for a guarantee"] += needed <= self.cache.available
            return
        self._expect_guaranteed(tenant, fair)
        self.seen["guarantees broken"] += len(lease.pages) - peeked.blocks // self.size > available
        assert len(lease.pages) * self.size >= room, "a lease has less room than was asked for"
        if lease.reused != expected:
            assert lease.reused == peeked.blocks, "a match is shorter than what is there"
            if room == 0:
                assert self.cache.pool.free == 0, "a page was free for a copy"
                assert len(self._cold()) <= 1 or self._promised(), "a page was cold for a copy"
            self.seen["copies without a page"] += 1
        assert lease.published == peeked.blocks
        assert lease.computed == lease.reused
        sequence = Sequence(namespace, tokens, lease, self._identities(namespace, prompt), 0)
        sequence.planned = lease.computed
        self._verify(lease.pages, sequence.identities, lease.published)
        self._expect_untouched(lease.pages[lease.published // self.size :])
        for copy in lease.copies:
            assert copy.target == lease.pages[lease.published // self.size]
            source = sequence.identities[lease.published : lease.computed]
            assert self.kv[copy.source][: copy.tokens] == source, "a copy has the wrong source"
            self.seen["copies"] += 1
        self.seen["reused"] += lease.reused
        shared = len(self._public(prompt))
        self.seen["reused beyond a public prefix"] += 0 < shared < lease.reused
        self.seen["reused inside a public prefix"] += 0 < lease.reused < shared
        self.sequences.append(sequence)

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
            self._run_device(step)

    def end_step(self) -> None:
        """The oldest step commits, or fails and takes its requests with it."""
        if not self.steps:
            return
        step = self.steps.popleft()
        self._run_device(step)
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
            self._verify(lease.pages, sequence.identities, work.end)
            if work.end == len(sequence.identities) and len(sequence.identities) < 8 * self.size:
                self._append(sequence, self.rng.randrange(2))
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
        self._verify(lease.pages, twin.identities, lease.computed)
        if self.rng.random() < 0.8:
            self._append(twin, self.rng.randrange(2, 4))
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
        cold = self._cold()
        wanted = self.rng.choice((1, 1, 1, 2, self.cache.pool.num_pages))
        if wanted == 1 and cold:
            page = self._first(cold).pages[-1]
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
        assert not self._roots(namespace)
        self.seen["purges"] += 1

    def reset(self) -> None:
        self.cache.reset()
        assert not self.cache.tree.roots
        assert not self.cache.tree.hung
        self.seen["resets"] += 1

    def reset_tenant(self) -> None:
        tenant = self.rng.choice(list(TENANTS.values()))
        kept = [each for each in NAMESPACES if TENANTS[each] != tenant]
        before = [self._roots(each) for each in kept]
        self.cache.reset([tenant])
        assert before == [self._roots(each) for each in kept]
        assert not any(self._roots(each) for each in NAMESPACES if each not in kept)
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
        count = self.rng.choice((0, 1, 2, 2)) if self.prompts else 0
        heads = [self.rng.choice(self.prompts) for _ in range(count)]
        kept = [each for each in self.public if self.rng.random() < 0.5]
        whole = [each[: len(each) // self.size * self.size] for each in (*kept, *heads)]
        self.public = [each for each in whole if each]
        self.cache.set_public([pack(each) for each in (*kept, *heads)])
        self.seen["public prefixes"] += len(self.public)

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
        assert not any(node.pins for root in self._roots() for node in walk(root))
        assert not cache.leases
        cache.evict(everything)
        cache.check()
        assert cache.pool.free == everything
        assert (cache.tree.roots, cache.tree.hung) == ({}, {})
        assert (cache.tree.nodes, cache.tree.pages) == (0, 0)

    # What the tenants were promised

    def _entitled(self, tenant: str) -> dict[str, int]:
        """Pages of each other tenant that ``tenant`` may not bring it below."""
        return {
            each.tenant: min(each.used, each.quota.guaranteed)
            for each in self._tenants()
            if each.tenant != tenant
        }

    def _expect_guaranteed(self, tenant: str, fair: dict[str, int]) -> None:
        if len(self.cache.leases) > 1 or self.cache.pool.quarantined:
            for each in self._tenants():
                least = fair.get(each.tenant, 0)
                assert each.used >= least, f"{each.tenant!r} fell to {each.used} for {tenant!r}"

    def _promised(self) -> bool:
        return any(each.quota.guaranteed for each in self._tenants())

    def _tenants(self) -> list[Account]:
        return [each for each in self.cache.accounts if each is not self.cache.accounts.public]

    def _first(self, leaves: list[Node], asks: Account | None = None) -> Node:
        """The one that is to lose the next page, for the sake of somebody or of nobody."""
        losing = min(map(self._loses, leaves))
        return self._goes([leaf for leaf in leaves if self._loses(leaf) == losing], asks)

    def _goes(self, leaves: list[Node], asks: Account | None) -> Node:
        """Which of one account's goes."""
        clock = self.cache.allocator.clock
        others = [leaf for leaf in leaves if leaf.kept >= 0 or due(leaf.kept) + SLACK <= clock.now]
        awaited = [leaf for leaf in leaves if leaf not in others]
        last = min(awaited, key=lambda leaf: (leaf.kept, *_age(leaf)), default=None)
        kept = {leaf: leaf.kept if end_of(leaf.kept) > clock.now else 0 for leaf in others}
        other = min(others, key=lambda leaf: (kept[leaf], *_age(leaf)), default=None)
        if last is None:
            assert other is not None
            return self._passes_by(other, kept, asks)
        if other is None:
            return last
        waits = due(last.kept) - clock.now
        unused = clock.age(other.last_use) + UNUSED
        self.seen["awaited before the coldest"] += waits > unused and last.kept != DONE
        self.seen["awaited behind the coldest"] += waits <= unused
        return last if kept[other] or waits > unused else self._passes_by(other, kept, asks)

    def _passes_by(self, other: Node, kept: dict[Node, int], asks: Account | None) -> Node:
        """``other`` goes by age; if it is young and somebody asks, a newcomer goes for it."""
        admission, clock = self.cache.allocator.admission, self.cache.allocator.clock
        if admission is None or asks is None or kept[other] > 0:
            return other
        old = clock.last_before(admission.reuse.patience)
        newcomers = [leaf for leaf in kept if leaf.newcomer and not kept[leaf]]
        if other.last_use <= old or not newcomers:
            return other
        self.seen["newcomers before the young"] += 1
        return min(newcomers, key=_age)

    def _loses(self, leaf: Node) -> tuple[object, ...]:
        """By whom the next page is to be lost when nobody in particular asks."""
        account = leaf.account
        quota = account.quota
        place: tuple[object, ...] = (1, -account.cold, account.serial)
        if account.used > quota.guaranteed:
            beyond = min(0, quota.maximum - account.used)
            excess = (account.used - quota.guaranteed) / quota.weight
            place = (0, beyond, not account.idle, -(excess // 1), account.serial)
        return place

    # What the operations are made of

    def _wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.cache.time = self.seconds

    def _prompt(self) -> list[int]:
        """Repeats, extends, cuts or changes an earlier prompt, so that most share something."""
        rng, size = self.rng, self.size
        prompt: list[int] = []
        if self.prompts and rng.random() < 0.9:
            prompt = list(rng.choice(self.prompts))
            kind = rng.random()
            if kind < 0.35:
                prompt = prompt[: rng.randrange(len(prompt)) + 1]
            if 0.2 < kind < 0.45:
                prompt[rng.randrange(len(prompt))] = rng.randrange(4)
            if kind > 0.65:
                prompt += rng.choices(range(3), k=rng.randrange(1, 2 * size + 2))
        prompt = prompt[: 6 * size] or rng.choices(range(3), k=rng.randrange(1, 4 * size + 2))
        if len(self.prompts) < 12:
            self.prompts.append(prompt)
        else:
            self.prompts[rng.randrange(12)] = prompt
        return prompt

    def _identities(self, namespace: bytes, tokens: list[int]) -> list[int]:
        identities: list[int] = []
        shared = len(self._public(tokens))
        last: object = PUBLIC if shared else namespace
        for position, token in enumerate(tokens):
            if shared and position == shared:
                last = self.known.setdefault((last, namespace), len(self.known))
            last = self.known.setdefault((last, token), len(self.known))
            identities.append(last)
        return identities

    def _append(self, sequence: Sequence, token: int) -> None:
        last = sequence.identities[-1]
        if len(sequence.tokens) == len(sequence.lease.public):
            last = self.known.setdefault((last, sequence.namespace), len(self.known))
        sequence.identities.append(self.known.setdefault((last, token), len(self.known)))
        sequence.tokens.extend(pack([token]))

    def _pick(self) -> Sequence | None:
        return self.rng.choice(self.sequences) if self.sequences else None

    def _let_go(self, sequence: Sequence) -> None:
        if self.rng.random() < 0.5 and not sequence.failed:
            self._finish(sequence)
        else:
            sequence.lease.release()
        self.sequences.remove(sequence)
        if self.rng.random() < 0.3:
            self.prompts.append(unpack(sequence.tokens))
            self.prompts.pop(0)

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
        keeping = Keeping(marks, session, rng.random() < 0.1, next_in, turn)
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
        before = self._shape()
        tenant = TENANTS[sequence.namespace]
        available = self.cache.available_to(tenant)
        fair = self._entitled(tenant)
        goes = self._expected_to_go(lease.account, needed)
        if not lease.extend(count):
            assert lease.pages == row
            if not self.steps:
                assert needed > available, "pages were there, and none was given"
                assert self._shape() == before, "a refusal changes something"
                if len(self.cache.leases) == 1:
                    assert needed > self.cache.available, "nobody else ran, and none was given"
                self.seen["refusals for a guarantee"] += needed <= self.cache.available
            self.seen["refusals"] += 1
            return False
        self._expect_guaranteed(tenant, fair)
        self.seen["guarantees broken"] += needed > available
        assert len(lease.pages) == len(row) + missing
        changed = [page for page in lease.pages if page not in row]
        assert len(changed) == needed
        self._expect_untouched(array("i", changed))
        assert goes is None or goes in changed, "another page than the first went"
        self.seen["copies on write"] += shared
        return True

    def _expected_to_go(self, account: Account, needed: int) -> int | None:
        """The only page that has to go for ``needed`` ones, if that is plain to see."""
        cache = self.cache
        if needed != cache.pool.free + 1 or account.used + needed > account.quota.maximum:
            return None
        cold = self._cold()
        leaves = [leaf for leaf in cold if not self._loses(leaf)[0]]
        leaves = leaves or [leaf for leaf in cold if leaf.account is account]
        if not leaves:
            return None  # there is none but what is guaranteed to others
        self.seen["the first page went"] += 1
        return self._first(leaves, account).pages[-1]

    def _expect_untouched(self, pages: array[int]) -> None:
        assert 0 not in pages, "the scratch page was handed out"
        for step in self.steps:
            both = step.touched.intersection(pages)
            assert not both, f"step {step.number} is in flight and uses {both}"
        self.seen["pages handed out in flight"] += len(pages) if self.steps else 0

    def _run_device(self, step: Step) -> None:
        """The device runs steps in order; each reads all that came before what it writes."""
        for earlier in self.steps:
            if earlier.number < step.number:
                self._run_device(earlier)
        if step.ran:
            return
        step.ran = True
        for copy in step.copies:
            self.kv[copy.target][: copy.tokens] = self.kv[copy.source][: copy.tokens]
        for work in step.works:
            if work.sequence.failed:
                continue
            work.sequence.failed = step.fails
            identities = work.sequence.identities
            self._verify(work.pages, identities, work.start)
            for position in range(work.start, work.end):
                block, slot = divmod(position, self.size)
                value = GARBAGE if step.fails else identities[position]
                self.kv[work.pages[block]][slot] = value

    def _verify(self, pages: array[int], identities: list[int], computed: int) -> None:
        kv = self.kv
        content = [kv[page] for page in pages[: -(-computed // self.size)]]
        flat = [value for page in content for value in page][:computed]
        assert flat == identities[:computed], "a sequence reads KV that is not its own"

    def _longest(self, namespace: bytes, prompt: list[int], limit: int | None) -> int:
        """The longest common head with any path from the root, found by walking all of them."""
        most = len(prompt) - 1 if limit is None else max(0, min(limit, len(prompt) - 1))
        tree = self.cache.tree
        public = self._public(prompt)
        if not public:
            return self._along(tree.roots.get(namespace), [], prompt, most)
        shared = self._along(tree.roots.get(PUBLIC), [], prompt, min(most, len(public)))
        if shared < len(public):
            return shared
        return max(
            shared, self._along(tree.hung.get((namespace, pack(public))), public, prompt, most)
        )

    def _along(self, root: Node | None, above: list[int], prompt: list[int], most: int) -> int:
        best = 0
        stack: list[tuple[Node, list[int]]] = [(root, above)] if root is not None else []
        while stack:
            node, path = stack.pop()
            path = path + unpack(node.key)
            common = 0
            while common < min(len(path), most) and path[common] == prompt[common]:
                common += 1
            best = max(best, common)
            stack.extend((child, path) for child in node.children or ())
        return best

    def _cold(self) -> list[Node]:
        """The leaves that may be evicted now, by the rules and not by the order."""
        return [
            node
            for root in self._roots()
            for node in walk(root)
            if not node.children and not node.pins and node is not root
            if not self.cache.tree.hanging(node)
            if node.last_use <= self.cache.pool.ended
        ]

    def _public(self, tokens: list[int]) -> list[int]:
        return max((p for p in self.public if tokens[: len(p)] == p), key=len, default=[])

    def _roots(self, namespace: bytes | None = None) -> list[Root]:
        tree = self.cache.tree
        roots = [*tree.roots.values(), *tree.hung.values()]
        return [each for each in roots if namespace in (None, each.namespace)]

    def _orders(self) -> list[list[Node]]:
        orders = [each.order.leaves() for each in self.cache.accounts]
        return [leaves for leaves in orders if leaves]

    def _shape(self) -> tuple[object, ...]:
        """All that a refusal or a peek must leave as it was."""
        nodes = [
            (
                node.end,
                bytes(node.key),
                tuple(node.pages),
                node.pins,
                node.last_use,
                node.hits,
                node.kept,
            )
            for root in self._roots()
            for node in walk(root)
        ]
        pool = self.cache.pool
        return nodes, pool.free, pool.quarantined, self._orders(), len(self.known)


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


def _age(leaf: Node) -> tuple[int, int, int]:
    return leaf.last_use, -leaf.end, leaf.serial
