"""What answers show of their prompts: vLLM's ``prompt_logprobs``, and the echo of completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.engine.frontend import Alternative, TextDelta, TokenLogprob
from radixserve.engine.messages import Usage
from radixserve.server.scored import Echo, scored
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack
from tests.server.asking import chat, complete, events, refused
from tests.server.fake import ANSWER, FakeFrontend
from tests.text.tiny import tiny_tokenizer_dir

PROMPT = "Once upon"
RIVAL = {"logprob": -0.25, "rank": 1, "decoded_token": "?"}


def told(letter: str) -> dict[str, Any]:
    """What is told of a letter of a prompt with one rival."""
    own = {"logprob": -1.5, "rank": 7, "decoded_token": letter}
    return {str(ord(letter)): own, str(ord("?")): RIVAL}


def test_completions_and_chats_have_the_shape_of_vllm(client: TestClient, frontend: FakeFrontend):
    choice = complete(client, PROMPT, prompt_logprobs=1).json()["choices"][0]
    assert choice["prompt_logprobs"] == [None, *map(told, PROMPT[1:])]
    assert list(choice["prompt_logprobs"][1]) == [str(ord("n")), str(ord("?"))]
    assert choice["text"] == ANSWER
    assert choice["logprobs"] is None
    answer = chat(client, prompt_logprobs=1).json()
    prompt = bytes(unpack(frontend.requests[-1].prompt)).decode()
    assert answer["prompt_logprobs"] == [None, *map(told, prompt[1:])]
    assert answer["choices"][0]["message"]["content"] == ANSWER
    for plain in (complete(client).json(), chat(client).json(), chat(client, n=2).json()):
        assert "prompt_logprobs" not in plain
        assert not any("prompt_logprobs" in choice for choice in plain["choices"])


def test_the_first_choice_of_each_prompt_has_them(client: TestClient, frontend: FakeFrontend):
    choices = complete(client, ["ab", "cde"], n=2, prompt_logprobs=0).json()["choices"]
    assert [choice.get("prompt_logprobs") is not None for choice in choices] == [True, False] * 2
    assert [len(choice["prompt_logprobs"]) for choice in choices[::2]] == [2, 3]
    assert list(choices[2]["prompt_logprobs"][2]) == [str(ord("e"))]
    assert [each.sampling.prompt_logprobs for each in frontend.requests] == [0, 0]
    answer = chat(client, n=2, prompt_logprobs=0).json()
    prompt = unpack(frontend.requests[-1].prompt)
    assert len(answer["prompt_logprobs"]) == len(prompt)


def test_they_stay_with_the_first_choice_where_the_best_are_ranked(
    client: TestClient, frontend: FakeFrontend
):
    frontend.logprobs = [-3.0, -1.0, -2.0]
    asked = {"n": 2, "best_of": 3, "prompt_logprobs": 0, "return_token_ids": True}
    choices = complete(client, ["ab", "cde"], **asked).json()["choices"]
    assert [each["text"] for each in choices] == [ANSWER + "1", ANSWER + "2"] * 2
    assert [len(each.get("prompt_logprobs") or ()) for each in choices] == [2, 0, 3, 0]
    assert [bytes(each["prompt_token_ids"]) for each in choices] == [b"ab"] * 2 + [b"cde"] * 2
    assert choices[0]["token_ids"] == list(f"{ANSWER}1".encode())
    assert "prompt_logprobs" not in choices[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": "1"}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"echo": True, "logprobs": 1, "n": 2}, "n"),
        ({"echo": True, "logprobs": 1, "n": 2, "best_of": 2}, "n"),
        ({"echo": True, "logprobs": 1, "best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any], param: str
):
    assert refused(complete(client, **fields))[0] == param
    if "prompt_logprobs" in fields:
        assert refused(chat(client, **fields))[0] == param
    assert not frontend.requests


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_has_those_of_the_prompt_in_front(client: TestClient, stream: bool):
    response = complete(client, ["Once", "No"], echo=True, logprobs=1, stream=stream)
    chunks = events(response) if stream else [response.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, prompt in enumerate(["Once", "No"]):
        mine = [choice for choice in choices if choice["index"] == index]
        shown = [choice["logprobs"] for choice in mine if choice["logprobs"]]
        assert "".join(choice["text"] for choice in mine) == prompt + ANSWER
        assert [token for each in shown for token in each["tokens"]] == list(prompt + ANSWER)
        offsets = [offset for each in shown for offset in each["text_offset"]]
        assert offsets == list(range(len(prompt + ANSWER)))
        logprobs = [value for each in shown for value in each["token_logprobs"]]
        assert logprobs == [None] + [-1.5] * (len(prompt) - 1) + [-0.5] * len(ANSWER)
        top = [value for each in shown for value in each["top_logprobs"]]
        assert top[:2] == [None, {"?": -0.25, prompt[1]: -1.5}]
        assert top[len(prompt)] == {"?": -9999.0, "H": -0.5}
        assert "prompt_logprobs" not in mine[0]


def test_both_ways_each_show_as_much_as_was_asked_for(client: TestClient, frontend: FakeFrontend):
    answer = complete(client, "ab", echo=True, logprobs=0, prompt_logprobs=1).json()
    [choice] = answer["choices"]
    assert choice["logprobs"]["top_logprobs"][:2] == [None, {"b": -1.5}]
    assert choice["prompt_logprobs"] == [None, told("b")]
    assert frontend.requests[0].sampling.prompt_logprobs == 1
    assert frontend.requests[0].sampling.logprobs == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Hi", [72, 105]])
def test_a_prompt_may_be_all_that_is_answered(client: TestClient, prompt: object, stream: bool):
    plain = complete(client, prompt, echo=True, max_tokens=0, stream=stream)
    chunks = events(plain) if stream else [plain.json()]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hi"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    response = complete(client, prompt, echo=True, max_tokens=0, logprobs=0, stream=stream)
    chunks = events(response) if stream else [response.json()]
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [t for each in shown if each for t in each["tokens"]] == ["H", "i"]
    assert [v for each in shown if each for v in each["token_logprobs"]] == [None, -1.5]
    if not stream:
        assert chunks[0]["usage"]["completion_tokens"] == 0


def test_a_chat_may_be_scored_alone(client: TestClient):
    answer = chat(client, prompt_logprobs=0, max_completion_tokens=0).json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert refused(chat(client, max_completion_tokens=0))[0] == "max_completion_tokens"


def test_clients_that_score_cut_off_exactly_the_generated_token(
    client: TestClient, frontend: FakeFrontend
):
    # They ask for one token and leave the last one out, also where it is a stop token.
    body = complete(client, [[72, 105, 33]], echo=True, logprobs=1, max_tokens=1, temperature=0)
    shown = body.json()["choices"][0]["logprobs"]
    assert shown["tokens"][1:-1] == ["i", "!"]
    assert frontend.requests[0].end_logprob
    complete(client, logprobs=1)
    assert not frontend.requests[1].end_logprob


def delta(tokenizer: Tokenizer, tokens: list[int]) -> TextDelta:
    entries = tuple(
        TokenLogprob(tokenizer.token_text(each), b"", -1.0, (), each, 1) for each in tokens
    )
    return TextDelta(prompt_logprobs=entries, usage=Usage(1, 0, 0))


@pytest.mark.parametrize("text", ["hell the hello", "a<|im_start|>hell", "é the 안"])
def test_offsets_say_where_in_the_text_a_token_begins(tmp_path: Path, text: str):
    tiny_tokenizer_dir(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    packed = tokenizer.encode(text)
    ids = unpack(packed)
    echoed = tokenizer.decode(ids)
    echo = Echo(echoed, packed, tokenizer, 1)
    shown = echo.begin()
    for each in ids[1:]:
        shown += echo.take(delta(tokenizer, [each]))
    offsets, names = [each.offset for each in shown], [each.token for each in shown]
    assert names == [tokenizer.token_text(each) for each in ids]
    ends = [*offsets[1:], len(echoed)]
    pieces = [echoed[start:end] for start, end in zip(offsets, ends, strict=True)]
    assert "".join(pieces) == echoed
    for piece, name in zip(pieces, names, strict=True):
        # What is no text stands for nothing in it, and so does all but the last of a character.
        assert (
            piece == name
            or (piece == "" and name.startswith(("<|", "\ufffd")))
            or (len(piece) == 1 and name == "\ufffd")
        )


def test_a_logprob_that_json_cannot_hold_is_clipped():
    rival = Alternative("a", b"a", -0.1, 1)
    token = TokenLogprob("b", b"b", float("-inf"), (rival,), 2, 9)
    assert bytes(scored(token, 0)) == b'{"2":{"logprob":-9999.0,"rank":9,"decoded_token":"b"}}'
