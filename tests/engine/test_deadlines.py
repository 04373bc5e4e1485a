"""Requests whose time runs out: in the queue, before the first token, and in the middle."""

from __future__ import annotations

import asyncio

import pytest

from radixserve.errors import DeadlineError
from tests.engine.saying import TEXT
from tests.engine.simulated import ask, collect, idle, running
from tests.engine.timing import Timeouts, generated, long_ago, under_way


def test_an_answer_that_has_not_begun_in_time_is_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            with pytest.raises(DeadlineError, match=r"0\.05 seconds"):
                await collect(engine, ask(tokenizer, timeout=0.05))
            model.free()
            while not engine.stats().finished:
                await asyncio.sleep(0)
            assert engine.stats().finished == {"abort": 1}
            assert engine.stats().running == 0

    asyncio.run(scenario())


def test_an_answer_is_cut_where_its_time_ends(tmp_path, monkeypatch):
    timeouts = Timeouts(monkeypatch)

    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            model.allow(5)
            request = ask(tokenizer, timeout=1000.0, sampling={"max_tokens": 90})
            answer = asyncio.create_task(collect(engine, request))
            await generated(engine, 5)
            timeouts.end()
            deltas = await answer
            assert "".join(delta.text for delta in deltas) == TEXT[:5]
            assert (deltas[-1].finish, deltas[-1].stop) == ("length", "deadline")
            assert deltas[-1].usage.completion_tokens == 5
            model.free()
            await idle(engine)

    asyncio.run(scenario())


def test_what_a_stop_string_held_back_is_told_at_the_end(tmp_path, monkeypatch):
    timeouts = Timeouts(monkeypatch)

    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            model.allow(3)
            stops = (TEXT[:3] + "?",)
            request = ask(tokenizer, timeout=1000.0, stop=stops)
            answer = asyncio.create_task(collect(engine, request))
            await generated(engine, 3)
            timeouts.end()
            deltas = await answer
            assert "".join(delta.text for delta in deltas) == TEXT[:3]

    asyncio.run(scenario())


def test_a_time_that_is_long_enough_changes_nothing(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            deltas = await collect(engine, ask(tokenizer, timeout=1000.0, n=2))
            assert sum(delta.finish == "length" for delta in deltas) == 2
            assert all(delta.stop is None for delta in deltas)

    asyncio.run(scenario())


def test_a_request_waits_no_longer_than_the_queue_allows(tmp_path):
    async def scenario():
        async with running(tmp_path, max_num_seqs=1, queue_timeout=60) as (
            engine,
            model,
            tokenizer,
        ):
            model.hold()
            model.allow(1)
            first = engine.generate(ask(tokenizer, name="first"))
            begun = await anext(first)
            with long_ago():
                waiting = asyncio.create_task(collect(engine, ask(tokenizer, name="second", n=2)))
                await under_way(engine, 3)
            model.free()
            with pytest.raises(DeadlineError, match="too busy"):
                await waiting
            rest = [delta.text async for delta in first]
            assert "".join([begun.text, *rest]) == TEXT[:20]
            await idle(engine)

    asyncio.run(scenario())


def test_one_that_has_begun_is_not_in_the_queue_any_more(tmp_path):
    async def scenario():
        async with running(tmp_path, queue_timeout=60) as (engine, _, tokenizer):
            with long_ago():
                deltas = await collect(engine, ask(tokenizer, n=2))
            assert sum(delta.finish == "length" for delta in deltas) == 2

    asyncio.run(scenario())
