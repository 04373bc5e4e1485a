"""Of the requests that it has answered the server remembers nothing but what it can forget."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette

from radixserve.server.app import create_app
from radixserve.tenant import OPEN
from tests.server.asking import CHAT
from tests.server.fake import FakeFrontend
from tests.server.handed import hand
from tests.traced import growths, held


async def post(app: Starlette, path: str, request_id: str, fields: dict[str, Any]) -> int:
    """Status of a request that is handed to the app itself: a client remembers much, too."""
    sent = await hand(app, path, fields, headers=[(b"x-request-id", request_id.encode())])
    assert not sent[-1].get("more_body")
    return int(sent[0]["status"])


async def ask(app: Starlette, number: int) -> None:
    mine = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 1}
    asked = [
        (CHAT, {**mine, "user": f"u{number}", "cache_salt": f"s{number}", f"f{number}": 1}),
        ("/v1/completions", {"prompt": f"{number}", "stream": True, "max_tokens": 1}),
        (CHAT, {**mine, "model": f"unknown-{number}"}),
        (CHAT, {**mine, "temperature": -1 - number}),
        (f"/v1/nothing/{number}", {}),
    ]
    answered = [await post(app, path, f"client-{number}", fields) for path, fields in asked]
    assert answered == [200, 200, 404, 400, 404]


def test_a_thousand_requests_leave_no_memory_behind():
    frontend = FakeFrontend()
    app = create_app(frontend)

    async def scenario() -> list[int]:
        measures = []
        for number in range(301):
            if number and number % 60 == 0:
                # What is remembered within bounds, so that misses can be explained and answers
                # be known again, and the stand-in's own memory.
                for forget in app.state.service.tenants.forgetting:
                    forget(OPEN)
                frontend.requests.clear()
                frontend._seen.clear()
                measures.append(held())
            await ask(app, number)
        return measures

    # An id of each of the 300 between two measures would take 50 bytes or more.
    assert min(growths(scenario())) < 300 * 30
