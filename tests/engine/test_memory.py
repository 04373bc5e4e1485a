"""A server that has answered thousands of requests remembers none of them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.frontend import TextRequest
from tests.engine.saying import TEXT
from tests.engine.simulated import ask, collect, idle, running
from tests.traced import growths, held

BATCH = 20


async def visit(engine: AsyncLLM, request: TextRequest) -> None:
    """Leave after the first token."""
    async with aclosing(engine.generate(request)) as stream:
        await anext(stream)


@pytest.mark.parametrize("times", [{}, {"queue": 10_000.0, "answer": 10_000.0}])
def test_five_thousand_requests_leave_no_memory_behind(tmp_path, times: dict[str, float]):
    async def scenario() -> list[int]:
        # The pool is soon full, so that from then on the tree cannot grow either.
        settings = {"num_pages": 40, "queue_timeout": times.get("queue")}
        async with running(tmp_path, **settings) as (engine, model, tokenizer):

            async def batch(first: int) -> None:
                asked = [
                    ask(
                        tokenizer,
                        f"{number}?",
                        f"r{number}",
                        sampling={"max_tokens": 2 + number % 2},
                        namespace=b"" if number % 3 else str(number).encode(),
                        n=1 + (number % 10 == 0),
                        timeout=times.get("answer"),
                    )
                    for number in range(first, first + BATCH)
                ]
                leaving = [visit(engine, each) for each in asked[:4]]
                staying = [collect(engine, each) for each in asked[4:]]
                for deltas in (await asyncio.gather(*leaving, *staying))[4:]:
                    assert TEXT.startswith("".join(d.text for d in deltas if d.index == 0))

            measures = []
            for first in range(0, 5000, BATCH):
                await batch(first)
                model.namespaces.clear()  # the stand-in's own memory
                if first % 1000 == 1000 - BATCH:
                    await idle(engine)
                    measures.append(held())
            stats = engine.stats()
            assert sum(stats.finished.values()) == 5500
            # Whether those who leave are in time to end their request is left to chance.
            assert stats.evicted_pages > 4000
            assert stats.cached_tokens > 0
            return measures

    # A name of each request would take 50 bytes or more.
    assert min(growths(scenario())) < 1000 * 8
