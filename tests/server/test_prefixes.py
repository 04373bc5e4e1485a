"""Named prefixes, and those that are there from the start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from radixserve.errors import ConfigError
from radixserve.server.app import create_app
from radixserve.server.prefixes import MOST_OF_A_TENANT, Prefixes, _warm_all, read_prefixes
from radixserve.server.tenants.registry import Registry
from radixserve.tenants.file import Roster, Tenant
from tests.server.asking import CHAT, error_of, refused
from tests.server.fake import FakeFrontend
from tests.server.handed import hand
from tests.server.stack import Stack, stack, usage
from tests.server.tenants import people
from tests.server.tenants.people import bearer, client_of

PATH = "/v1/cache/prefixes"
SYSTEM = {"role": "system", "content": "Be kind to all who ask."}
USER = {"role": "user", "content": "Who?"}


def test_a_named_prefix_is_found_by_whoever_begins_so(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            put = await server.client.put(f"{PATH}/kind", json={"messages": [SYSTEM]})
            shown = put.json()
            assert (shown["object"], shown["name"], shown["keep"]) == ("prefix", "kind", "granted")
            assert shown["computed_tokens"] == shown["tokens"] == shown["kept_tokens"] > 8
            asked = await server.ask(CHAT, messages=[SYSTEM, USER], max_tokens=1)
            assert usage(asked)["prompt_tokens_details"]["cached_tokens"] >= shown["tokens"]
            listed = (await server.client.get(PATH)).json()
            assert [each["name"] for each in listed["data"]] == ["kind"]
            again = (await server.client.post(f"{PATH}/kind/prewarm", json={})).json()
            assert again["cached_tokens"] == again["tokens"] - 1
            await server.settle()

    asyncio.run(scenario())


def test_what_is_let_go_of_is_unknown_and_goes_first(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            await server.client.put(f"{PATH}/kind", json={"messages": [SYSTEM]})
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept > 0
            gone = (await server.client.delete(f"{PATH}/kind")).json()
            assert gone["deleted"]
            assert gone["released_pages"] > 0
            await server.ask(max_tokens=1, prompt=[5])
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept == 0
            for method in ("DELETE", "POST"):
                path = f"{PATH}/kind" + ("/prewarm" if method == "POST" else "")
                error = error_of(await server.client.request(method, path, json={}), 404)
                assert (error["param"], error["code"]) == ("prefix", "prefix_not_found")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("other", "reused"),
    [
        ({"messages": [{"role": "system", "content": "Be brief, and answer all the same."}]}, True),
        ({"messages": [SYSTEM], "cache_salt": "of today"}, False),
    ],
)
def test_what_had_the_name_before_is_let_go_of(tmp_path, other: dict[str, Any], reused: bool):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            for fields in ({"messages": [SYSTEM]}, {"messages": [SYSTEM]}, other):
                shown = (await server.client.put(f"{PATH}/kind", json=fields)).json()
            assert (shown["cached_tokens"] > 0) == reused
            await server.ask(max_tokens=1, prompt=[5])
            await server.settle()
            kept = server.engine.stats().tenants[""].pages_kept
            assert kept == -(-shown["kept_tokens"] // 4)
            gone = (await server.client.delete(f"{PATH}/kind")).json()
            assert gone["released_pages"] == kept
            await server.ask(max_tokens=1, prompt=[5])
            await server.settle()
            assert server.engine.stats().tenants[""].pages_kept == 0

    asyncio.run(scenario())


async def named(server: Stack) -> list[str]:
    return [each["name"] for each in (await server.client.get(PATH)).json()["data"]]


async def kept(server: Stack) -> int:
    """Pages, once the engine has counted anew."""
    await server.ask(max_tokens=1, prompt=[5])
    await server.settle()
    return server.engine.stats().tenants[""].pages_kept


@asynccontextmanager
async def computing(directory: Path, **settings: Any) -> AsyncIterator[Stack]:
    """A server whose model computes a prefix in more than one step."""
    few = {"page_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 4}
    async with stack(directory, **few, **settings) as server:
        yield server
        server.model.free()
        await server.settle()


@pytest.mark.parametrize("meanwhile", ["deleted", "replaced"])
@pytest.mark.parametrize("asked", [True, False])
def test_what_is_computed_again_does_not_come_back_when_it_has_lost_its_name(
    tmp_path, meanwhile: str, asked: bool
):
    async def scenario() -> None:
        async with computing(tmp_path) as server:
            await server.client.put(f"{PATH}/kind", json={"messages": [SYSTEM]})
            await server.client.post("/reset_prefix_cache")
            prefixes: Prefixes = server.app.state.prefixes
            other = replace(prefixes.get("", "kind"), ttl="1h")
            server.model.hold()
            if asked:
                work = server.client.post(f"{PATH}/kind/prewarm", json={})
            else:  # as when the engine has lost it
                work = _warm_all(server.app.state.service, prefixes)
            warming = asyncio.create_task(work)
            await server.steps(2)
            if meanwhile == "deleted":
                deleting = asyncio.create_task(server.client.delete(f"{PATH}/kind"))
                while await named(server):
                    await asyncio.sleep(0)
            else:
                prefixes.put("", other, prefixes.of("")[0])
            server.model.free()
            warmed = await warming
            if asked:
                assert error_of(warmed, 404)["code"] == "prefix_not_found"
            if meanwhile == "deleted":
                assert (await deleting).status_code == 200
                assert await named(server) == []
            else:
                assert prefixes.get("", "kind") is other
            assert await kept(server) == 0

    asyncio.run(scenario())


def test_one_whose_client_hangs_up_keeps_nothing(tmp_path):
    async def scenario() -> None:
        async with computing(tmp_path) as server:
            server.model.hold()
            gone = asyncio.Event()
            body = {"messages": [SYSTEM]}
            leaving = hand(server.app, f"{PATH}/kind", body, method="PUT", gone=gone)
            putting = asyncio.create_task(leaving)
            await server.steps(3)
            gone.set()
            while server.engine._commands.empty():
                await asyncio.sleep(0)
            server.model.free()
            await putting
            assert await kept(server) == 0
            assert await named(server) == []

    asyncio.run(scenario())


def test_who_hangs_up_lets_go_of_nothing_that_another_still_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ended: list[tuple[Any, ...]] = []

    async def scenario() -> None:
        async with computing(tmp_path) as server:
            service = server.app.state.service
            monkeypatch.setattr(service, "end_session_soon", lambda *each: ended.append(each))
            server.model.hold()
            gone, body = asyncio.Event(), {"messages": [SYSTEM]}
            leaving = hand(server.app, f"{PATH}/kind", body, method="PUT", gone=gone)
            staying = hand(server.app, f"{PATH}/kind", body, method="PUT")
            tasks = [asyncio.create_task(each) for each in (leaving, staying)]
            await server.steps(3)
            gone.set()
            await tasks[0]
            server.model.free()
            await tasks[1]
            assert await named(server) == ["kind"]
            assert ended == []

    asyncio.run(scenario())


def test_one_of_a_tenant_that_is_gone_meanwhile_is_not_there(tmp_path):
    path = people.write(tmp_path)
    tenants = Registry.from_file(path)

    async def scenario() -> None:
        async with computing(tmp_path, tenants=tenants) as server:
            server.model.hold()
            body = {"messages": [SYSTEM]}
            asked = server.client.put(f"{PATH}/kind", json=body, headers=bearer("alice"))
            putting = asyncio.create_task(asked)
            await server.steps(2)
            people.write(tmp_path, path.read_text("utf-8").replace("tenants.alice", "tenants.eve"))
            leaving = asyncio.create_task(tenants.reload())
            while tenants.named("alice"):
                await asyncio.sleep(0)
            server.model.free()
            await leaving
            assert error_of(await putting, 403)["code"] == "permission_denied"
            assert server.app.state.prefixes.all() == []

    asyncio.run(scenario())


def test_names_are_their_tenants_alone():
    with client_of(FakeTemplates()) as client:
        body = {"messages": [SYSTEM]}
        assert client.put(f"{PATH}/kind", json=body, headers=bearer("alice")).status_code == 200
        assert client.get(PATH, headers=bearer("bob")).json()["data"] == []
        assert client.delete(f"{PATH}/kind", headers=bearer("bob")).status_code == 404
        assert client.delete(f"{PATH}/kind", headers=bearer("alice")).status_code == 200


def test_a_tenant_has_a_bounded_number_of_them():
    with TestClient(create_app(FakeTemplates())) as client:
        for number in range(MOST_OF_A_TENANT):
            answer = client.put(f"{PATH}/p{number}", json={"messages": [SYSTEM]})
            assert answer.status_code == 200
        assert refused(client.put(f"{PATH}/more", json={"messages": [SYSTEM]}))[1] == (
            "too_many_prefixes"
        )
        assert client.put(f"{PATH}/p0", json={"messages": [SYSTEM]}).status_code == 200


def test_those_that_are_still_being_computed_count_too(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:

            async def put(number: int) -> int:
                body = {"messages": [SYSTEM]}
                return (await server.client.put(f"{PATH}/p{number}", json=body)).status_code

            more = 5
            found = await asyncio.gather(*map(put, range(MOST_OF_A_TENANT + more)))
            assert (found.count(200), found.count(400)) == (MOST_OF_A_TENANT, more)
            assert len((await server.client.get(PATH)).json()["data"]) == MOST_OF_A_TENANT
            await server.settle()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "body", "param"),
    [
        ("-", {"messages": [SYSTEM]}, "prefix"),
        ("x" * 65, {"messages": [SYSTEM]}, "prefix"),
        ("a", {}, "messages"),
        ("a", {"messages": [SYSTEM], "ttl": "48h"}, "ttl"),
        ("a", {"messages": [SYSTEM], "model": "other"}, "model"),
    ],
)
def test_a_prefix_that_cannot_be_is_refused(name: str, body: Any, param: str):
    with TestClient(create_app(FakeTemplates())) as client:
        answer = client.put(f"{PATH}/{name}", json=body)
        assert error_of(answer, 404 if param == "model" else 400)["param"] == param


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/cache/prewarm"),
        ("PUT", f"{PATH}/long"),
        ("PUT", "/v1/cache/public/long"),
    ],
)
def test_what_must_be_too_long_is_refused_before_it_is_tokenized(method: str, path: str):
    frontend = FakeFrontend()
    rendered = []
    render = frontend.tokenizer.render_chat

    def counted(*arguments: Any, **settings: Any) -> str:
        rendered.append(arguments)
        return render(*arguments, **settings)

    frontend.tokenizer.render_chat = counted  # type: ignore[method-assign]
    with TestClient(create_app(frontend)) as client:
        long = {"role": "system", "content": "x" * 1000}
        answer = client.request(method, path, json={"messages": [long]})
        assert refused(answer) == ("messages", "context_length_exceeded")
        assert (len(rendered), frontend.tokenizer.encoded) == (1, 0)
        answer = client.request(method, path, json={"messages": [USER] * 200})
        assert refused(answer) == ("messages", "context_length_exceeded")
        assert (len(rendered), frontend.tokenizer.encoded) == (1, 0)


class FakeTemplates(FakeFrontend):
    """Its tokenizer encodes chats."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer.encode_chat = lambda messages, **settings: self.tokenizer.encode(  # type: ignore[attr-defined]
            self.tokenizer.render_chat(messages, add_generation_prompt=False)
        )


# From the start


def write(directory: Path, prefixes: Any) -> Path:
    path = directory / "prefixes.json"
    path.write_text(prefixes if isinstance(prefixes, str) else json.dumps(prefixes), "utf-8")
    return path


def test_those_of_a_file_are_computed_at_the_start(tmp_path, caplog):
    prefixes = {
        "broken": {"messages": [{"role": "system", "content": 5}]},
        "other": {"messages": [SYSTEM], "model": "other"},
        "kind": {"messages": [SYSTEM], "ttl": "1h"},
    }
    declared = read_prefixes(write(tmp_path, prefixes), Registry())

    async def scenario() -> None:
        async with stack(tmp_path, page_size=4, prefixes=Prefixes(declared)) as server:
            while not (found := (await server.client.get(PATH)).json()["data"]):
                await asyncio.sleep(0)
            assert [each["name"] for each in found] == ["kind"]
            broken, other = (record.getMessage() for record in caplog.records[:2])
            assert broken.startswith("prefix broken: ")
            assert len(broken) > len("prefix broken: ")
            assert "The model 'other' does not exist here" in other
            asked = await server.ask(CHAT, messages=[SYSTEM, USER], max_tokens=1)
            cached = usage(asked)["prompt_tokens_details"]["cached_tokens"]
            assert cached >= found[0]["tokens"]
            await server.settle()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no file of named prefixes"),
        ("[]", "no file of named prefixes"),
        ('{"a": {"messages": 5}}', r"prefixes\.json, a: .*messages"),
        ('{"a": {"message": []}}', "a: .*message"),
        ('{"a": {"ttl": "forever", %s}}', "prefixes.json, a: ttl must be a time from 1s to 24h"),
        ('{"a": {"priority": 99999999999999, %s}}', "a: priority must be"),
        ('{"a": {"cache_salt": "", %s}}', "a: cache_salt must have"),
        ('{"a": {"timeout": 0, %s}}', "a: timeout must be above 0"),
        ('{"a": {"tenant": "nobody", %s}}', "a: tenant: there is no tenant 'nobody'"),
        ('{"a": {%s}, "b": {"ttl": 0, %s}}', "b: ttl must be"),
        ('{"a": {}}', "a: Send messages"),
        ('{"a": {"messages": [{"content": "x"}]}}', r"messages\.0\.role"),
        ('{"/": {"messages": [{"role": "system", "content": "x"}]}}', "name"),
        (
            '{"a": {"messages": [{"role": "system", "content": "x"}]},'
            ' "a": {"messages": [{"role": "system", "content": "y"}]}}',
            "'a' is there twice",
        ),
        ('{"a": {"messages": [], "messages": []}}', "'messages' is there twice"),
        ("\x00\xff", "no file of named prefixes"),
        ("[" * 100_000, "no file of named prefixes"),
        ('{"a": {"messages": [{"role": "user", "content": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path, text: str, reason: str):
    text = text.replace("%s", f'"messages": [{json.dumps(SYSTEM)}]')
    with pytest.raises(ConfigError, match=reason):
        read_prefixes(write(tmp_path, text), Registry())


def test_on_a_server_with_tenants_a_prefix_is_somebodys(tmp_path):
    tenants = Registry(Roster.of([Tenant(name="acme")]))
    path = write(tmp_path, {"a": {"messages": [SYSTEM], "tenant": "acme"}})
    assert read_prefixes(path, tenants)["a"].tenant == "acme"
    with pytest.raises(ConfigError, match="a: tenant is required"):
        read_prefixes(write(tmp_path, {"a": {"messages": [SYSTEM]}}), tenants)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prefixes(tmp_path / "none.json", Registry())
