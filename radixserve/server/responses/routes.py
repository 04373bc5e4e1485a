"""Stored responses: look at one, or at what it was asked, cancel it, forget it."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.errors import ApiError
from radixserve.server.parameters import page_length
from radixserve.server.responses.store import Responses, turn_of
from radixserve.server.responses.wire import DeletedResponse, Item, ItemList
from radixserve.server.service import Service
from radixserve.server.wire import Json, absent, invalid

MOST_ITEMS = 100
ITEMS = 20
"""Of a page, unless it is said."""
STREAMED = ("", "false", "0")


async def get_response(request: Request) -> Response:
    """One that still runs is told as far as it has come."""
    if request.query_params.get("stream", "").lower() not in STREAMED:
        raise invalid("stream", "A stored response is not streamed again; leave stream out")
    store, tenant, id = _asked(request)
    live = store.live(tenant, id)
    record = store.get(tenant, id)
    if live is None and record is None:
        raise _not_found(id)
    return Json(live.turn.shown() if live is not None else record.response if record else b"")


async def delete_response(request: Request) -> Response:
    """Nobody goes on from it any more: what it alone has cached goes before all else. One that
    still runs is cancelled."""
    service: Service = request.app.state.service
    store, tenant, id = _asked(request)
    live, record = store.live(tenant, id), store.get(tenant, id)
    if live is not None:
        live.wanted = False
        live.cancel()
        await live.stopped()
        narrow = live.namespace
    elif record is not None and store.remove(tenant, id):
        narrow = record.namespace
    else:
        raise _not_found(id)
    pages = await service.end_session(tenant, narrow, turn_of(id))
    return Json(DeletedResponse(id, pages or 0))


async def cancel_response(request: Request) -> Response:
    """End a response that is being streamed; one that has ended stays as it is."""
    store, tenant, id = _asked(request)
    live = store.live(tenant, id)
    if live is not None:
        live.cancel()
        return Json(live.turn.shown())
    record = store.get(tenant, id)
    if record is None:
        raise _not_found(id)
    return Json(record.response)


async def list_input_items(request: Request) -> Response:
    """The items that a response came with, without those of responses before it."""
    store, tenant, id = _asked(request)
    live, record = store.live(tenant, id), store.get(tenant, id)
    if live is None and record is None:
        raise _not_found(id)
    items = live.items if live is not None else record.asked() if record else []
    return Json(_page(items, request.query_params))


async def compact_response(request: Request) -> Response:
    """Not built. Without this route it would be the response of that name."""
    raise ApiError(
        status=404,
        message="Conversations are not compacted here. Send a shorter input, or truncation: auto.",
        code="unknown_url",
    )


def _page(items: list[Item], query: Mapping[str, str]) -> ItemList:
    """The items after the one that the client has, the last one first unless it is said."""
    limit, order = page_length(query, ITEMS, MOST_ITEMS), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "order must be asc or desc")
    ordered = items if order == "asc" else items[::-1]
    if "after" in query:
        ids = [item.id for item in ordered]
        if query["after"] not in ids:
            raise invalid("after", "after must be the id of one of the items")
        ordered = ordered[ids.index(query["after"]) + 1 :]
    page = ordered[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return ItemList(page, first, last, has_more=len(page) < len(ordered))


def _asked(request: Request) -> tuple[Responses, str, str]:
    """The store, the tenant and the id."""
    return request.app.state.responses, request.state.visit.tenant.name, request.path_params["id"]


def _not_found(id: str) -> ApiError:
    return absent(
        "id",
        f"The response {id[:100]!r} is not stored here: it never was, or no more",
        "response_not_found",
    )
