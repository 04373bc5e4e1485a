"""Stored responses: look at one, or at what it was asked, cancel it, forget it."""

from __future__ import annotations

from collections.abc import Mapping

from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError, absent, invalid, wrong
from radixserve.server.parameters import page_length
from radixserve.server.responses.live import Live
from radixserve.server.responses.store import Record, Responses, turn_of
from radixserve.server.responses.wire import DeletedResponse, Item, ItemList, ResponseObject
from radixserve.server.wire import Json

MOST_ITEMS = 100
ITEMS = 20
"""Of a page, unless it is said."""
STREAMED = ("", "false", "0")


async def get_response(call: Call, id: str) -> Json[ResponseObject]:
    """One that still runs is told as far as it has come."""
    if call.query_params.get("stream", "").lower() not in STREAMED:
        raise invalid("stream", "A stored response is not streamed again; leave stream out")
    return Json(_found(call, id).shown())


async def delete_response(call: Call, id: str) -> DeletedResponse:
    """Nobody goes on from it any more: what it alone has cached goes before all else. One that
    still runs is cancelled."""
    found = _found(call, id)
    if isinstance(found, Live):
        found.wanted = False
        found.cancel()
        await found.stopped()
    else:
        _store(call).remove(call.tenant, id)
    pages = await call.service.end_session(call.tenant, found.namespace, turn_of(id))
    return DeletedResponse(id, pages or 0)


async def cancel_response(call: Call, id: str) -> Json[ResponseObject]:
    """End a response that is being streamed; one that has ended stays as it is."""
    found = _found(call, id)
    if isinstance(found, Live):
        found.cancel()
    return Json(found.shown())


async def list_input_items(call: Call, id: str) -> ItemList:
    """The items that a response came with, without those of responses before it."""
    return _page(_found(call, id).asked(), call.query_params)


async def compact_response(call: Call) -> None:
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
        raise wrong("order", "must be asc or desc")
    ordered = items if order == "asc" else items[::-1]
    if "after" in query:
        ids = [item.id for item in ordered]
        if query["after"] not in ids:
            raise wrong("after", "must be the id of one of the items")
        ordered = ordered[ids.index(query["after"]) + 1 :]
    page = ordered[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return ItemList(page, first, last, has_more=len(page) < len(ordered))


def _store(call: Call) -> Responses:
    store: Responses = call.app.state.responses
    return store


def _found(call: Call, id: str) -> Live | Record:
    """Raises ApiError: 404, the tenant has no such response, or not any more."""
    store = _store(call)
    found = store.live(call.tenant, id) or store.get(call.tenant, id)
    if found is not None:
        return found
    raise absent(
        "id",
        f"The response {id[:100]!r} is not stored here: it never was, or no more",
        "response_not_found",
    )
