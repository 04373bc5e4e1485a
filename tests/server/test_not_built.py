"""What others cache, log or load and this server does not yet: a 400 that says so, and no work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.text.tokenizer import Tokenizer
from tests.server.asking import USER, chat, complete, error_of, refused
from tests.server.fake import FakeFrontend
from tests.text.tiny import tiny_tokenizer_dir


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_path": "x"},
        {"lora_id": 1},
        {"mm_processor_kwargs": {"size": 8}},
        {"prompt_embeds": "AAAA"},
        {"structural_tag": {"type": "structural_tag"}},
        {"guided_decoding_backend": "outlines"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_adapters_images_and_tools_are_refused_by_name_before_any_work(
    client: TestClient, frontend: FakeFrontend, fields: dict[str, Any]
):
    [name] = fields
    assert refused(chat(client, **fields)) == (name, "unsupported_parameter")
    assert refused(complete(client, **fields)) == (name, "unsupported_parameter")
    assert not frontend.requests


def test_an_adapter_asked_for_as_a_model_is_not_answered_by_the_base_model(
    client: TestClient, frontend: FakeFrontend
):
    for name in (f"{frontend.card.name}:adapter", f"{frontend.card.name}/adapter", "adapter"):
        assert error_of(chat(client, model=name), 404)["code"] == "model_not_found"
    assert not frontend.requests
    assert chat(client, model=frontend.card.name).status_code == 200


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image", "input_audio", "video_url"])
def test_a_content_part_that_is_no_text_is_refused_by_its_place(tmp_path: Path, kind: str):
    frontend = FakeFrontend()
    tiny_tokenizer_dir(tmp_path)
    frontend.tokenizer = Tokenizer.load(tmp_path)
    url = {"url": "data:image/png;base64,AAAA"}
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: url}]
    with TestClient(create_app(frontend), raise_server_exceptions=False) as client:
        response = chat(client, messages=[*USER, {"role": "user", "content": parts}])
        assert refused(response)[0] == "messages.1.content.1.type"
        assert kind in error_of(response)["message"]
        assert not frontend.requests
        text = [{"role": "user", "content": parts[:1]}]
        assert chat(client, messages=text).status_code == 200
