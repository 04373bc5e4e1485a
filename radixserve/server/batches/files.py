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
from starlette.responses import FileResponse
from starlette.types import Message, Receive

from radixserve.server.batches.room import FORM, Room, limit_of, room_of
from radixserve.server.batches.store import ENDED, FileObject, Store, new_file_id
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError, absent, invalid, required, wrong
from radixserve.server.limits import announced, unsupported_media
from radixserve.server.parameters import page_length
from radixserve.server.wire import Json

LARGEST_FILE = 200 * 2**20
"""Bytes, of a whole upload."""
LONGEST_NAME = 255
LISTED, MOST_LISTED = 20, 100


async def upload_file(call: Call) -> Json[FileObject]:
    """Multipart: ``file`` and ``purpose``, which can only be ``batch``.

    A file for which its tenant has no room is refused before it is there as a whole.
    """
    store, owner, limit = store_of(call), call.tenant, limit_of(call)
    room = await anyio.to_thread.run_sync(room_of, store, owner, limit)
    room.check(max(0, announced(call) - FORM))
    form = await _form(call, room)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(form.close)
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise required("file")
        if purpose != "batch":
            raise wrong("purpose", "must be batch: files are for nothing else here")
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
    return shown(call, record)


async def list_files(call: Call) -> dict[str, Any]:
    found = store_of(call).files(call.tenant)
    purpose = call.query_params.get("purpose")
    return listed(call, [each for each in found if purpose in (None, each.purpose)])


async def get_file(call: Call, id: str) -> Json[FileObject]:
    return shown(call, _file(call, id))


async def get_content(call: Call, id: str) -> FileResponse:
    path = store_of(call).data(_file(call, id).id)
    if not path.exists():
        raise missing("file", id)
    return FileResponse(path, media_type="application/jsonl")


async def delete_file(call: Call, id: str) -> dict[str, Any]:
    """A file that a batch still reads stays."""
    record, store = _file(call, id), store_of(call)
    for batch in store.batches(record.owner):
        if batch.input_file_id == record.id and batch.status not in ENDED:
            message = f"The file is the input of {batch.id}, which is not finished: cancel that"
            raise invalid("file_id", message)
    store.delete(record)
    return {"id": record.id, "object": "file", "deleted": True}


def store_of(call: Call) -> Store:
    """Where files are.

    Raises:
        ApiError: 501, the server keeps none.
    """
    store: Store | None = call.app.state.store
    if store is None:
        raise ApiError(
            status=501,
            message="This server keeps no files: start it with --files-dir DIR.",
            code="unsupported_feature",
        )
    return store


def missing(kind: str, identity: str) -> ApiError:
    """Also what somebody else is told who names it."""
    return absent(f"{kind}_id", f"There is no {kind} {identity[:100]!r} here", "not_found")


def shown(call: Call, record: msgspec.Struct) -> Json[Any]:
    """``record`` without what is not the client's business."""
    return Json(_public(record), headers=call.notes())


def listed(call: Call, records: list[Any]) -> dict[str, Any]:
    """A page of ``records``: ``limit`` of them, from behind ``after`` on.

    Raises:
        ApiError: 400, ``limit`` is no number from 1 to 100.
    """
    limit = page_length(call.query_params, LISTED, MOST_LISTED)
    after = call.query_params.get("after")
    places = [place for place, each in enumerate(records) if each.id == after]
    start = places[0] + 1 if places else 0
    page = records[start : start + limit]
    return {
        "object": "list",
        "data": [_public(each) for each in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": start + limit < len(records),
    }


def _public(record: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.asdict(record)
    del fields["owner"]
    return fields


def _file(call: Call, id: str) -> FileObject:
    record = store_of(call).file(id, call.tenant)
    if record is None:
        raise missing("file", id)
    return record


async def _form(call: Call, room: Room) -> FormData:
    if not call.headers.get("content-type", "").startswith("multipart/form-data"):
        raise unsupported_media("content-type", "A file is sent as multipart/form-data.")
    bounded = Request(call.scope, _bounded(call.receive, room))
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
