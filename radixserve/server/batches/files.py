"""``/v1/files``: what batches read and write."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from typing import Any

import anyio.to_thread
import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive

from radixserve.server.batches.room import FORM, Room, limit_of, room_of
from radixserve.server.batches.store import ENDED, FileObject, Store, new_file_id
from radixserve.server.errors import ApiError
from radixserve.server.limits import announced
from radixserve.server.parameters import page_length
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import Json, absent, invalid

LARGEST_FILE = 200 * 2**20
"""Bytes, of a whole upload."""
LONGEST_NAME = 255
LISTED, MOST_LISTED = 20, 100


async def upload_file(request: Request) -> Response:
    """Multipart: ``file`` and ``purpose``, which can only be ``batch``.

    A file for which its tenant has no room is refused before it is there as a whole.
    """
    store, owner, limit = store_of(request), owner_of(request), limit_of(request)
    room = await anyio.to_thread.run_sync(room_of, store, owner, limit)
    room.check(max(0, announced(request) - FORM))
    form = await _form(request, room)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(form.close)
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise invalid("file", "file is required", "missing_required_parameter")
        if purpose != "batch":
            raise invalid("purpose", "purpose must be batch: files are for nothing else here")
        draft = store.draft()

        def keep() -> FileObject:
            with draft.open("wb") as target:
                shutil.copyfileobj(file.file, target, 2**20)
            name = (file.filename or "upload.jsonl")[:LONGEST_NAME]
            with store.adopting:
                # Others may have been stored while this one came.
                room_of(store, owner, limit).check(draft.stat().st_size)
                return store.adopt(
                    draft, new_file_id(), filename=name, purpose="batch", owner=owner
                )

        try:
            room.check(file.size or 0)
            record = await anyio.to_thread.run_sync(keep)
        except ApiError:
            draft.unlink(missing_ok=True)
            raise
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise ApiError(
                status=507,
                message=f"The file could not be stored: {error.strerror}.",
                type="server_error",
                code="insufficient_storage",
            ) from error
    return shown(record)


async def list_files(request: Request) -> Response:
    found = store_of(request).files(owner_of(request))
    purpose = request.query_params.get("purpose")
    return listed(request, [each for each in found if purpose in (None, each.purpose)])


async def get_file(request: Request) -> Response:
    return shown(_file(request))


async def get_content(request: Request) -> Response:
    record = _file(request)
    path = store_of(request).data(record.id)
    if not path.exists():
        raise missing("file", record.id)
    return FileResponse(path, media_type="application/jsonl")


async def delete_file(request: Request) -> Response:
    """A file that a batch still reads stays."""
    record, store = _file(request), store_of(request)
    for batch in store.batches(record.owner):
        if batch.input_file_id == record.id and batch.status not in ENDED:
            message = f"The file is the input of {batch.id}, which is not finished: cancel that"
            raise invalid("file_id", message)
    store.delete(record)
    body = {"id": record.id, "object": "file", "deleted": True}
    return Json(body)


def store_of(request: Request) -> Store:
    """Where files are.

    Raises:
        ApiError: 501, the server keeps none.
    """
    store: Store | None = request.app.state.store
    if store is None:
        raise ApiError(
            status=501,
            message="This server keeps no files: start it with --files-dir DIR.",
            code="unsupported_feature",
        )
    return store


def owner_of(request: Request) -> str:
    """Whose the files are that this request may see."""
    visit: Visit = request.state.visit
    return visit.tenant.name


def missing(kind: str, identity: str) -> ApiError:
    """Also what somebody else is told who names it."""
    return absent(f"{kind}_id", f"There is no {kind} {identity[:100]!r} here", "not_found")


def shown(record: msgspec.Struct) -> Response:
    """``record`` without what is not the client's business."""
    return Json(_public(record))


def listed(request: Request, records: list[Any]) -> Response:
    """A page of ``records``: ``limit`` of them, from behind ``after`` on.

    Raises:
        ApiError: 400, ``limit`` is no number from 1 to 100.
    """
    limit = page_length(request.query_params, LISTED, MOST_LISTED)
    after = request.query_params.get("after")
    places = [place for place, each in enumerate(records) if each.id == after]
    start = places[0] + 1 if places else 0
    page = records[start : start + limit]
    body = {
        "object": "list",
        "data": [_public(each) for each in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": start + limit < len(records),
    }
    return Json(body)


def _public(record: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.asdict(record)
    del fields["owner"]
    return fields


def _file(request: Request) -> FileObject:
    identity = request.path_params["id"]
    record = store_of(request).file(identity, owner_of(request))
    if record is None:
        raise missing("file", identity)
    return record


async def _form(request: Request, room: Room) -> FormData:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ApiError(
            status=415,
            message="A file is sent as multipart/form-data.",
            param="content-type",
            code="unsupported_media_type",
        )
    bounded = Request(request.scope, _bounded(request.receive, room))
    try:
        return await bounded.form(max_files=1, max_fields=10)
    except HTTPException as error:
        raise invalid("file", f"The form cannot be read: {error.detail}") from error


def _bounded(receive: Receive, room: Room) -> Receive:
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > LARGEST_FILE:
            raise ApiError(
                status=413,
                message=f"The file is larger than {LARGEST_FILE // 2**20} MiB.",
                param="file",
                code="request_too_large",
                headers={"connection": "close"},
            )
        room.check(max(0, size - FORM))
        return message

    return counted
