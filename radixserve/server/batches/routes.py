"""``/v1/batches``: many requests in a file, answered when nobody else waits."""

from __future__ import annotations

import time
from typing import Any

import anyio.to_thread

from radixserve.server.batches.files import listed, missing, shown, store_of
from radixserve.server.batches.lines import ENDPOINTS
from radixserve.server.batches.room import limit_of, room_of
from radixserve.server.batches.store import ENDED, BatchObject, new_batch_id
from radixserve.server.batches.worker import Worker
from radixserve.server.endpoint import Call
from radixserve.server.errors import invalid, wrong
from radixserve.server.fields import Body
from radixserve.server.wire import Json, Metadata

HOUR = 3600
LONGEST_WINDOW = 24 * 7
"""Hours."""


class BatchRequest(Body, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: Metadata | None = None


async def create_batch(call: Call, fields: BatchRequest) -> Json[BatchObject]:
    """Its results count as files of its tenant, which has to have room for some."""
    store, owner = store_of(call), call.tenant
    if fields.endpoint not in ENDPOINTS:
        raise wrong("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
    hours = _hours(fields.completion_window)
    room = await anyio.to_thread.run_sync(room_of, store, owner, limit_of(call))
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
    _worker(call).wake()
    return shown(call, batch)


async def list_batches(call: Call) -> dict[str, Any]:
    return listed(call, store_of(call).batches(call.tenant))


async def get_batch(call: Call, id: str) -> Json[BatchObject]:
    return shown(call, _batch(call, id))


async def cancel_batch(call: Call, id: str) -> Json[BatchObject]:
    """No further line is begun; what was answered by then is kept."""
    batch = _batch(call, id)
    if batch.status in ENDED:
        raise invalid("batch_id", f"The batch has ended already: it is {batch.status}")
    _worker(call).cancel(batch.id)
    batch.status = "cancelling"
    batch.cancelling_at = int(time.time())
    return shown(call, batch)


def _worker(call: Call) -> Worker:
    worker: Worker = call.app.state.worker
    return worker


def _batch(call: Call, id: str) -> BatchObject:
    batch = store_of(call).batch(id, call.tenant)
    if batch is None:
        raise missing("batch", id)
    return batch


def _hours(window: str) -> int:
    number = window[:-1]
    if window.endswith("h") and number.isascii() and number.isdigit() and len(number) < 4:
        hours = int(number)
        if 1 <= hours <= LONGEST_WINDOW:
            return hours
    raise wrong("completion_window", f"must be hours such as 24h, from 1h to {LONGEST_WINDOW}h")
