"""Forms from HTTP to tokens and back, over an engine that computes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.engine.forms import PERSON, is_person
from tests.model import tiny
from tests.server.asking import error_of, events
from tests.server.computing import computing

SCHEMA = json.loads(PERSON.text)
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
USUAL = {"max_tokens": 150}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.speaking(tmp_path_factory.mktemp("tiny"))


def content(response: httpx2.Response) -> tuple[str, str]:
    """The text and the finish reason of the first choice, streamed or whole."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        choice = response.json()["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    choices = [choice for chunk in events(response) for choice in chunk["choices"]]
    return "".join(each["delta"].get("content", "") for each in choices), choices[-1][
        "finish_reason"
    ]


def test_a_streamed_answer_of_a_form_is_the_whole_one(directory: Path):
    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            for fields in (
                {"response_format": FORMAT},
                {"response_format": FORMAT, "temperature": 0},
                {"structured_outputs": {"regex": "[a-z]{4,9}!"}},
                {"guided_choice": ["yes", "no"]},
            ):
                whole = await ask(**fields)
                assert content(whole) == content(await ask(stream=True, **fields))
                text, finish = content(whole)
                assert finish == "stop"
                assert "response_format" not in fields or is_person(text)
            usage = (await ask(response_format=FORMAT)).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > 0

    asyncio.run(scenario())


def test_logprobs_of_an_answer_of_a_form_are_numbers(directory: Path):
    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (_, ask):
            answer = await ask(
                guided_choice=["yes", "no"], logprobs=True, top_logprobs=5, temperature=0
            )
            shown = answer.json()["choices"][0]["logprobs"]["content"]
            assert shown
            for each in shown:
                assert all(-9999 <= one["logprob"] <= 0 for one in (each, *each["top_logprobs"]))

    asyncio.run(scenario())


BAD: dict[str, dict[str, Any]] = {
    "leading quantifier": {"regex": "*a"},
    "parentheses": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "count": {"regex": "a{1,1000000}"},
    "itself": {"response_format": {**FORMAT, "json_schema": {"schema": {"$ref": "#"}}}},
    "enum": {
        "response_format": {
            **FORMAT,
            "json_schema": {"schema": {"enum": [f"{number:08}" for number in range(50_000)]}},
        }
    },
    "many properties": {
        "guided_json": {"properties": {f"p{n}": {"type": "string"} for n in range(9000)}}
    },
    "chain": {
        "grammar": "start: r0\n"
        + "\n".join(f"r{n}: r{n + 1}" for n in range(9000))
        + '\nr9000: "a"'
    },
}


def test_bad_forms_are_refused_whoever_they_would_hurt_and_the_engine_goes_on(directory: Path):
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    nested = {"response_format": {**FORMAT, "json_schema": {"schema": deep}}}

    async def scenario() -> None:
        async with computing(directory, usual=USUAL) as (engine, ask):
            running = asyncio.create_task(ask(max_tokens=100, ignore_eos=True))
            for name, fields in {**BAD, "deep": nested}.items():
                error = error_of(await ask(stream=True, **fields))
                assert error["code"] == "invalid_json_schema", name
                if "response_format" in fields:
                    assert "Invalid schema for response_format" in error["message"]
            assert content(await running)[1] == "length"
            assert engine.healthy()
            assert is_person(content(await ask(response_format=FORMAT))[0])

    asyncio.run(scenario())
