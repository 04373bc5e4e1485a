"""What an operator says of tenants reaches the cache, and what tenants use comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from radixserve.engine.core import EngineCore
from radixserve.engine.loop import WHOLE_EVERY
from radixserve.engine.messages import Add, GenerationRequest, SetPublic, SetTenants, StepNews
from radixserve.errors import LostError
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tenant import Terms
from radixserve.tokens import pack
from tests.engine.looped import looped
from tests.engine.saying import PROMPT, engine
from tests.engine.simulated import collect
from tests.engine.supervised import ask, back, running


def add(core: EngineCore, tenant: str, *, tokens: int = 12) -> None:
    core.add(request(tenant, tokens))


def request(tenant: str, tokens: int = 12) -> GenerationRequest:
    return GenerationRequest(
        id=f"of {tenant}",
        tokens=pack(PROMPT),
        sampling=SamplingParams(max_tokens=tokens, temperature=0.0),
        namespace=tenant.encode(),
        tenant=tenant,
    )


def answer(core: EngineCore, tenant: str) -> int:
    """Answer a request of ``tenant``; returns the tokens that it reused."""
    add(core, tenant)
    while not core.idle:
        deltas = core.step()
    core.cache.check()
    return deltas[-1].usage.cached_tokens


def test_a_public_prefix_is_reused_by_all_tenants_and_nothing_else():
    core = engine()
    core.set_public([pack(PROMPT[:22])])
    assert answer(core, "a") == 0
    assert answer(core, "b") == 20
    assert answer(core, "b") == 40
    assert core.stats().public_pages == 5


def test_a_public_prefix_is_kept_apart_by_the_format_of_kv():
    core = engine()
    core.runner.info = replace(core.runner.info, kv_format="fp8 1")
    core.set_public([pack(PROMPT[:22])])
    assert (answer(core, "a"), answer(core, "b")) == (0, 20)
    [root] = core.cache.tree.roots
    assert b"fp8 1" in root


def test_an_engine_that_begins_anew_remembers_what_is_public(monkeypatch: pytest.MonkeyPatch):
    core = engine()
    core.set_public([pack(PROMPT[:22])])
    assert answer(core, "a") == 0
    evicted = core.cache.evict(3)
    before = core.scheduler

    def plan(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(before, "plan", plan, raising=False)
    add(core, "a")
    with pytest.raises(LostError):
        core.step()
    assert core.scheduler is not before
    assert core.stats().evicted_pages == evicted
    assert (answer(core, "a"), answer(core, "b")) == (0, 20)


def test_the_counts_of_tenants_are_those_of_the_cache():
    core = engine(num_pages=31)
    core.set_tenants({"named": Terms()})
    answer(core, "a")
    answer(core, "b")
    add(core, "c")
    core.step()
    tenants = core.stats().tenants
    assert tenants.keys() == {"", "named", "a", "b", "c"}
    cached, held = 30 - core.cache.pool.free - 11, 11
    assert tenants["a"].pages_cached + tenants["b"].pages_cached == cached
    assert (tenants["a"].pages_held, tenants["c"].pages_held) == (0, held)
    while not core.idle:
        core.step()
    tenants = core.stats().tenants
    assert sum(each.evictions_suffered for each in tenants.values()) == core.cache.evicted > 0
    assert tenants["c"].evictions_caused == core.cache.evicted


def test_the_counts_of_tenants_are_told_now_and_then_and_when_nothing_is_left_to_do():
    core = engine()
    commands = [
        SetTenants({"a": Terms()}),
        SetPublic([pack(PROMPT[:22])]),
        Add([request("a", tokens=3 * WHOLE_EVERY)], 0.0),
    ]
    stats = [news.stats for news in looped(core, commands) if isinstance(news, StepNews)]
    told = [bool(each.tenants) for each in stats]
    assert [each.pending_tokens is not None for each in stats] == told
    assert told[-1]
    assert 4 <= sum(told) <= 7
    assert len(told) > 90
    assert core.stats().public_pages == 5


def test_a_process_that_is_started_again_is_told_what_is_public(tmp_path):
    async def scenario():
        async with running(tmp_path) as served:
            prompt = served.tokenizer.encode("You are a helpful assistant. Hello?")
            served.set_public([prompt[:64]])
            served.set_tenants({"a": Terms(guaranteed=0.5)})

            async def cached(tenant: str) -> int:
                fields = {"prompt": prompt, "namespace": tenant.encode(), "tenant": tenant}
                deltas = await collect(served, ask(served, tenant, **fields))
                return deltas[-1].usage.cached_tokens

            assert [await cached("a"), await cached("b")] == [0, 16]
            assert served.stats().tenants.keys() == {"", "a", "b"}
            old = served.pid
            os.kill(old, signal.SIGKILL)
            await back(served, old)
            assert [await cached("a"), await cached("b")] == [0, 16]
            assert served.stats().public_pages == 4

    asyncio.run(scenario())
