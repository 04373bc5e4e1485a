"""From HTTP to pages and back: pressure, time, odd requests, and clients that leave."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx2
import pytest

from radixserve.engine.answer import Answer
from radixserve.errors import EngineDeadError
from radixserve.scheduling.scheduler import Scheduler
from radixserve.server.service import Settings
from tests.engine.saying import TEXT
from tests.engine.timing import Timeouts, generated, long_ago, under_way
from tests.server.asking import CHAT, COMPLETIONS, HANG, error_of, events, refused
from tests.server.handed import hand
from tests.server.stack import cached, said, stack, usage
from tests.traced import growths, held

LONG = [20 + i * i % 200 for i in range(150)]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_step_back_for_want_of_pages_answer_as_if_they_were_alone(
    tmp_path, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    preempted = set()
    preempt = Scheduler._preempt

    def noted(self, request, draft):
        preempted.add(request.id)
        return preempt(self, request, draft)

    monkeypatch.setattr(Scheduler, "_preempt", noted)
    fields: dict[str, Any] = {"max_tokens": 40, "temperature": 0}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}

    async def scenario() -> None:
        async with stack(tmp_path, num_pages=31, max_num_seqs=4) as server:
            await server.ask(prompt="Question ", max_tokens=1)
            prompts = [f"Question {name}, please?" for name in ("one", "two", "six", "ten")]
            server.model.hold()
            asking = [asyncio.create_task(server.ask(prompt=each, **fields)) for each in prompts]
            await under_way(server.engine, len(asking))
            server.model.free()
            answers = await asyncio.gather(*asking)
            assert len(preempted) >= 2
            for answer in answers:
                assert said(answer) == TEXT[:40]
                counts = usage(answer)
                assert counts["completion_tokens"] == 40
                assert 8 <= cached(answer) < counts["prompt_tokens"]
            await server.settle()

    asyncio.run(scenario())


def test_fifty_clients_that_hang_up_during_a_prefill_spoil_no_later_answer(tmp_path):
    chance = random.Random(5)

    async def scenario() -> None:
        async with stack(tmp_path, num_pages=120, max_num_batched_tokens=11) as server:
            for visits in range(1, 51):
                server.model.hold()
                cut = chance.randrange(10, 150)
                prompt = LONG[:cut] + [chance.randrange(20, 220) for _ in LONG[cut:]]
                fields = {"prompt": prompt, "stream": chance.random() < 0.5}
                gone = asyncio.Event()
                visit = asyncio.create_task(hand(server.app, COMPLETIONS, fields, gone=gone))
                await server.steps(chance.randrange(1, 12))
                gone.set()
                await visit
                server.model.free()
                while sum(server.engine.stats().finished.values()) < visits:
                    await asyncio.sleep(0)
                await server.settle()
            assert server.engine.stats().finished == {"abort": 50}
            answer = await server.ask(prompt=LONG, max_tokens=20)
            assert said(answer) == TEXT[:20]
            assert cached(answer) > 0
            again = await server.ask(prompt=LONG, max_tokens=20)
            assert said(again) == TEXT[:20]
            assert cached(again) == len(LONG) - 1
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_of_a_thousand_requests_those_that_find_no_place_are_refused_at_once_and_forgotten(
    tmp_path,
):
    settings = {"max_num_seqs": 1, "max_queue": 10}

    async def scenario() -> list[int]:
        async with stack(tmp_path, **settings, server=Settings(max_queue=10)) as server:
            server.model.hold()
            measures: list[int] = []
            accepted: set[asyncio.Task[httpx2.Response]] = set()
            for batch in range(5):
                waiting = accepted | {
                    asyncio.create_task(
                        server.ask(prompt=f"{batch}/{number}", user=f"u{batch}/{number}")
                    )
                    for number in range(200)
                }
                while len(accepted := {each for each in waiting if not each.done()}) > 11:
                    await asyncio.sleep(0)
                for each in waiting - accepted:
                    refusal = await each
                    assert error_of(refusal, 503)["code"] == "server_overloaded"
                    assert 1 <= int(refusal.headers["retry-after"]) <= 120
                del each, refusal, waiting
                measures.append(held())
            assert server.model.steps == 0, "they were refused while a step ran"
            server.model.free()
            for each in await asyncio.gather(*accepted):
                assert said(each) == TEXT[:16]
            await server.settle()
            return measures

    # The name of each request would take 50 bytes or more.
    assert min(growths(asyncio.wait_for(scenario(), HANG))) < 200 * 40


def test_a_burst_that_finds_free_seats_is_no_queue(tmp_path):
    settings = {"max_num_seqs": 30, "max_queue": 2}

    async def scenario() -> None:
        async with stack(tmp_path, **settings, server=Settings(max_queue=2)) as server:
            server.model.hold()
            first = asyncio.create_task(server.ask(prompt="The first"))
            burst = [asyncio.create_task(server.ask(prompt=f"No. {n}")) for n in range(29)]
            await under_way(server.engine, 30)
            server.model.free()
            assert [said(each) for each in await asyncio.gather(first, *burst)] == [TEXT[:16]] * 30

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_more_answers_than_can_ever_be_under_way_are_refused_for_good(tmp_path):
    settings = {"max_num_seqs": 2, "max_queue": 3}

    async def scenario() -> None:
        async with stack(tmp_path, **settings, server=Settings(max_queue=3)) as server:
            for stream in (False, True):
                assert refused(await server.ask(prompt="a", n=6, stream=stream))[0] == "n"
            answer = await server.ask(prompt="a", n=5, max_tokens=9)
            assert [said(answer, index) for index in range(5)] == [TEXT[:9]] * 5
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("seats", [2, 8])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_several_answers_cost_their_prompt_once_however_few_of_them_find_a_seat(
    tmp_path, path: str, seats: int
):
    asked: dict[str, Any] = {"prompt": LONG}
    if path == CHAT:
        asked = {"messages": [{"role": "user", "content": "A question, at some length"}]}

    async def scenario() -> None:
        async with stack(tmp_path, max_num_seqs=seats) as server:
            for warm in (False, True):
                before = server.engine.stats().computed_tokens
                counts = usage(await server.ask(path, **asked, n=5, max_tokens=8))
                length = counts["prompt_tokens"]
                reused = counts["prompt_tokens_details"]["cached_tokens"]
                assert reused == (length - 1 if warm else 0)
                assert counts["completion_tokens"] == 5 * 8
                # Those that find no seat at first compute the prompt's last token anew.
                late = max(0, 5 - seats)
                computed = server.engine.stats().computed_tokens - before
                assert computed <= length - reused + 5 * 7 + late
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("pages", "room"), [(200, 400), (31, 120)])
def test_a_prompt_that_can_never_fit_is_refused_by_the_name_of_its_field(
    tmp_path, pages: int, room: int, stream: bool
):
    long = [20 + i % 200 for i in range(room)]

    async def scenario() -> None:
        async with stack(tmp_path, num_pages=pages) as server:
            for path, fields, param in (
                (COMPLETIONS, {"prompt": long}, "prompt"),
                (COMPLETIONS, {"prompt": [long[1:], long]}, "prompt.1"),
                (COMPLETIONS, {"prompt": "x" * room}, "prompt"),
                (CHAT, {"messages": [{"role": "user", "content": "x" * room}]}, "messages"),
                ("/generate", {"text": "x" * room}, "text"),
                ("/generate", {"input_ids": [long[1:], long]}, "input_ids.1"),
            ):
                response = await server.ask(path, **fields, stream=stream)
                assert refused(response) == (param, "context_length_exceeded")
                assert f"context length is {room} tokens" in response.text
            assert server.engine.stats().steps == 0
            answer = await server.ask(prompt=long[1:], max_tokens=9)
            assert said(answer) == TEXT[:1]
            assert answer.json()["choices"][0]["finish_reason"] == "length"

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_for_too_long_costs_nothing_and_takes_nothing(tmp_path, stream: bool):
    async def scenario() -> None:
        late = Settings(grace=0.0)  # so that a stream has begun when it is refused
        settings = {"max_num_seqs": 1, "queue_timeout": 60}
        async with stack(tmp_path, server=late, **settings) as server:
            await server.ask(prompt=LONG[:50], max_tokens=1)
            before = server.engine.stats()
            server.model.hold()
            first = asyncio.create_task(server.ask(prompt="Another", max_tokens=30))
            await server.steps(1)
            with long_ago():
                waiting = asyncio.create_task(server.ask(prompt=LONG[:50], stream=stream, n=2))
                await under_way(server.engine, 3)
            server.model.free()
            response = await waiting
            if stream:
                error = events(response)[-1]["error"]
            else:
                error = error_of(response, 504)
                assert response.headers["x-should-retry"] == "false"
            assert error["code"] == "deadline_exceeded"
            other = await first
            assert said(other) == TEXT[:30]
            await server.settle()
            counts, after = usage(other), server.engine.stats()
            assert after.prompt_tokens - before.prompt_tokens == counts["prompt_tokens"]
            assert after.computed_tokens - before.computed_tokens == counts["total_tokens"] - 1
            assert after.cached_tokens == before.cached_tokens
            again = await server.ask(prompt=LONG[:50], max_tokens=20)
            assert (said(again), cached(again)) == (TEXT[:20], 49)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_time_is_over_has_its_tokens_says_why_it_ends_and_holds_no_page(
    tmp_path, monkeypatch, stream: bool
):
    timeouts = Timeouts(monkeypatch)

    async def scenario() -> None:
        async with stack(tmp_path) as server:
            server.model.hold()
            server.model.allow(5)
            fields: dict[str, Any] = {"timeout": 1000, "max_tokens": 90}
            if stream:
                fields |= {"stream": True, "stream_options": {"include_usage": True}}
            asking = asyncio.create_task(server.ask(prompt=LONG, **fields))
            await generated(server.engine, 5)
            timeouts.end()
            answer = await asking
            server.model.free()
            assert said(answer) == TEXT[:5]
            assert usage(answer)["completion_tokens"] == 5
            last = events(answer)[-2] if stream else answer.json()
            [choice] = last["choices"]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
            while not server.engine.stats().finished:
                await asyncio.sleep(0)
            await server.settle()
            assert server.engine.stats().finished == {"abort": 1}
            again = await server.ask(prompt=LONG, max_tokens=20)
            assert (said(again), cached(again)) == (TEXT[:20], len(LONG) - 1)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_each_way_to_use_the_cache_takes_and_leaves_what_it_says(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            found = []
            for mode in ("off", "read-only", "on", "off", "no-store", "on"):
                answer = await server.ask(prompt=LONG, max_tokens=20, cache={"mode": mode})
                assert said(answer) == TEXT[:20]
                found.append(cached(answer))
                await server.settle()
            assert found == [0, 0, 0, 0, len(LONG) - 1, len(LONG) - 1]

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize(("pages", "room"), [(200, 400), (31, 120)])
@pytest.mark.parametrize("limit", [None, 2**31 - 1])
def test_an_answer_without_an_end_ends_with_the_context_or_the_pages(
    tmp_path, pages: int, room: int, limit: int | None
):
    async def scenario() -> None:
        async with stack(tmp_path, num_pages=pages) as server:
            user = [{"role": "user", "content": "Go on"}]
            response = await server.ask(CHAT, messages=user, max_tokens=limit)
            body = response.json()
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"]["total_tokens"] == room
            count = body["usage"]["completion_tokens"]
            assert body["choices"][0]["message"]["content"] == (TEXT * 8)[:count]
            assert server.engine.stats().computed_tokens == room - 1
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_written_down_fails_alone(
    tmp_path, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    take = Answer.take

    def faulty(self, delta):
        if delta.usage.prompt_tokens == 30 and delta.usage.completion_tokens == 3:
            raise RuntimeError("secret detail")
        return take(self, delta)

    monkeypatch.setattr(Answer, "take", faulty)

    async def scenario() -> None:
        async with stack(tmp_path) as server:
            answers = await asyncio.gather(
                *(
                    server.ask(prompt=LONG[:length], max_tokens=20, stream=stream)
                    for length in (28, 29, 30, 31, 32)
                )
            )
            odd = answers.pop(2)
            assert "secret" not in odd.text
            if stream:
                assert events(odd)[-1]["error"]["code"] == "internal_error"
            else:
                assert error_of(odd, 500)["code"] == "internal_error"
            assert [said(each) for each in answers] == [TEXT[:20]] * 4
            await server.settle()
            assert sum(server.engine.stats().finished.values()) == 5
            again = await server.ask(prompt=LONG[:29], max_tokens=20)
            assert (said(again), cached(again)) == (TEXT[:20], 28)

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_health_tells_when_the_engine_has_ended(tmp_path):
    def lost(plan):
        raise EngineDeadError("The device is gone.")

    async def scenario() -> None:
        async with stack(tmp_path) as server:
            assert (await server.client.get("/health")).status_code == 200
            server.model.execute = lost  # type: ignore[method-assign]
            for _ in range(2):
                error = error_of(await server.ask(prompt="a"), 500)
                assert error["code"] == "engine_dead"
            assert (await server.client.get("/health")).status_code == 503
            # The process is alive all the same, and says so.
            assert (await server.client.get("/version")).status_code == 200

    asyncio.run(asyncio.wait_for(scenario(), HANG))
