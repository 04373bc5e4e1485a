"""Honoured, refused, or listed: nothing that a client sends is dropped in silence."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from radixserve.server.fields import CHAT_REFUSED, COMPLETION_REFUSED, IGNORED
from radixserve.server.wire import ChatRequest, CompletionRequest
from tests.server.asking import USER, chat, complete, events, refused

HEADER = "x-radixserve-ignored"


def test_the_three_tables_do_not_overlap():
    for struct, table in ((ChatRequest, CHAT_REFUSED), (CompletionRequest, COMPLETION_REFUSED)):
        honoured = set(struct.__struct_fields__)
        assert not honoured & table.keys()
        assert not honoured & IGNORED
        assert not table.keys() & IGNORED


@pytest.mark.parametrize("name", sorted(CHAT_REFUSED))
def test_what_would_change_the_answer_is_refused_by_name(client: TestClient, name: str):
    assert refused(chat(client, **{name: {"some": "thing"}})) == (name, "unsupported_parameter")
    for neutral in (None, *CHAT_REFUSED[name]):
        response = chat(client, **{name: neutral})
        assert response.status_code == 200
        assert HEADER not in response.headers


@pytest.mark.parametrize("name", sorted(COMPLETION_REFUSED))
def test_completions_refuse_it_too(client: TestClient, name: str):
    assert refused(complete(client, **{name: [1]})) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("use_beam_search", True),
        ("best_of", 2),
        ("structural_tag", {"structures": [{"begin": "a" * 1000}]}),
    ],
)
def test_values_that_ask_for_something_are_no_neutral_ones(
    client: TestClient, name: str, value: object
):
    assert refused(chat(client, **{name: value})) == (name, "unsupported_parameter")


def test_what_changes_nothing_is_listed(client: TestClient):
    response = chat(client, user="u", metadata={"a": "b"}, temprature=1)
    assert response.headers[HEADER] == "metadata, temprature, user"
    stream = chat(client, user="u", stream=True, stream_options={"include_obfuscation": False})
    assert stream.headers[HEADER] == "stream_options.include_obfuscation, user"
    assert events(stream)
    assert HEADER not in chat(client).headers


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_every_harmless_field_is_listed(client: TestClient, name: str):
    assert chat(client, **{name: {}}).headers[HEADER] == name
    assert complete(client, **{name: 1}).headers[HEADER] == name


def test_cache_markers_on_content_parts_are_harmless_and_listed(client: TestClient):
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    response = chat(client, messages=[{"role": "user", "content": [part]}, *USER])
    assert response.headers[HEADER] == "messages.content.cache_control"


def test_names_cannot_break_the_header(client: TestClient):
    response = chat(client, **{"a\r\nset-cookie: x": 1, "ü, b": 1, "": 1})
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    listed = response.headers[HEADER].split(", ")
    assert len(listed) == 3
    many = chat(client, **{f"k{i}": 1 for i in range(100)}).headers[HEADER]
    assert many.endswith(", ...")
