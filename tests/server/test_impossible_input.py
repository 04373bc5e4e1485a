"""Prompts, numbers and tokens that cannot be, through every layer: refused by name, at no cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.saying import TEXT
from tests.server.asking import CHAT, COMPLETIONS, HANG, error_of, refused
from tests.server.stack import said, stack

EMPTY = ["", [], [""], [[]], ["a", ""]]
BLANK = [" ", "\n\t \n", "\u200b", [" ", "\n"]]
NO_MESSAGES: list[list[dict[str, Any]]] = [[]]
BLANK_MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": " \n "}],
    [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    [{"role": "system", "content": ""}, {"role": "assistant", "content": ""}],
]


def test_an_empty_prompt_is_refused_a_blank_one_answered_and_the_next_one_too(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            for stream in (False, True):
                common = {"max_tokens": 4, "stream": stream}
                for prompt in EMPTY:
                    param, _ = refused(await server.ask(prompt=prompt, **common))
                    assert str(param).startswith("prompt")
                for messages in NO_MESSAGES:
                    param, _ = refused(await server.ask(CHAT, messages=messages, **common))
                    assert param == "messages"
                for prompt in BLANK:
                    answer = await server.ask(prompt=prompt, **common)
                    assert said(answer) == TEXT[:4]
                for messages in BLANK_MESSAGES:
                    answer = await server.ask(CHAT, messages=messages, **common)
                    assert answer.status_code == 200, answer.text
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"stream": True}, {"n": 2}])
def test_no_tokens_at_all_are_refused_by_name_whatever_else_is_asked(tmp_path, fields):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            asked = await server.ask(prompt="a", max_tokens=0, **fields)
            assert refused(asked) == ("max_tokens", "invalid_value")
            assert said(await server.ask(prompt="a", max_tokens=1)) == "T"
            assert said(await server.ask(prompt="a", max_tokens=0, echo=True, **fields)) == "a"
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


GENERATE = "/generate"
SHARED = ["temperature", "top_p", "top_k", "min_p", "n"]
SHARED += ["repetition_penalty", "presence_penalty", "frequency_penalty"]
COMMON = [*SHARED, "seed", "max_tokens", "min_tokens", "priority", "timeout"]
NUMBERS = {
    COMPLETIONS: ["logprobs", "best_of", *COMMON],
    CHAT: ["top_logprobs", "max_completion_tokens", *COMMON],
    GENERATE: ["top_logprobs_num", "priority"],
}
for _name in (*SHARED, "sampling_seed", "max_new_tokens", "min_new_tokens"):
    NUMBERS[GENERATE].append(f"sampling_params.{_name}")
_ASKED = {
    COMPLETIONS: '"prompt": "a", "max_tokens": 3',
    CHAT: '"messages": [{"role": "user", "content": "a"}], "logprobs": true, "max_tokens": 3',
    GENERATE: '"text": "a", "return_logprob": true, "sampling_params": {"max_new_tokens": 3}',
}
ASKED = {(path, ""): f"{{{asked}, %s}}" for path, asked in _ASKED.items()}
ASKED[GENERATE, "sampling_params"] = '{"text": "a", "sampling_params": {"max_new_tokens": 3, %s}}'
"""By route and place of the field; of one that comes twice the last one counts."""
VALUES = [
    *("0", "-0.0", "-1", "1e6", "1e308", "-1e308", "5e-324", "NaN", "Infinity", "-Infinity"),
    *("1e400", "18446744073709551616", "-9223372036854775809", "9" * 400, '"1"', "true", "[]"),
]


@pytest.mark.parametrize("path", NUMBERS)
def test_every_number_that_cannot_be_is_refused_by_name_and_hangs_nothing(tmp_path, path: str):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            answered = 0
            for field in NUMBERS[path]:
                place, _, name = field.rpartition(".")
                for value in VALUES:
                    body = ASKED[path, place] % f'"{name}": {value}'
                    response = await server.send(path, body)
                    assert len(response.content) < 5000
                    if response.status_code == 400:
                        error = error_of(response)
                        no_json = value in ("NaN", "Infinity", "-Infinity")
                        assert error["param"] == (None if no_json else field), (field, value, error)
                    elif response.status_code == 504:
                        assert field == "timeout", (field, value)
                    else:
                        assert response.status_code == 200, (field, value, response.text)
                        answered += 1
            assert answered > 10
            assert said(await server.ask(prompt="a", max_tokens=3)) == TEXT[:3]
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("token", [-1, 266, 2**31 - 1, 2**31, 2**63, 10**30])
def test_a_token_that_does_not_exist_is_refused_wherever_it_stands_and_costs_nothing(
    tmp_path, token: int
):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            for fields in (
                {"prompt": [token]},
                {"prompt": [20, 21, token]},
                {"prompt": [[20], [21, token]]},
                {"prompt": "a", "stop_token_ids": [3, token]},
                {"prompt": "a", "logit_bias": {str(token): 1.0}},
            ):
                for stream in (False, True):
                    param, _ = refused(await server.ask(**fields, stream=stream))
                    assert str(param).split(".")[0] in fields
            assert server.engine.stats().computed_tokens == 0
            assert said(await server.ask(prompt=[20, 265], max_tokens=3)) == TEXT[:3]

    asyncio.run(asyncio.wait_for(scenario(), HANG))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_answer_that_may_neither_end_nor_go_on_is_refused(tmp_path, path: str):
    end, other = 2, 30
    asked = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "a"}
    asked["max_tokens"] = 3
    ends: dict[str, dict[str, Any]] = {
        "allowed_token_ids": {"allowed_token_ids": [end, other], "stop_token_ids": [other]},
        "stop_token_ids": {"stop_token_ids": list(range(266))},
    }

    async def scenario() -> None:
        async with stack(tmp_path) as server:
            for field, fields in ends.items():
                param, _ = refused(await server.ask(path, **asked, **fields, min_tokens=1))
                assert param == field
                assert (await server.ask(path, **asked, **fields)).status_code == 200
            goes_on = {"allowed_token_ids": [end, other], "min_tokens": 1}
            assert (await server.ask(path, **asked, **goes_on)).status_code == 200

    asyncio.run(asyncio.wait_for(scenario(), HANG))
