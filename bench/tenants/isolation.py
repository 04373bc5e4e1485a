"""Whether one tenant ever finds what another one cached, and what keeping them apart costs::

    python -m bench.tenants.isolation [--probes 1000000] [--out bench/results]

Random tenants ask for random prompts of others, whole, cut, changed and prolonged, also behind
public prefixes and under salts that others use. Each probe has a control: the owner of the prompt
asks for the same and must find it, or the probe would show nothing.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from tqdm import tqdm

from bench.machine import machine
from radixserve.cache.namespace import Namespace, on_engine
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.tokens import TOKEN_BYTES

PAGE = 4
ROUND = 2000
"""Probes of one cache, after which another is made."""
TENANTS = 12
SALTS = (None, "", "s", "tenant-1", "\0")


@dataclass(slots=True)
class Tally:
    """What the probes found, in probes, but for the times."""

    probes: int = 0
    leaks: int = 0
    """Probes that found more than what is public."""
    shared_pages: int = 0
    """Probes whose private pages are those of another namespace."""
    controls: int = 0
    """Probes whose owner found the prompt; all of them have to."""
    public: int = 0
    """Probes that found a public prefix, as they may."""

    @property
    def sound(self) -> bool:
        """Whether nothing leaked and every control hit."""
        return not self.leaks and not self.shared_pages and self.controls == self.probes


@dataclass(slots=True)
class Prompt:
    """What one namespace has cached."""

    tenant: str
    namespace: bytes
    tokens: bytes
    public: int
    """Tokens of it that are public."""


class Round:
    """One cache, filled by all tenants, each with prompts that others have too, or nearly so."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._cache = PrefixCache(4096, PAGE)
        heads = [self._words(rng.choice((4, 8, 12))) for _ in range(2)]
        self._cache.set_public(heads)
        self._prompts: list[Prompt] = []
        for _ in range(60):
            head = rng.choice((*heads, b"", b""))
            tokens = head + self._words(rng.randrange(2, 30))
            name = f"tenant-{rng.randrange(TENANTS)}"
            namespace = _namespace(name, rng.choice(SALTS))
            public = len(self._cache.public.of(tokens)) // TOKEN_BYTES
            self._prompts.append(Prompt(name, namespace, tokens, public))
            self._serve(self._prompts[-1])
        self._cache.check()

    def probe(self, tally: Tally) -> None:
        """One stranger asks for what another namespace has, and its owner asks for the same."""
        rng, cache = self._rng, self._cache
        prompt = rng.choice(self._prompts)
        stranger = f"stranger-{rng.randrange(TENANTS)}"
        namespace = _namespace(stranger, rng.choice(SALTS))
        tokens = self._like(prompt)
        public = len(cache.public.of(tokens)) // TOKEN_BYTES
        tally.probes += 1
        found = cache.peek(tokens, namespace).tokens
        tally.leaks += found > public
        tally.public += found > 0
        if rng.random() < 0.1:
            with cache.acquire(tokens, namespace) as lease:
                tally.leaks += lease.reused > public
                with cache.acquire(prompt.tokens, prompt.namespace) as owner:
                    own = set(lease.pages[public // PAGE :])
                    tally.shared_pages += not own.isdisjoint(owner.pages)
        whole = len(prompt.tokens) // TOKEN_BYTES
        tally.controls += cache.peek(prompt.tokens, prompt.namespace).tokens == whole - 1

    def _like(self, prompt: Prompt) -> bytes:
        """``prompt``, or a part of it, or one that parts from it somewhere, or goes on."""
        rng, tokens = self._rng, prompt.tokens
        count = len(tokens) // TOKEN_BYTES
        kind = rng.random()
        if kind < 0.3:
            return tokens
        cut = rng.randrange(1, count + 1) * TOKEN_BYTES
        if kind < 0.5:
            return tokens[:cut]
        if kind < 0.75:
            return tokens[: cut - TOKEN_BYTES] + self._words(1) + tokens[cut:]
        return tokens + self._words(rng.randrange(1, 9))

    def _words(self, count: int) -> bytes:
        """Of few kinds, so that prompts meet."""
        return b"".join(self._rng.choices(_WORDS, k=count))

    def _serve(self, prompt: Prompt) -> None:
        count = len(prompt.tokens) // TOKEN_BYTES
        lease = self._cache.reserve(prompt.tokens, prompt.namespace, count, tenant=prompt.tenant)
        assert lease is not None, "the pool holds all prompts"
        with lease:
            lease.copied()
            lease.publish(count)


_WORDS = [number.to_bytes(TOKEN_BYTES, "big") for number in range(3)]


def _namespace(tenant: str, salt: str | None) -> bytes:
    return on_engine("fp8 1.0", Namespace(tenant=tenant, salt=salt).key())


def probe(count: int, seed: int = 0) -> Tally:
    """Run ``count`` probes."""
    rng = random.Random(seed)
    tally = Tally()
    with tqdm(total=count, desc="probes", unit="probe", disable=None) as bar:
        while tally.probes < count:
            round_ = Round(rng)
            many = min(ROUND, count - tally.probes)
            for _ in range(many):
                round_.probe(tally)
            bar.update(many)
    return tally


def namespace_cost(repeats: int = 2000, batch: int = 200) -> float:
    """Microseconds that making a request's namespace takes; the best of many short runs."""
    best = float("inf")
    for _ in range(repeats):
        start = perf_counter()
        for _ in range(batch):
            _namespace("tenant-17", "salt")
        best = min(best, perf_counter() - start)
    return best / batch * 1e6


def main(
    probes: Annotated[int, typer.Option(help="Random probes.")] = 1_000_000,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench/results"),
) -> None:
    """Probe; print what was found as JSON in the last line, and fail if anything leaked."""
    tally = probe(probes)
    results = {
        "machine": machine(),
        **asdict(tally),
        "sound": tally.sound,
        "namespace_us": round(namespace_cost(), 2),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "isolation.json").write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.write(json.dumps({k: v for k, v in results.items() if k != "machine"}) + "\n")
    raise typer.Exit(0 if tally.sound else 1)


if __name__ == "__main__":
    typer.run(main)
