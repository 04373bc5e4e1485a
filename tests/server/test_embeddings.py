"""``POST /v1/embeddings``: what may be sent, and what comes back."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import openai
import pytest
from httpx2 import Response
from msgspec.structs import replace
from starlette.testclient import TestClient

from radixserve.errors import DeadlineError
from radixserve.server.app import create_app
from radixserve.server.embeddings import AT_ONCE, MAX_INPUTS
from radixserve.server.service import Settings
from tests.server.asking import error_of, refused
from tests.server.fake import MODEL, FakeFrontend
from tests.server.sockets import serving
from tests.server.tenants.people import bearer, client_of, limited, registry


def embed(client: TestClient, sent: Any = "Hi", **fields: Any) -> Response:
    return client.post("/v1/embeddings", json={"input": sent, **fields})


def vectors(response: Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [each["embedding"] for each in response.json()["data"]]


def unit(*numbers: float) -> Any:
    """With a length of 1, as single precision has it."""
    length = np.linalg.norm(numbers)
    return pytest.approx([each / length for each in numbers], abs=1e-6)


def test_a_text_becomes_a_vector_of_length_one(client: TestClient, frontend: FakeFrontend):
    body = embed(client, "Hi!", model=MODEL).json()
    assert body["object"] == "list"
    assert body["model"] == MODEL
    [found] = body["data"]
    assert (found["object"], found["index"]) == ("embedding", 0)
    assert found["embedding"] == unit(ord("H"), ord("!"), 3, 0)
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 3
    [request] = frontend.requests
    assert request.sampling.pooling == "last"
    assert request.sampling.max_tokens == 1
    assert request.cache == "on"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (["Hi", "You"], [(72, 105, 2), (89, 117, 3)]),
        ([72, 105], [(72, 105, 2)]),
        ([[72, 105], [89]], [(72, 105, 2), (89, 89, 1)]),
    ],
)
def test_every_form_of_input_has_its_vectors_in_order(client: TestClient, sent: Any, expected: Any):
    answer = embed(client, sent)
    assert vectors(answer) == [unit(*each, 0) for each in expected]
    assert [each["index"] for each in answer.json()["data"]] == list(range(len(expected)))
    assert answer.json()["usage"]["prompt_tokens"] == sum(each[2] for each in expected)


def test_base64_holds_the_same_numbers(client: TestClient):
    [plain] = vectors(embed(client))
    [coded] = vectors(embed(client, encoding_format="base64"))
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == pytest.approx(plain)  # type: ignore[arg-type]


def test_fewer_dimensions_are_the_first_ones_and_their_length_is_one_again(client: TestClient):
    assert vectors(embed(client, dimensions=2)) == [unit(ord("H"), ord("i"))]
    assert vectors(embed(client, dimensions=4)) == vectors(embed(client))


def test_a_mean_needs_every_token_and_leaves_the_cache_alone(
    client: TestClient, frontend: FakeFrontend
):
    embed(client, pooling="mean")
    [request] = frontend.requests
    assert (request.sampling.pooling, request.cache) == ("mean", "off")


def test_what_was_reused_is_told(client: TestClient):
    embed(client, "Hello")
    details = embed(client, "Hello").json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == 4


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input.1", "invalid_value"),
        ({"input": ["a", 1]}, "input.1", "invalid_type"),
        ({"input": [[1], []]}, "input.1", "invalid_value"),
        ({"input": [1, 256]}, "input.1", "invalid_value"),
        ({"input": [[1], [-1]]}, "input.1.0", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", "invalid_value"),
        ({"input": ["a", "b" * 200]}, "input.1", "context_length_exceeded"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"dimensions": 5}, "dimensions", "invalid_value"),
        ({"dimensions": "2"}, "dimensions", "invalid_type"),
        ({"encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"pooling": "cls"}, "pooling", "invalid_value"),
        ({"truncate_prompt_tokens": 8}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any], param: str, code: str
):
    sent = {"input": "a", **fields}
    assert refused(client.post("/v1/embeddings", json=sent)) == (param, code)
    assert not frontend.requests


def test_input_must_be_there(client: TestClient):
    answer = client.post("/v1/embeddings", json={"model": MODEL})
    assert refused(answer) == ("input", "missing_required_parameter")


def test_another_model_and_one_that_has_no_vectors_are_refused(
    client: TestClient, frontend: FakeFrontend
):
    assert error_of(embed(client, model="other"), 404)["code"] == "model_not_found"
    frontend.card = replace(frontend.card, embedding_size=None)
    assert refused(embed(client)) == ("model", "unsupported_parameter")


def test_what_has_no_effect_is_listed(client: TestClient):
    answer = embed(client, user="me", input_type="query", priority=1)
    assert answer.headers["x-radixserve-ignored"] == "input_type, priority, user"


def test_many_inputs_are_given_to_the_engine_a_few_at_once(frontend: FakeFrontend):
    running, most = 0, 0
    generate = frontend.generate

    async def counted(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        async for delta in generate(request):
            yield delta
        running -= 1

    frontend.generate = counted  # type: ignore[method-assign]
    with TestClient(create_app(frontend)) as client:
        found = vectors(embed(client, [f"{number:04}" for number in range(MAX_INPUTS)]))
    assert len(found) == MAX_INPUTS
    assert found[17] == unit(ord("0"), ord("7"), 4, 0)
    assert 1 < most <= AT_ONCE


def test_where_there_was_no_time_for_one_there_is_no_half_answer(frontend: FakeFrontend):
    generate = frontend.generate

    async def late(request):
        if request.prompt[-1] == ord("!"):
            raise DeadlineError("Too late.")
        async for delta in generate(request):
            yield delta

    frontend.generate = late  # type: ignore[method-assign]
    with TestClient(create_app(frontend)) as client:
        assert error_of(embed(client, ["a", "b!"]), 504)["code"] == "deadline_exceeded"
        assert len(vectors(embed(client, ["a", "b"]))) == 2


def test_many_token_ids_are_no_odd_body(client: TestClient):
    ids = [[1, 2, 3, 4, 5, 6, 7, 8, 9] * 20] * 400
    assert len(vectors(embed(client, ids))) == 400


def test_openais_client_reads_them():
    with (
        serving(create_app(FakeFrontend(), settings=Settings(api_keys=("key",)))) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="key", max_retries=0) as client,
    ):
        # It asks for base64, and decodes it.
        found = client.embeddings.create(model=MODEL, input=["Hi", "You"], dimensions=3)
        assert found.data[1].embedding == unit(89, 117, 3)
        assert found.usage.total_tokens == 5
        plain = client.embeddings.create(model=MODEL, input="Hi", encoding_format="float")
        assert plain.data[0].embedding == unit(72, 105, 2, 0)


def test_each_tenant_has_vectors_in_its_own_name_and_within_its_limits(frontend: FakeFrontend):
    tenants = registry(limited("tokens_per_minute = 9"))
    with client_of(frontend, tenants) as client:
        for name in ("alice", "bob"):
            vectors(client.post("/v1/embeddings", json={"input": "Hi!"}, headers=bearer(name)))
        first, second = frontend.requests
        assert (first.tenant, second.tenant) == ("alice", "bob")
        assert first.namespace != second.namespace
        sent = {"input": ["Hello", "you"]}
        over = client.post("/v1/embeddings", json=sent, headers=bearer("alice"))
        assert error_of(over, 429)["code"] == "rate_limit_exceeded"
        assert client.post("/v1/embeddings", json=sent).status_code == 401
        assert len(frontend.requests) == 2
    with client_of(FakeFrontend()) as client:
        mute = client.post("/v1/embeddings", json={"input": "Hi"}, headers=bearer("mute"))
        assert error_of(mute, 403)["code"] == "permission_denied"


def test_a_mode_of_the_cache_is_passed_on(client: TestClient, frontend: FakeFrontend):
    embed(client, cache={"mode": "read-only"})
    assert frontend.requests[-1].cache == "read-only"
    assert json.loads(embed(client, cache={"mode": "all"}).text)["error"]["param"] == "cache.mode"
