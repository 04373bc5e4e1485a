"""The engine on its thread: streams, aborts, failures, and an orderly end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.purge import Purge
from radixserve.errors import (
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    LostError,
    OverloadedError,
)
from radixserve.tenant import OPEN, Terms
from radixserve.tokens import pack, unpack
from tests.engine.saying import TEXT
from tests.engine.simulated import ask, collect, idle, running, simulated_engine

pytestmark = pytest.mark.usefixtures("steps")


def test_what_is_said_of_tenants_before_it_starts_is_told_to_the_engine_then(tmp_path):
    async def scenario() -> None:
        engine, model, tokenizer = simulated_engine(tmp_path)
        shared = tokenizer.encode("The rules of the house are the same for everybody.")
        engine.set_tenants({"one": Terms(weight=2.0)})
        engine.set_public([shared])
        await engine.start_with(model, tokenizer, "tiny")
        prompt = shared + tokenizer.encode("Hello?")
        cached = []
        for tenant in ("one", "two"):
            request = ask(
                tokenizer, prompt=prompt, name=tenant, tenant=tenant, namespace=tenant.encode()
            )
            cached.append((await collect(engine, request))[-1].usage.cached_tokens)
        page = engine.config.page_size
        whole = len(shared) // 4 // page * page
        assert cached == [0, whole]
        assert whole > 0
        assert "one" in engine.stats().tenants
        await engine.stop()

    asyncio.run(scenario())


def test_an_answer_streams_and_ends_with_its_usage(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            deltas = await collect(engine, ask(tokenizer))
            assert "".join(delta.text for delta in deltas) == TEXT[:20]
            assert [delta.finish for delta in deltas] == [None] * 19 + ["length"]
            assert deltas[-1].usage.completion_tokens == 20
            length = len(tokenizer.encode("Hello?")) // 4
            assert deltas[-1].usage.prompt_tokens == length
            again = await collect(engine, ask(tokenizer, name="again"))
            assert again[-1].usage.cached_tokens == length - 1

    asyncio.run(scenario())


def test_concurrent_answers_do_not_mix(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            requests = [
                ask(tokenizer, f"Question {index}", f"r{index}", sampling={"max_tokens": 5 + index})
                for index in range(20)
            ]
            for index, deltas in enumerate(
                await asyncio.gather(*(collect(engine, request) for request in requests))
            ):
                assert "".join(delta.text for delta in deltas) == TEXT[: 5 + index]

    asyncio.run(scenario())


def test_n_answers_share_one_prefill_and_are_told_apart_by_index(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            deltas = await collect(engine, ask(tokenizer, "A prompt", n=3))
            for index in range(3):
                mine = [delta for delta in deltas if delta.index == index]
                assert "".join(delta.text for delta in mine) == TEXT[:20]
                assert mine[-1].finish == "length"
            assert model.computed == len(tokenizer.encode("A prompt")) // 4 + 3 * 19

    asyncio.run(scenario())


def test_a_stop_string_across_tokens_ends_the_answer_and_frees_its_pages(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            model.allow(len("The tree keeps what"))
            request = ask(tokenizer, stop=("keeps what",), sampling={"max_tokens": 300})
            deltas = await collect(engine, request)
            model.free()
            assert "".join(delta.text for delta in deltas) == "The tree "
            assert (deltas[-1].finish, deltas[-1].stop) == ("stop", "keeps what")
            await idle(engine)
            stats = engine.stats()
            assert stats.pages_free + stats.pages_evictable == stats.pages_total
            assert stats.generated_tokens <= len("The tree keeps what") + 2

    asyncio.run(scenario())


def test_a_stop_token_is_named_and_not_shown(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            [stop] = unpack(tokenizer.encode("r"))
            deltas = await collect(engine, ask(tokenizer, sampling={"stop_token_ids": (stop,)}))
            assert "".join(delta.text for delta in deltas) == "The t"
            assert deltas[-1].finish == "stop"
            assert deltas[-1].stop == stop
            assert deltas[-1].usage.completion_tokens == 6

    asyncio.run(scenario())


def test_logprobs_come_with_the_text_of_their_tokens(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            deltas = await collect(engine, ask(tokenizer, sampling={"logprobs": 2}))
            [first] = deltas[0].logprobs
            assert (first.token, first.bytes, first.logprob) == ("T", b"T", -0.5)
            assert [each.token for each in first.top] == ["T", "U"]

    asyncio.run(scenario())


def test_a_closed_stream_frees_its_request_within_two_steps(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            model.allow(3)
            stream = engine.generate(ask(tokenizer, sampling={"max_tokens": 300}))
            for _ in range(3):
                await anext(stream)
            await stream.aclose()
            model.free()
            await idle(engine)
            assert model.steps <= 3 + 2
            stats = engine.stats()
            assert stats.pages_free + stats.pages_evictable == stats.pages_total
            assert stats.finished["abort"] == 1

    asyncio.run(scenario())


def test_a_request_that_waits_can_be_cancelled(tmp_path):
    async def scenario():
        async with running(tmp_path, max_num_seqs=1) as (engine, model, tokenizer):
            model.hold()
            first = asyncio.ensure_future(collect(engine, ask(tokenizer, "one", "one")))
            second = asyncio.ensure_future(collect(engine, ask(tokenizer, "two", "two")))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            model.free()
            assert len(await first) == 20
            await idle(engine)

    asyncio.run(scenario())


def test_refusals_come_at_the_first_step_of_the_stream(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            with pytest.raises(ContextLengthError):
                await collect(engine, ask(tokenizer, "x" * 500))
            with pytest.raises(InvalidRequestError, match="Token 9999 at position 1"):
                await collect(engine, ask(tokenizer, prompt=pack([5, 9999])))
            with pytest.raises(InvalidRequestError, match="stop_token_ids"):
                await collect(engine, ask(tokenizer, sampling={"stop_token_ids": (9999,)}))

    asyncio.run(scenario())


def test_a_full_queue_refuses_the_next_request_and_no_other(tmp_path):
    async def scenario():
        async with running(tmp_path, max_queue=1, max_num_seqs=1) as (engine, model, tokenizer):
            model.hold()
            model.allow(1)
            first = engine.generate(ask(tokenizer, "one", "one", sampling={"max_tokens": 300}))
            await anext(first)
            second = asyncio.ensure_future(collect(engine, ask(tokenizer, "two", "two")))
            third = asyncio.ensure_future(collect(engine, ask(tokenizer, "three", "three")))
            await asyncio.sleep(0)
            model.allow(1)
            with pytest.raises(OverloadedError):
                await third
            model.free()
            await first.aclose()
            assert len(await second) == 20

    asyncio.run(scenario())


def test_a_step_that_fails_ends_its_requests_with_an_error_and_the_engine_lives_on(
    tmp_path, caplog
):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.fail_at = 4
            deltas = await collect(engine, ask(tokenizer))
            assert deltas[-1].finish == "error"
            assert "the device is on fire" in deltas[-1].error
            assert len(deltas) == 4
            assert engine.healthy()
            again = await collect(engine, ask(tokenizer, name="again"))
            assert "".join(delta.text for delta in again) == TEXT[:20]

    asyncio.run(scenario())
    assert "step" in caplog.text


def test_a_model_that_is_lost_ends_the_engine_with_its_reason(tmp_path, caplog):
    def lost(plan):
        raise EngineDeadError("Rank 1 of the model was killed (SIGKILL).")

    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.execute = lost
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await collect(engine, ask(tokenizer))
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(tokenizer, name="late"))

    asyncio.run(scenario())
    assert "the engine has died" in caplog.text


def test_a_request_that_comes_while_the_thread_is_ending_is_refused_and_does_not_hang(
    tmp_path, monkeypatch
):
    def lost(plan):
        raise EngineDeadError("Rank 1 of the model was killed (SIGKILL).")

    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            gone = threading.Event()
            post = engine._post

            def post_and_linger(call, *arguments):
                post(call, *arguments)
                if any(isinstance(each, EngineDeadError) for each in arguments):
                    gone.wait(60)

            monkeypatch.setattr(engine, "_post", post_and_linger)
            model.execute = lost
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(tokenizer))
            try:
                assert not engine.healthy()
                with pytest.raises(EngineDeadError):
                    await asyncio.wait_for(collect(engine, ask(tokenizer, name="late")), 60)
            finally:
                gone.set()

    asyncio.run(scenario())


def test_after_the_end_requests_are_refused_and_those_in_flight_get_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            model.allow(1)
            stream = engine.generate(ask(tokenizer, sampling={"max_tokens": 300}))
            await anext(stream)
            stopping = asyncio.ensure_future(engine.stop())
            await asyncio.sleep(0)
            model.allow(1)
            await stopping
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass
            assert not engine.healthy()
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(tokenizer, name="late"))

    asyncio.run(scenario())


def test_who_was_there_when_the_engine_lost_all_is_told_and_who_comes_later_is_answered(
    tmp_path, caplog
):
    async def scenario():
        async with running(tmp_path) as (engine, model, tokenizer):
            model.hold()
            answers = [
                asyncio.ensure_future(collect(engine, ask(tokenizer, "a b", name, n=2)))
                for name in "ab"
            ]
            model.allow(3)
            while model.steps < 3:
                await asyncio.sleep(0)
            model.execute = lambda plan: [()] * (len(plan.rows) + 1)
            model.free()
            for answer in answers:
                with pytest.raises(LostError, match="zip"):
                    await answer
            del model.execute
            assert engine.healthy()
            again = await collect(engine, ask(tokenizer, name="again"))
            assert "".join(delta.text for delta in again) == TEXT[:20]
            await idle(engine)
            assert engine.stats().finished == {"error": 4, "length": 1}

    asyncio.run(scenario())
    assert "all requests are lost: 4" in caplog.text


@pytest.mark.parametrize(
    ("what", "arguments", "told"),
    [
        ("reset_prefix_cache", (), Purge(0, 0)),
        ("purge", (b"",), Purge(0, 0)),
        ("end_session", (OPEN, b"", "s"), 0),
    ],
)
def test_what_goes_wrong_while_it_forgets_forgets_all_and_is_answered_too(
    tmp_path, monkeypatch, what: str, arguments: tuple[object, ...], told: object
):
    def broken(*_: object):
        raise MemoryError

    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            assert len(await collect(engine, ask(tokenizer))) == 20
            with monkeypatch.context() as patch:
                for name in ("reset", "purge", "end_session"):
                    patch.setattr(PrefixCache, name, broken)
                assert await getattr(engine, what)(*arguments) == told
            again = await collect(engine, ask(tokenizer, name="again"))
            assert again[-1].usage.cached_tokens == 0

    asyncio.run(scenario())


def test_news_that_cannot_be_handed_on_end_the_engine_instead_of_hanging(tmp_path, monkeypatch):
    def broken(news):
        raise MemoryError

    async def scenario():
        async with running(tmp_path) as (engine, _, tokenizer):
            assert len(await collect(engine, ask(tokenizer))) == 20
            monkeypatch.setattr(engine._streams, "take", broken)
            with pytest.raises(EngineDeadError, match="MemoryError"):
                await collect(engine, ask(tokenizer, name="lost"))
            assert not engine.healthy()
            with pytest.raises(EngineDeadError):
                await collect(engine, ask(tokenizer, name="late"))

    asyncio.run(scenario())
