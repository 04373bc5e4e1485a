"""Responses are kept for a while: to be looked at, gone on from, cancelled and forgotten."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.responses.store import OVERHEAD, Record, Responses, turn_of
from radixserve.server.tenants.registry import Registry
from tests.server.asking import HANG, error_of, refused
from tests.server.fake import FakeFrontend, saying
from tests.server.handed import Message, hand
from tests.server.responses.told import PATH, TOOL, ask, events, text
from tests.server.tenants.people import FILE, bearer, client_of, limited, registry, write
from tests.text.parsing.samples import SAMPLES


def prompts(frontend: FakeFrontend) -> list[str]:
    decode = frontend.tokenizer.decode
    return [decode([*request.prompt[3::4]]) for request in frontend.requests]


def test_a_response_is_given_again_until_it_is_deleted(client: TestClient):
    for response in (ask(client).json(), events(ask(client, stream=True))[-1]["response"]):
        path = f"{PATH}/{response['id']}"
        assert client.get(path).json() == response
        assert client.post(f"{path}/cancel").json() == response
        assert client.delete(path).json() == {
            "id": response["id"],
            "object": "response",
            "deleted": True,
            "released_pages": 0,
        }
        for gone in (client.get(path), client.delete(path), client.post(f"{path}/cancel")):
            assert error_of(gone, 404)["code"] == "response_not_found"
        assert client.get(f"{path}/input_items").status_code == 404


def test_what_is_not_to_be_stored_is_not(client: TestClient):
    response = ask(client, store=False).json()
    assert response["store"] is False
    assert client.get(f"{PATH}/{response['id']}").status_code == 404
    error = error_of(ask(client, previous_response_id=response["id"]), 404)
    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )


def test_a_stored_response_is_not_streamed_again(client: TestClient):
    path = f"{PATH}/{ask(client).json()['id']}"
    assert refused(client.get(path, params={"stream": "true"}))[0] == "stream"
    assert client.get(path, params={"stream": "false"}).status_code == 200


def test_a_conversation_goes_on_from_its_last_response(client: TestClient, frontend: FakeFrontend):
    first = ask(client, "One", instructions="Be good.").json()
    second = ask(client, "Two", previous_response_id=first["id"]).json()
    ask(client, "Three", previous_response_id=second["id"], instructions="Be bad.")
    assert second["previous_response_id"] == first["id"]
    assert prompts(frontend) == [
        "system: Be good.\nuser: One\nassistant:",
        "user: One\nassistant: Hello!\nuser: Two\nassistant:",
        "system: Be bad.\nuser: One\nassistant: Hello!\nuser: Two\nassistant: Hello!\n"
        "user: Three\nassistant:",
    ]
    client.delete(f"{PATH}/{first['id']}")
    error = error_of(ask(client, "Four", previous_response_id=second["id"]), 404)
    assert "gone" in error["message"]


def test_a_call_and_its_output_need_not_be_sent_again():
    sample = SAMPLES["thought and called"]
    tools = [{**TOOL, "name": sample.calls[0][0]}]
    with saying(sample.text, sample.tools, sample.style) as (client, frontend):
        seen: list[Any] = []
        render = frontend.tokenizer.render_chat

        def noted(messages: list[dict[str, Any]], **settings: Any) -> str:
            seen.append(messages)
            return render(messages, **settings)

        frontend.tokenizer.render_chat = noted  # type: ignore[method-assign]
        first = ask(client, tools=tools).json()
        [call] = [item for item in first["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21"}
        ask(client, [result], previous_response_id=first["id"], tools=tools)
        sent = [{"role": "user", "content": "Hi"}, *first["output"], result]
        ask(client, sent, tools=tools)
        referred = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        ask(client, [sent[0], *referred, result], tools=tools)
        assert seen[1] == seen[2] == seen[3]
        assert seen[1][1]["reasoning"] == sample.reasoning
        assert seen[1][1]["tool_calls"][0]["function"]["arguments"] == call["arguments"]
        wrong = ask(client, [result], tools=tools)
        assert refused(wrong)[0] == "input.0.call_id"


def test_input_items_come_in_pages(client: TestClient):
    given = [{"role": "user", "content": str(number)} for number in range(5)]
    response = ask(client, given).json()
    path = f"{PATH}/{response['id']}/input_items"
    page = client.get(path, params={"order": "asc", "limit": 3}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["0", "1", "2"]
    assert (page["object"], page["has_more"]) == ("list", True)
    assert page["last_id"] == page["data"][-1]["id"]
    rest = client.get(path, params={"order": "asc", "after": page["last_id"]}).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["3", "4"]
    assert not rest["has_more"]
    back = client.get(path).json()["data"]
    assert [item["content"][0]["text"] for item in back] == ["4", "3", "2", "1", "0"]
    ids = {item["id"] for item in [*back, *response["output"]]}
    assert len(ids) == 6
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "msg_1"}):
        assert refused(client.get(path, params=wrong))[0] in wrong


def test_a_tenant_sees_its_own_responses_only():
    frontend = FakeFrontend()
    with client_of(frontend) as client:
        response = ask(client, headers=bearer("alice")).json()
        path = f"{PATH}/{response['id']}"
        [item] = response["output"]
        assert client.get(path, headers=bearer("alice")).json() == response
        for asked in (
            client.get(path, headers=bearer("bob")),
            client.get(f"{path}/input_items", headers=bearer("bob")),
            client.post(f"{path}/cancel", headers=bearer("bob")),
            client.delete(path, headers=bearer("bob")),
            ask(client, headers=bearer("bob"), previous_response_id=response["id"]),
            ask(client, [{"type": "item_reference", "id": item["id"]}], headers=bearer("bob")),
        ):
            assert error_of(asked, 404)
        assert client.get(path).status_code == 401
        assert ask(client, headers=bearer("mute")).status_code == 403
        assert client.get(path, headers=bearer("mute")).status_code == 403
        assert client.get(path, headers=bearer("alice")).json() == response
    namespaces = {request.namespace for request in frontend.requests}
    assert len(namespaces) == 1


def test_whoever_gets_a_name_gets_no_responses_with_it(tmp_path):
    path = write(tmp_path)
    with client_of(FakeFrontend(), Registry.from_file(path)) as client:
        mine = f"{PATH}/{ask(client, headers=bearer('alice')).json()['id']}"
        other = f"{PATH}/{ask(client, headers=bearer('bob')).json()['id']}"
        for name in ("nobody", "alice"):
            write(tmp_path, FILE.replace("tenants.alice", f"tenants.{name}"))
            client.post("/v1/admin/reload", headers=bearer("boss")).raise_for_status()
        assert client.get(mine, headers=bearer("alice")).status_code == 404
        assert client.get(other, headers=bearer("bob")).status_code == 200


def test_responses_count_against_limits():
    with client_of(FakeFrontend(), registry(limited("requests_per_minute = 1"))) as client:
        first = ask(client, headers=bearer("alice"))
        assert first.status_code == 200
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        over = ask(client, headers=bearer("alice"), stream=True)
        assert error_of(over, 429)["code"] == "rate_limit_exceeded"
        path = f"{PATH}/{first.json()['id']}"
        assert client.get(path, headers=bearer("alice")).status_code == 200


def record(size: int = 0) -> Record:
    return Record(b"x" * size, b"", None)


def test_the_store_is_bounded_and_the_largest_tenant_gives_first():
    gone: list[str] = []
    store = Responses(lambda *each: gone.append(each[-1]), most=4, most_bytes=10 * OVERHEAD)
    store.put("small", "s", record())
    for number in range(10):
        store.put("large", str(number), record())
        assert len(store) <= 4
    assert [number for number in range(10) if store.get("large", str(number))] == [7, 8, 9]
    assert store.get("small", "s")
    assert gone == [turn_of(str(number)) for number in range(7)]
    store.put("large", "big", record(8 * OVERHEAD))
    assert store.size <= 10 * OVERHEAD
    assert store.get("small", "s")
    store.put("large", "huge", record(100 * OVERHEAD))
    assert store.get("large", "huge") is None
    assert gone[7:] == [turn_of(each) for each in ("7", "8", "9", "huge")]
    assert store.size == 10 * OVERHEAD
    assert store.get("small", "s")
    assert store.remove("large", "big")
    assert store.remove("small", "s")
    assert (len(store), store.size) == (0, 0)


def test_what_is_used_stays():
    store = Responses(lambda *_: None, most=3)
    for name in "abc":
        store.put("t", name, record())
    store.chain("t", "a")
    store.put("t", "d", record())
    assert [name for name in "abcd" if store.get("t", name)] == ["a", "c", "d"]
    store.put("t", "a", record(100))
    assert (len(store), store.size) == (3, 3 * OVERHEAD + 100)


@pytest.mark.parametrize("how", ["cancel", "DELETE"])
def test_a_stream_is_cancelled_by_its_id(frontend: FakeFrontend, how: str):
    frontend.hold(after=3)
    with TestClient(create_app(frontend)) as client:
        told: list[dict[str, Any]] = []
        stream = threading.Thread(target=lambda: told.extend(events(ask(client, stream=True))))
        stream.start()
        assert frontend.asked.acquire(timeout=HANG)
        live = client.app.state.responses._live  # type: ignore[attr-defined]
        while not live:
            pass
        [(_, id)] = live
        path = f"{PATH}/{id}"
        while text(running := client.get(path).json()) != "Hel":
            assert running["status"] == "in_progress"
        assert client.get(f"{path}/input_items").json()["data"][0]["role"] == "user"
        assert error_of(ask(client, previous_response_id=id), 404)
        if how == "cancel":
            ended = client.post(f"{path}/cancel").json()
            assert ended["status"] == "cancelled"
        else:
            assert client.delete(path).json()["deleted"]
        stream.join(timeout=HANG)
        assert frontend.aborted.acquire(timeout=HANG)
        last = told[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert (text(last["response"]), last["response"]["output"][0]["status"]) == (
            "Hel",
            "incomplete",
        )
        assert not live
        again = client.get(path)
        if how == "cancel":
            assert again.json() == ended == last["response"]
            assert client.post(f"{path}/cancel").json() == ended
        else:
            assert again.status_code == 404


def test_a_stream_whose_reader_leaves_is_stored_as_cancelled(frontend: FakeFrontend):
    frontend.hold(after=3)
    app = create_app(frontend)

    async def scenario() -> None:
        gone = asyncio.Event()
        reader = asyncio.create_task(hand(app, PATH, {"input": "Hi", "stream": True}, gone=gone))
        store: Responses = app.state.responses
        while not (store._live and next(iter(store._live.values())).turn.response.output):
            await asyncio.sleep(0)
        [(tenant, id)] = store._live
        gone.set()
        await reader
        kept = store.get(tenant, id)
        assert kept is not None
        assert b'"status":"cancelled"' in kept.response
        assert b'"text":"Hel"' in kept.response
        assert not store._live

    asyncio.run(asyncio.wait_for(scenario(), HANG))
    assert frontend.aborted.acquire(timeout=HANG)


def test_a_stream_that_a_server_leaves_behind_has_failed(frontend: FakeFrontend):
    frontend.hold(after=3)
    app = create_app(frontend)
    sent: list[Message] = []

    def told() -> bytes:
        return b"".join(each.get("body", b"") for each in sent)

    async def scenario() -> None:
        serving = asyncio.create_task(hand(app, PATH, {"input": "Hi", "stream": True}, sent=sent))
        while b'"delta":"l"' not in told():
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), HANG))
    response = Response(200, headers={"content-type": "text/event-stream"}, content=told())
    error, last = events(response)[-2:]
    assert (error["type"], error["code"]) == ("error", "server_overloaded")
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert text(last["response"]) == "Hel"
    store: Responses = app.state.responses
    assert store.get("", last["response"]["id"])
    assert not store._live
