"""Clients that leave at any moment cost nobody anything."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

from tests.engine.saying import TEXT
from tests.engine.simulated import ask, collect, idle, running


def test_five_hundred_streams_closed_at_random_moments_leave_nothing_behind(tmp_path):
    chance = random.Random(7)

    async def visit(engine, tokenizer, number: int) -> None:
        text = "A question that many ask. " * chance.randrange(1, 4) + str(number % 40)
        request = ask(
            tokenizer,
            text,
            f"r{number}",
            n=chance.choice([1, 1, 1, 3]),
            sampling={"max_tokens": chance.randrange(1, 60)},
        )
        patience = chance.randrange(0, 40)
        async with aclosing(engine.generate(request)) as stream:
            async for delta in stream:
                assert TEXT.startswith(delta.text) or delta.text in TEXT
                patience -= 1
                if patience < 0:
                    return

    async def scenario() -> None:
        settings = {"num_pages": 120, "max_queue": 2000, "max_num_seqs": 8}
        async with running(tmp_path, **settings) as (engine, model, tokenizer):
            visits = [
                asyncio.ensure_future(visit(engine, tokenizer, number)) for number in range(500)
            ]
            # A step runs only when the last one was taken, or all would end before anyone leaves.
            model.hold()
            allowed = model.steps
            while not all(each.done() for each in visits):
                if model.steps == allowed:
                    allowed += 1
                    model.allow(1)
                    if chance.random() < 0.1:
                        chance.choice(visits).cancel()
                await asyncio.sleep(0)
            model.free()
            outcomes = await asyncio.gather(*visits, return_exceptions=True)
            faults = [each for each in outcomes if isinstance(each, Exception)]
            assert not faults
            await idle(engine)
            stats = engine.stats()
            assert stats.pages_free + stats.pages_evictable == stats.pages_total
            assert stats.finished["abort"] > 100
            assert stats.cached_tokens > 0
            steps = model.steps
            deltas = await collect(engine, ask(tokenizer, "Still there?", "last"))
            assert "".join(delta.text for delta in deltas) == TEXT[:20]
            assert model.steps - steps == 20

    asyncio.run(scenario())
