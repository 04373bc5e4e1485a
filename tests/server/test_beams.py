"""Beam search as vLLM's fields ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from radixserve.engine.frontend import Beams
from tests.server.asking import chat, complete, error_of, refused
from tests.server.fake import ANSWER, FakeFrontend

NEUTRAL = {
    "stream": False,
    "temperature": 0,
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "bad_words": [],
    "min_tokens": 0,
    "stop": [],
    "cache": {"mode": "on"},
}


@pytest.mark.parametrize("ask", [chat, complete])
def test_the_fields_reach_the_engine(client: TestClient, frontend: FakeFrontend, ask: Any):
    body = ask(client, use_beam_search=True, n=3, **NEUTRAL).json()
    assert len(body["choices"]) == 3
    ask(client, use_beam_search=True, n=2, best_of=5, length_penalty=0.5, early_stopping=True)
    ask(client, use_beam_search=True, early_stopping="never")
    ask(client, use_beam_search=False, length_penalty=1.0, early_stopping=False, best_of=1)
    assert [(each.n, each.beams) for each in frontend.requests] == [
        (3, Beams(width=3)),
        (2, Beams(width=5, length_penalty=0.5, early_stopping=True)),
        (1, Beams(width=1, early_stopping="never")),
        (1, None),
    ]


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 21}, "n"),
        ({"n": 20, "stop_token_ids": [1]}, "n"),
        ({"best_of": 21}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"length_penalty": -1e300}, "length_penalty"),
        ({"early_stopping": "often"}, "early_stopping"),
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"stop": "x"}, "stop"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"structured_outputs": {"regex": "a+"}}, "use_beam_search"),
        ({"cache": {"mode": "off"}}, "use_beam_search"),
        ({"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_by_name(
    client: TestClient, frontend: FakeFrontend, ask: Any, fields: dict[str, Any], param: str
):
    assert refused(ask(client, **{"use_beam_search": True, **fields}))[0] == param
    assert not frontend.requests


def test_words_are_not_told_where_there_can_be_more_than_words(client: TestClient):
    error = error_of(complete(client, early_stopping="often"))
    assert (error["param"], error["code"]) == ("early_stopping", "invalid_type")
    assert "must be one of" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"), [({"logprobs": 1}, "echo"), ({"max_tokens": 0}, "max_tokens")]
)
def test_a_prompt_is_not_scored_by_a_search(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any], param: str
):
    assert refused(complete(client, use_beam_search=True, echo=True, **fields))[0] == param
    assert not frontend.requests


def test_there_are_at_most_as_many_beams_as_there_is_room_for(
    client: TestClient, frontend: FakeFrontend
):
    frontend.most = 8
    assert complete(client, ["a", "b"], use_beam_search=True, best_of=4).status_code == 200
    assert refused(complete(client, ["a", "b"], use_beam_search=True, best_of=5))[0] == "best_of"
    frontend.card = replace(frontend.card, eos_token_ids=frozenset({1, 2}))
    frontend.most = 100
    message = error_of(complete(client, use_beam_search=True, n=19))["message"]
    assert "between 19 and 18" not in message
    assert "at most 18" in message
    assert complete(client, use_beam_search=True, n=18).status_code == 200
    assert complete(client, use_beam_search=True, n=20, ignore_eos=True).status_code == 200


def test_without_a_prefix_cache_there_is_none(client: TestClient, frontend: FakeFrontend):
    frontend.card = replace(frontend.card, prefix_cache=False)
    error = error_of(complete(client, use_beam_search=True, n=2))
    assert (error["param"], error["code"]) == ("use_beam_search", "unsupported_parameter")
    assert "needs the prefix cache" in error["message"]
    assert complete(client, n=2).status_code == 200


def test_without_a_search_the_best_of_more_are_ranked_in_completions_alone(
    client: TestClient, frontend: FakeFrontend
):
    assert refused(chat(client, best_of=2)) == ("best_of", "unsupported_parameter")
    assert not frontend.requests
    frontend.logprobs = [-3.0, -1.0, -2.0]
    asked = {"n": 2, "best_of": 3}
    body = complete(client, use_beam_search=False, **asked).json()
    assert [each["text"] for each in body["choices"]] == [f"{ANSWER}1", f"{ANSWER}2"]
    body = complete(client, use_beam_search=True, **asked).json()
    assert [each["text"] for each in body["choices"]] == [f"{ANSWER}0", f"{ANSWER}1"]
    assert [(each.n, each.beams) for each in frontend.requests] == [(3, None), (2, Beams(width=3))]


def test_an_echo_stands_before_each_answer(client: TestClient):
    body = complete(client, "Hi", use_beam_search=True, n=2, echo=True).json()
    assert [each["text"] for each in body["choices"]] == [f"Hi{ANSWER}0", f"Hi{ANSWER}1"]


def test_usage_says_how_many_pages_were_shared(client: TestClient, frontend: FakeFrontend):
    frontend.shared_pages = 7
    usage = complete(client, ["a", "b"], use_beam_search=True, n=2).json()["usage"]
    assert usage["radixserve"]["shared_pages"] == 14
    frontend.shared_pages = None
    usage = complete(client, return_cached_tokens_details=True).json()["usage"]
    assert "shared_pages" not in usage["radixserve"]
    assert "radixserve" not in complete(client).json()["usage"]
