"""A response that is deleted lets go of what it alone has cached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.server.responses.store import Responses
from tests.server.responses.told import PATH
from tests.server.stack import Stack, stack

FIRST = "A long question, which more than one goes on from."


async def ask(server: Stack, said: str, previous: str | None = None, **fields: Any) -> str:
    fields = {"input": said, "max_output_tokens": 12, **fields}
    answer = await server.ask(PATH, **fields, previous_response_id=previous)
    assert answer.status_code == 200, answer.text
    await server.settle()
    return str(answer.json()["id"])


async def delete(server: Stack, id: str) -> int:
    answer = await server.client.delete(f"{PATH}/{id}")
    assert answer.status_code == 200, answer.text
    return int(answer.json()["released_pages"])


async def kept(server: Stack) -> int:
    """Pages, once the engine has counted anew."""
    await server.ask(prompt=[5], max_tokens=1)
    await server.settle()
    return server.engine.stats().tenants[""].pages_kept


@pytest.mark.parametrize("salt", [None, "pepper"])
def test_of_two_forks_the_one_that_is_deleted_lets_go_of_its_own(tmp_path, salt: str | None):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            fields = {} if salt is None else {"cache_salt": salt}
            first = await ask(server, FIRST, **fields)
            one = await ask(server, "And one?", first, keep_for=600, **fields)
            whole = await kept(server)
            two = await ask(server, "And two, then?", first, keep_for=600, **fields)
            assert await kept(server) > whole
            assert await delete(server, two) > 0
            assert await kept(server) == whole
            assert await delete(server, first) == 0
            assert await kept(server) == whole
            assert await delete(server, one) >= whole
            assert await kept(server) == 0

    asyncio.run(scenario())


def test_a_session_goes_on_from_what_is_left_of_it(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            first = await ask(server, FIRST, session_id="s")
            second = await ask(server, "And two?", first, session_id="s")
            assert await delete(server, second) > 0
            ended = await server.client.delete("/v1/cache/sessions/s")
            assert ended.json()["released_pages"] > 0
            assert await delete(server, first) == 0

    asyncio.run(scenario())


def test_what_the_store_has_no_room_for_goes_as_what_is_deleted(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            released = server.app.state.service.end_session_soon
            server.app.state.responses = Responses(released, most=2)
            first = await ask(server, FIRST, keep_for=600, cache_salt="pepper")
            whole = await kept(server)
            second = await ask(server, FIRST + " Or not?", keep_for=600)
            both = await kept(server)
            assert both > whole > 0
            third = await ask(server, "And what then?", second)
            assert await kept(server) == both - whole
            for id, status in ((first, 404), (second, 200), (third, 200)):
                assert (await server.client.get(f"{PATH}/{id}")).status_code == status
            for id in (second, third):
                await delete(server, id)
            assert await kept(server) == 0

    asyncio.run(scenario())


def test_one_that_still_runs_lets_go_of_what_it_has_so_far(tmp_path):
    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            server.model.hold()
            fields = {"input": FIRST, "max_output_tokens": 200, "stream": True, "keep_for": 600}
            running = asyncio.create_task(server.ask(PATH, **fields))
            await server.steps(3)
            store = server.app.state.responses
            while not store._live:
                await asyncio.sleep(0)
            [(_, id)] = store._live
            deleting = asyncio.create_task(delete(server, id))
            await asyncio.sleep(0)
            server.model.free()
            assert await deleting > 0
            await running
            await server.settle()
            assert (await server.client.get(f"{PATH}/{id}")).status_code == 404
            assert await kept(server) == 0

    asyncio.run(scenario())
