"""The live tree over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from radixserve.cache.view import NodeView
from radixserve.tokens import pack
from tests.server.asking import HANG, refused
from tests.server.fake import FakeFrontend
from tests.server.stack import stack
from tests.server.tenants.people import KEYS, bearer, client_of
from tests.server.tenants.sharing import ask, shared

TREE = "/v1/cache/tree"


def node(id: int, tenant: str | None, above: int | None = None) -> NodeView:
    head = pack(list(f"text {id}".encode()))
    counts: dict[str, Any] = {"start": 0, "end": 32, "idle": 3, "pins": 1, "hits": 2, "hidden": 4}
    return NodeView(id=id, above=above, head=head, tenant=tenant, **counts)


def test_an_open_server_shows_all_of_it_with_its_text(client: TestClient, frontend: FakeFrontend):
    frontend.nodes = [node(1, ""), node(2, "", above=1), node(3, None)]
    told = client.get(TREE).json()
    assert told["total_nodes"] == 3
    assert told["nodes"][1] == {
        "id": 2, "above": 1, "start": 0, "end": 32, "idle": 3, "pins": 1, "hits": 2,
        "hidden_children": 4, "tenant": "", "text": "text 2",
    }  # fmt: skip
    assert [each["text"] for each in told["nodes"]] == ["text 1", "text 2", "text 3"]
    assert [each["id"] for each in client.get(TREE, params={"limit": 2}).json()["nodes"]] == [1, 2]


@pytest.mark.parametrize("limit", ["0", "-1", "5001", "many", "1.5", "", "9" * 5000, "²"])
def test_a_limit_that_cannot_be_is_refused(client: TestClient, limit: str):
    assert refused(client.get(TREE, params={"limit": limit}))[0] == "limit"


def test_an_administrator_sees_everybodys_nodes_and_nobody_elses_text(frontend: FakeFrontend):
    frontend.nodes = [node(1, "alice"), node(2, "bob"), node(3, "boss"), node(4, None)]
    with client_of(frontend) as client:
        told = client.get(TREE, headers=bearer("boss")).json()
        assert [each["text"] for each in told["nodes"]] == [None, None, "text 3", "text 4"]
        told = client.get(TREE, headers=bearer("alice")).json()
        assert [each["text"] for each in told["nodes"]] == ["text 1"]
        assert told["total_nodes"] is None
        assert client.get(TREE).status_code == 401
        assert client.get(TREE, headers=bearer("mute")).status_code == 403


def test_it_is_the_tree_of_the_engine(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path) as server:
            for tail in ("x" * 40, "y" * 40):
                await server.ask(prompt="a" * 64 + tail, max_tokens=1)
            told = (await server.client.get(TREE)).json()
            trunk, *tails = told["nodes"]
            assert trunk["text"].startswith("a" * 40)
            assert {each["text"][0] for each in tails} == {"x", "y"}
            assert {each["above"] for each in tails} == {trunk["id"]}
            await server.settle()

    asyncio.run(asyncio.wait_for(scenario(), HANG))


def test_a_tenants_tree_is_the_same_whatever_others_do(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path, num_pages=1000) as server:

            async def told() -> Any:
                headers = {"authorization": f"Bearer {KEYS['alice']}"}
                return (await server.client.get(TREE, headers=headers)).json()["nodes"]

            await ask(server, "alice")
            alone = await told()
            assert alone
            await ask(server, "bob")
            after = await told()
            assert after == alone

    asyncio.run(asyncio.wait_for(scenario(), HANG))
