"""However an answer ends, usage says what is kept of it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.engine import streams
from tests.engine.saying import TEXT
from tests.server.asking import CHAT, COMPLETIONS, events
from tests.server.stack import stack

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SAID = [{"role": "user", "content": "Hello there."}]
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAID, "max_tokens": 40},
    COMPLETIONS: {"prompt": "Hello there.", "max_tokens": 40},
    MESSAGES: {"messages": SAID, "max_tokens": 40, "model": "tiny"},
    RESPONSES: {"input": "Hello there.", "max_output_tokens": 40},
}
CUT = "seen"


def usage_of(path: str, answer: httpx2.Response, *, stream: bool) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    if not stream:
        body = answer.json()
    elif path in (CHAT, COMPLETIONS):
        body = events(answer)[-1]
    else:
        told = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        whole = [httpx2.Response(200, text=each).json() for each in told]
        body = [each for each in whole if "usage" in (each.get("response") or each)][-1]
        body = body.get("response") or body
    usage: dict[str, Any] = body["usage"]
    return usage


def keep_of(usage: dict[str, Any]) -> tuple[str, int]:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    return details["keep"], details["kept_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_an_answer_that_a_stop_string_cuts_says_so_as_one_that_ends(
    tmp_path, path: str, stream: bool, share: float
):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, keep_share=share) as server:
            fields = {**ASKED[path], "keep_for": 60, "stream": stream}
            if stream and path in (CHAT, COMPLETIONS):
                fields["stream_options"] = {"include_usage": True}
            stop = "stop_sequences" if path == MESSAGES else "stop"
            whole = await server.ask(path, **fields)
            cut = await server.ask(path, **fields, **{stop: [CUT]})
            await server.settle()
            ended, stopped = (usage_of(path, each, stream=stream) for each in (whole, cut))
            generated = [
                each.get("completion_tokens") or each["output_tokens"] for each in (ended, stopped)
            ]
            assert generated == [40, TEXT.index(CUT) + len(CUT)]
            assert keep_of(ended)[0] == keep_of(stopped)[0] == ("granted" if share else "refused")
            if share:
                shorter = keep_of(ended)[1] - keep_of(stopped)[1]
                assert shorter in (generated[0] - generated[1], generated[0] - generated[1] - 1)
                assert server.engine.stats().tenants[""].pages_kept == -(-keep_of(ended)[1] // 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKED)
def test_so_does_one_that_its_timeout_cuts(tmp_path, monkeypatch, path: str, stream: bool):
    monkeypatch.setattr(streams, "LAST_WORD", 60.0)

    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            fields = {**ASKED[path], "keep_for": 60, "stream": stream}
            if stream and path in (CHAT, COMPLETIONS):
                fields["stream_options"] = {"include_usage": True}
            server.model.hold()
            asking = asyncio.create_task(server.ask(path, **fields))
            await server.steps(5)
            while server.engine.stats().generated_tokens < 5:
                await asyncio.sleep(0)
            [inbox] = server.engine._streams._inboxes.values()
            inbox.put_nowait(streams.Deadline())
            while not inbox.empty() or server.engine._commands.empty():
                await asyncio.sleep(0)
            server.model.free()
            status, tokens = keep_of(usage_of(path, await asking, stream=stream))
            assert status == "granted"
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept >= tokens // 4 > 0

    asyncio.run(scenario())


def test_of_prompts_that_have_not_begun_in_time_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "LAST_WORD", 60.0)

    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, max_num_seqs=1) as server:
            fields = {"prompt": ["one", "two"], "max_tokens": 90, "keep_for": 60}
            server.model.hold()
            asking = asyncio.create_task(server.ask(**fields, timeout=0.5))
            await server.steps(5)
            while server.engine._commands.empty():
                await asyncio.sleep(0)
            server.model.free()
            status, tokens = keep_of((await asking).json()["usage"])
            assert (status, tokens > 0) == ("partial", True)
            await server.settle()

    asyncio.run(scenario())


def test_of_a_beam_search_the_prompt_is_kept(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            fields = {**ASKED[COMPLETIONS], "max_tokens": 3, "use_beam_search": True, "n": 1}
            usage = (await server.ask(**fields, keep_for=60)).json()["usage"]
            assert keep_of(usage) == ("granted", usage["prompt_tokens"])
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept == -(-usage["prompt_tokens"] // 4)

    asyncio.run(scenario())


def test_what_was_cut_is_told_while_other_answers_go_on(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            answer = await server.ask(**ASKED[COMPLETIONS], n=3, keep_for=60, stop=CUT)
            assert keep_of(answer.json()["usage"])[0] == "granted"
            assert {each["text"] for each in answer.json()["choices"]} == {TEXT[: TEXT.index(CUT)]}
            await server.settle()

    asyncio.run(scenario())


def test_metrics_tell_what_is_kept_refused_refreshed_and_over(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, num_pages=41, keep_share=0.5) as server:

            async def told(name: str, **labels: str) -> float:
                text = (await server.client.get("/metrics")).text
                found = [
                    sample.value
                    for family in text_string_to_metric_families(text)
                    for sample in family.samples
                    if sample.name == f"radixserve:{name}"
                    and labels.items() <= sample.labels.items()
                ]
                return sum(found)

            fields = {"prompt": list(range(20, 36)), "max_tokens": 1}
            assert await told("kv_pages_keep_budget") == 20
            await server.ask(**fields, keep_for=600)
            await server.settle()
            assert await told("kv_pages_kept") == 4
            assert await told("keep_refreshed_total") == 0
            await server.ask(**fields, keep_for=60)
            await server.settle()
            assert await told("keep_refreshed_total") == 1
            long = {"prompt": [9] * 100, "max_tokens": 1}
            await server.ask(**long, keep_for=60)
            assert await told("keep_refused_total") == 1
            await server.ask(**fields, keep_for=60, cache={"mode": "read-only"})
            await server.settle()
            for reason, count in (("budget", 1), ("uncached", 1), ("unfinished", 0)):
                assert await told("keep_refused_total", reason=reason) == count
            assert await told("kv_pages_kept") == 20

    asyncio.run(scenario())
