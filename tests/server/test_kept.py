"""Answers that are kept to calls or a form, over an engine that computes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.model import tiny
from tests.server.asking import accumulated, error_of, refused
from tests.server.computing import Ask, computing
from tests.text.tiny import SPECIALS, byte_level

TEMPLATE = (
    "{{ messages[0]['content'] }}"
    "{% for tool in tools or [] %}<tool_call>{{ tool['function']['name'] }}{% endfor %}"
    "{% if enable_thinking %}<think>\n"
    "{% elif enable_thinking is defined %}<think></think>{% endif %}"
)
THINK, END_OF_THINKING, CALL = 3, 4, 5
BYTES = 6
"""The token of byte 0."""
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "now"}}
FORMAT = {"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2, [3]]}}}
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
USUAL = {**QUIET, "max_tokens": 180}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    backend = byte_level(specials=(*SPECIALS, "<think>", "</think>", "<tool_call>"))
    return tiny.speaking(made, vocab_size=280, backend=backend, chat_template=TEMPLATE)


async def both(ask: Ask, **fields: Any) -> dict[str, Any]:
    """The one choice of an answer, which is the same streamed and whole but for its calls' ids."""
    whole = await ask(**fields)
    assert whole.status_code == 200, whole.text
    streamed = accumulated(await ask(stream=True, **fields))
    [choice] = whole.json()["choices"]
    for told in (choice["message"], streamed["message"]):
        for call in told.get("tool_calls", []):
            assert call.pop("id").startswith("call_")
    assert streamed["message"] == choice["message"]
    assert streamed["finish_reason"] == choice["finish_reason"]
    return dict(choice)


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls of a whole answer, each as its tool wants it."""
    message = choice["message"]
    assert message["content"] is None, message
    found = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]
    for name, arguments in found:
        assert name in ("weather", "now")
        if name == "now":
            assert arguments == {}
        else:
            assert arguments["city"] in ("Rome", "Oslo")
            assert arguments.keys() <= {"city", "days"}
            assert arguments.get("days", 0) <= 9
    return found


def bias(text: str, value: float = 100.0) -> dict[str, float]:
    """Of the token of one character."""
    return {str(BYTES + ord(text)): value}


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_a_call_that_is_required_is_made_and_fits_its_schema(directory: Path):
    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
            for name in ("weather", "now"):
                for seed in range(2):
                    likely = {"logit_bias": bias(name[0]), "seed": seed}
                    choice = await both(ask, **fields, **likely)
                    assert [called for called, _ in calls_of(choice)] == [name]
                    assert choice["finish_reason"] == "tool_calls"
            end = {"2": 100.0}
            choice = await both(ask, tools=TOOLS, tool_choice="required", logit_bias=end)
            assert len(calls_of(choice)) == 1
            more = {**bias("\n", 100.0), "2": -100.0}
            choice = await both(ask, tools=TOOLS, tool_choice="required", logit_bias=more)
            assert len(choice["message"]["tool_calls"]) > 1
            assert choice["finish_reason"] == "length"

    run(scenario)


def test_only_tools_that_are_named_or_allowed_are_called(directory: Path):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            for seed in range(3):
                choice = await both(ask, tools=TOOLS, tool_choice=NAMED, seed=seed)
                assert calls_of(choice) == [("now", {})]
                assert choice["finish_reason"] == "stop"
                choice = await both(
                    ask, tools=TOOLS, tool_choice=allowed, seed=seed, parallel_tool_calls=False
                )
                assert calls_of(choice) == [("now", {})]
                assert choice["finish_reason"] == "tool_calls"

    run(scenario)


def test_each_of_several_answers_makes_a_call_of_its_own(directory: Path):
    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
            choices = (await ask(n=4, **fields)).json()["choices"]
            ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
            assert len(ids) == 4
            for index, choice in enumerate(choices):
                alone = (await ask(seed=3 + index, **fields)).json()["choices"][0]
                assert calls_of(choice) == calls_of(alone)

    run(scenario)


def test_a_call_that_is_cut_by_the_length_ends_cleanly(directory: Path):
    fields = {"tools": TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False}

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            whole = (await ask(**fields)).json()
            full = whole["choices"][0]["message"]["tool_calls"][0]["function"]
            seen = set()
            for room in range(1, whole["usage"]["completion_tokens"], 5):
                cut = await both(ask, max_tokens=room, **fields)
                assert cut["finish_reason"] == "length"
                for call in cut["message"].get("tool_calls", []):
                    assert call["function"]["name"] == full["name"]
                    assert full["arguments"].startswith(call["function"]["arguments"])
                    seen.add(call["function"]["arguments"])
            assert len(seen) > 2

    run(scenario)


@pytest.mark.parametrize("named", [False, True])
def test_a_stop_string_cuts_a_call_too_and_nothing_is_made_up_behind_it(
    directory: Path, named: bool
):
    choice: Any = {**NAMED, "function": {"name": "weather"}} if named else "required"

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            told = await both(ask, tools=TOOLS[:1], tool_choice=choice, stop=['ty": "'])
            [call] = told["message"]["tool_calls"]
            assert call["function"]["arguments"] == '{"ci'
            assert (told["finish_reason"], told["stop_reason"]) == ("stop", 'ty": "')

    run(scenario)


def test_calls_of_requests_that_step_back_are_those_of_requests_alone(directory: Path):
    fields = {
        "tools": TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False,
    }  # fmt: skip
    asked = [f"{name} is who?" for name in ("Ann", "Bob", "Cleo", "Dora")]

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            alone = [calls_of((await ask(each, **fields)).json()["choices"][0]) for each in asked]
        async with computing(directory, usual=USUAL, num_pages=36, max_num_seqs=4) as (engine, ask):
            await ask(asked[0], **{**fields, "max_tokens": 1})  # the grammar is known from now on
            answers = await asyncio.gather(*(ask(each, **fields) for each in asked))
            assert [calls_of(each.json()["choices"][0]) for each in answers] == alone
            assert engine.stats().preemptions >= 1

    run(scenario)


ENDING = {str(END_OF_THINKING): 4.0}


@pytest.mark.parametrize("kept", ["form", "call", "either"])
def test_what_is_kept_begins_where_the_reasoning_ends(directory: Path, kept: str):
    fields: dict[str, Any] = {"form": {"response_format": FORMAT}}.get(
        kept, {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    )
    if kept == "either":
        fields = {"response_format": FORMAT, "tools": TOOLS, "parallel_tool_calls": False}

    def whole(choice: dict[str, Any]) -> None:
        if choice["message"]["content"] is None:
            assert kept != "form"
            calls_of(choice)
        else:
            assert kept != "call"
            assert json.loads(choice["message"]["content"]) in (1, 2, [3])

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            lengths = set()
            for seed in range(4):
                thinking = {"chat_template_kwargs": {"enable_thinking": True}, "seed": seed}
                choice = await both(ask, **fields, **thinking, logit_bias=ENDING)
                assert choice["finish_reason"] != "length"
                lengths.add(len(choice["message"].get("reasoning", "")))
                whole(choice)
            assert max(lengths) > 1
            choice = await both(ask, **fields, **QUIET, logit_bias={str(THINK): 100.0})
            assert "reasoning" not in choice["message"]
            whole(choice)
            free: dict[str, Any] = {**fields, "chat_template_kwargs": {}}
            choice = await both(ask, **free, logit_bias={str(THINK): 100.0, **ENDING})
            assert choice["message"]["reasoning"]
            whole(choice)
            choice = await both(ask, **free, logit_bias={str(THINK): -100.0})
            assert "reasoning" not in choice["message"]
            whole(choice)

    run(scenario)


def test_with_a_form_and_tools_an_answer_has_the_form_or_is_calls(directory: Path):
    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            fields = {"response_format": FORMAT, "tools": TOOLS, "parallel_tool_calls": False}
            choice = await both(ask, **fields, logit_bias={str(CALL): 100.0})
            assert calls_of(choice)
            assert choice["finish_reason"] == "tool_calls"
            for first in "1", "2", "[":
                choice = await both(ask, **fields, logit_bias=bias(first))
                assert choice["message"]["content"][0] == first
                assert json.loads(choice["message"]["content"]) in (1, 2, [3])
                assert choice["finish_reason"] == "stop"
            choice = await both(ask, **fields, tool_choice="none", logit_bias={str(CALL): 100.0})
            assert json.loads(choice["message"]["content"]) in (1, 2, [3])

    run(scenario)


def test_a_call_of_a_strict_tool_fits_its_schema_once_it_is_begun(directory: Path):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            mute = {str(CALL): -100.0}
            free = await both(ask, tools=strict, max_tokens=30, logit_bias=mute)
            assert free["message"]["content"]
            assert "tool_calls" not in free["message"]
            eager = {str(CALL): 100.0}
            fields: dict[str, Any] = {"logit_bias": eager, "parallel_tool_calls": False}
            for seed in range(3):
                choice = await both(ask, tools=strict, seed=seed, **fields)
                assert [name for name, _ in calls_of(choice)] == ["weather"]
                assert choice["finish_reason"] == "tool_calls"
            loose = await both(ask, tools=TOOLS, **fields)
            assert "tool_calls" not in loose["message"], "nothing keeps it to anything"
            some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
            choice = await both(ask, tools=TOOLS, tool_choice=some, **fields)
            assert calls_of(choice) == [("now", {})]
            choice = await both(ask, tools=TOOLS, tool_choice=some, max_tokens=9, logit_bias=mute)
            assert choice["message"]["content"]

    run(scenario)


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_place_if_its_tool_is_strict(
    directory: Path,
):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    loose = {"type": "function", "function": {"name": "f", "parameters": schema}}
    strict = {"type": "function", "function": {**loose["function"], "strict": True}}

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            for choice in ("required", "auto"):
                response = await ask(tools=[*TOOLS, strict], tool_choice=choice)
                error = error_of(response)
                place = ("tools.2.function.parameters", "invalid_json_schema")
                assert (error["param"], error["code"]) == place
                assert "uniqueItems" in error["message"]
            assert (await ask(tools=[*TOOLS, strict], tool_choice=NAMED)).status_code == 200
            response = await ask(tools=[*TOOLS, loose], tool_choice="required")
            assert response.status_code == 200
            deep: dict[str, Any] = {"type": "string"}
            for _ in range(200):
                deep = {"type": "object", "properties": {"a": deep}}
            tool = {"type": "function", "function": {"name": "g", "parameters": deep}}
            place = ("tools.0.function.parameters", "invalid_json_schema")
            assert refused(await ask(tools=[tool], tool_choice="required")) == place
            too_much = {"enum": [f"value {number}" for number in range(60_000)]}
            huge = {"name": "g", "parameters": {"properties": {"a": too_much}}}
            tool = {"type": "function", "function": huge}
            response = await ask(tools=[tool], tool_choice="required")
            assert refused(response)[1] == "invalid_json_schema"

    run(scenario)
