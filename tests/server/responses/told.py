"""Short ways to ask for responses, and to read what is told."""

from __future__ import annotations

import json
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def ask(
    client: TestClient, input: Any = "Hi", headers: dict[str, str] | None = None, **fields: Any
) -> Response:
    return client.post(PATH, json={"input": input, **fields}, headers=headers)


def events(response: Response) -> list[dict[str, Any]]:
    """Those of a stream, whose names, numbers and end are checked."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [each for each in response.text.split("\n\n") if not each.startswith(":")]
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    told = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        assert body["sequence_number"] == number
        told.append(body)
    return told


def kinds(told: list[dict[str, Any]]) -> list[str]:
    """The types of events without those that repeat."""
    names = [each["type"].removeprefix("response.") for each in told]
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]


def joined(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as somebody builds them who believes nothing but the events of their growth."""
    items: list[dict[str, Any]] = []
    for each in told:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(items)
            assert each["item"]["status"] == "in_progress"
            items.append(each["item"])
            continue
        if "item_id" not in each:
            continue
        item = items[-1]
        assert (each["item_id"], each["output_index"]) == (item["id"], len(items) - 1)
        if kind == "content_part.added":
            assert each["content_index"] == len(item["content"])
            item["content"].append(each["part"])
        elif kind == "function_call_arguments.delta":
            item["arguments"] += each["delta"]
        elif kind.endswith(".delta"):
            part = item["content"][each["content_index"]]
            part["text"] += each["delta"]
            if "logprobs" in each:
                part["logprobs"] += each["logprobs"]
        elif kind == "function_call_arguments.done":
            assert each["arguments"] == item["arguments"]
        elif kind == "content_part.done":
            assert each["part"] == item["content"][each["content_index"]]
        elif kind.endswith(".done"):
            assert each["text"] == item["content"][each["content_index"]]["text"]
    return items


def text(response: dict[str, Any]) -> str:
    """What a response says."""
    said = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in said for part in item["content"])


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "id": "x", "call_id": "x"} for item in items]
