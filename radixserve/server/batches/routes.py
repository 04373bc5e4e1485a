"""``/v1/batches``: many requests in a file, answered when nobody else waits."""

from __future__ import annotations

import time

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.batches.files import listed, missing, owner_of, shown, store_of
from radixserve.server.batches.lines import ENDPOINTS
from radixserve.server.batches.room import limit_of, room_of
from radixserve.server.batches.store import ENDED, BatchObject, new_batch_id
from radixserve.server.batches.worker import Worker
from radixserve.server.limits import read_json
from radixserve.server.parameters import check_metadata
from radixserve.server.wire import invalid

HOUR = 3600
LONGEST_WINDOW = 24 * 7
"""Hours."""


class BatchRequest(msgspec.Struct, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None


async def create_batch(request: Request) -> Response:
    """Its results count as files of its tenant, which has to have room for some."""
    store, owner = store_of(request), owner_of(request)
    fields, _ = await read_json(request, BatchRequest)
    if fields.endpoint not in ENDPOINTS:
        raise invalid("endpoint", f"endpoint must be one of {', '.join(ENDPOINTS)}")
    hours = _hours(fields.completion_window)
    check_metadata(fields.metadata)
    room = await anyio.to_thread.run_sync(room_of, store, owner, limit_of(request))
    room.check(1, "input_file_id")
    source = store.file(fields.input_file_id, owner)
    if source is None:
        raise missing("input_file", fields.input_file_id)
    if source.purpose != "batch":
        raise invalid("input_file_id", "The file's purpose must be batch")
    now = int(time.time())
    batch = BatchObject(
        id=new_batch_id(),
        endpoint=fields.endpoint,
        input_file_id=source.id,
        completion_window=fields.completion_window,
        created_at=now,
        expires_at=now + hours * HOUR,
        metadata=fields.metadata,
        owner=owner,
    )
    store.save(batch)
    worker_of(request).wake()
    return shown(batch)


async def list_batches(request: Request) -> Response:
    return listed(request, store_of(request).batches(owner_of(request)))


async def get_batch(request: Request) -> Response:
    return shown(_batch(request))


async def cancel_batch(request: Request) -> Response:
    """No further line is begun; what was answered by then is kept."""
    batch = _batch(request)
    if batch.status in ENDED:
        raise invalid("batch_id", f"The batch has ended already: it is {batch.status}")
    worker_of(request).cancel(batch.id)
    batch.status = "cancelling"
    batch.cancelling_at = int(time.time())
    return shown(batch)


def worker_of(request: Request) -> Worker:
    worker: Worker = request.app.state.worker
    return worker


def _batch(request: Request) -> BatchObject:
    identity = request.path_params["id"]
    batch = store_of(request).batch(identity, owner_of(request))
    if batch is None:
        raise missing("batch", identity)
    return batch


def _hours(window: str) -> int:
    number = window[:-1]
    if window.endswith("h") and number.isascii() and number.isdigit() and len(number) < 4:
        hours = int(number)
        if 1 <= hours <= LONGEST_WINDOW:
            return hours
    message = f"completion_window must be hours such as 24h, from 1h to {LONGEST_WINDOW}h"
    raise invalid("completion_window", message)
