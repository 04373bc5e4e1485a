"""Works through batches whenever nobody waits: one batch after the other, a few lines at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable

import httpx2
import msgspec
from starlette.applications import Starlette
from starlette.types import ASGIApp

from radixserve.errors import ConfigError, EngineDeadError
from radixserve.server.batches import lines
from radixserve.server.batches.lines import InputLine, LineError, LineResponse, OutputLine
from radixserve.server.batches.store import (
    ENDED,
    OUTPUTS,
    BatchErrors,
    BatchObject,
    RequestCounts,
    Status,
    Store,
    new_file_id,
)
from radixserve.server.service import Service, cancelled
from radixserve.server.tenants.auth import acting_for
from radixserve.server.wire import LARGEST_PRIORITY

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Lines that are computed at the same time."""
TICK = 0.2
"""Seconds between looks at whether anybody waits."""
TRIES = 5
"""Of a line that the server failed on; being told to come later counts as none."""
SAVE_EVERY = 1.0
"""Seconds between saved counts: a status, unlike the lines, may be a little old after a crash."""


class Worker:
    """Runs as one task; ``wake`` tells it of a new batch or a cancelled one.

    A line's answer is on disk before the line counts as done, so that whoever is started after a
    crash computes again only what was under way.

    Args:
        app: the application that answers the lines, as it answers requests over HTTP.
        busy: whether requests of clients wait; then no new line is begun.
        line_limit: bytes that a line may have.
    """

    def __init__(self, store: Store, app: ASGIApp, busy: Callable[[], bool], line_limit: int):
        self._store, self._app, self._busy, self._line_limit = store, app, busy, line_limit
        self._news = asyncio.Event()
        self._cancelled: set[str] = set()
        self._leaving = False

    def wake(self) -> None:
        self._news.set()

    def cancel(self, identity: str) -> None:
        """Begin no further line of this batch."""
        self._cancelled.add(identity)
        self.wake()

    def leave(self) -> None:
        """The server goes down: what it says to lines that are under way is no answer to them."""
        self._leaving = True

    async def run(self) -> None:
        """Until it is cancelled, after ``leave``. What a batch fails on is that batch's fault."""
        while True:
            self._news.clear()
            waiting = [each for each in self._store.batches() if each.status not in ENDED]
            for batch in reversed(waiting):
                try:
                    await self._work(batch)
                except Exception:
                    log.exception("batch %s failed", batch.id)
                    self._end(batch, "failed")
            if not waiting:
                await self._news.wait()

    async def _work(self, batch: BatchObject) -> None:
        """From whatever state ``batch`` is in to its end."""
        source = self._store.data(batch.input_file_id)
        if batch.status == "validating":
            total, errors = await asyncio.to_thread(
                lines.validate, source, batch.endpoint, self._line_limit
            )
            if errors:
                batch.errors = BatchErrors(errors)
                self._end(batch, "failed")
                return
            batch.request_counts = RequestCounts(total)
            self._move(batch, "in_progress")
        if batch.output_file_id is None and batch.error_file_id is None:
            await self._answer_all(batch, await asyncio.to_thread(self._done, batch))
            self._collect(batch)
        for kind, identity in batch.collected():
            part = self._store.part(batch, kind)
            if part.exists():  # else a run before this one has done it
                name = f"{batch.id}_{kind}.jsonl"
                self._store.adopt(
                    part, identity, filename=name, purpose="batch_output", owner=batch.owner
                )
        counts = batch.request_counts
        whole = counts.completed + counts.failed == counts.total
        cancelled = batch.status == "cancelling"
        self._end(batch, "cancelled" if cancelled else "completed" if whole else "expired")

    def _collect(self, batch: BatchObject) -> None:
        """Decide, before anything is moved, which files there will be."""
        for kind in OUTPUTS:
            part = self._store.part(batch, kind)
            if part.exists() and part.stat().st_size:
                setattr(batch, f"{kind}_file_id", new_file_id())
        if batch.status == "cancelling":
            self._store.save(batch)
        else:
            self._move(batch, "finalizing")

    def _done(self, batch: BatchObject) -> set[str]:
        answered = lines.done(self._store.part(batch, "output"))
        failed = lines.done(self._store.part(batch, "error"))
        batch.request_counts.completed, batch.request_counts.failed = len(answered), len(failed)
        return answered | failed

    async def _answer_all(self, batch: BatchObject, done: set[str]) -> None:
        app = acting_for(self._app, batch.owner)
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        slots = asyncio.Semaphore(AT_ONCE)
        saved = time.monotonic()
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as http,
            asyncio.TaskGroup() as group,
        ):
            for _, line in lines.read(self._store.data(batch.input_file_id)):
                parsed = msgspec.json.decode(line, type=InputLine)
                if parsed.custom_id in done:
                    continue
                await slots.acquire()
                while self._busy() and not self._over(batch):
                    await asyncio.sleep(TICK)
                if self._over(batch):
                    break
                task = group.create_task(self._answer(http, batch, parsed))
                task.add_done_callback(lambda _: slots.release())
                if time.monotonic() - saved > SAVE_EVERY:
                    saved = time.monotonic()
                    self._store.save(batch)

    def _over(self, batch: BatchObject) -> bool:
        """Whether no further line of ``batch`` is to be begun."""
        if batch.id in self._cancelled and batch.status != "cancelling":
            self._move(batch, "cancelling")
        expired = batch.expires_at is not None and time.time() > batch.expires_at
        return batch.status == "cancelling" or expired

    async def _answer(self, http: httpx2.AsyncClient, batch: BatchObject, line: InputLine) -> None:
        body = msgspec.json.decode(line.body, type=dict[str, msgspec.Raw])
        body["priority"] = msgspec.Raw(str(LARGEST_PRIORITY).encode())
        made = OutputLine(f"batch_req_{uuid.uuid4().hex}", line.custom_id)
        tries = 0
        while True:
            response = await http.post(
                batch.endpoint,
                content=msgspec.json.encode(body),
                headers={"content-type": "application/json"},
            )
            if self._leaving:
                raise asyncio.CancelledError
            later = response.status_code in (429, 503)
            tries += 0 if later else 1
            if (response.status_code < 500 and not later) or tries == TRIES:
                break
            if self._over(batch):
                return
            await asyncio.sleep(min(float(response.headers.get("retry-after", 1)), 5.0))
        identity = response.headers.get("x-request-id", "")
        right = response.status_code == 200
        try:
            msgspec.json.decode(response.content)
            made.response = LineResponse(
                response.status_code, identity, msgspec.Raw(response.content)
            )
        except msgspec.DecodeError:
            made.error = LineError("server_error", "The server's answer was no JSON.")
        with self._store.part(batch, "output" if right else "error").open("ab") as file:
            file.write(msgspec.json.encode(made) + b"\n")
        if right:
            batch.request_counts.completed += 1
        else:
            batch.request_counts.failed += 1

    def _move(self, batch: BatchObject, status: Status) -> None:
        batch.status = status
        setattr(batch, f"{status}_at", int(time.time()))
        self._store.save(batch)

    def _end(self, batch: BatchObject, status: Status) -> None:
        self._move(batch, status)
        self._cancelled.discard(batch.id)
        for kind in OUTPUTS:
            with contextlib.suppress(OSError):
                self._store.part(batch, kind).unlink(missing_ok=True)


def keep_batches(app: Starlette, service: Service) -> None:
    """Give ``app`` a store and a worker, if files are kept.

    Raises:
        ConfigError: the directory for them cannot be used.
    """
    directory = service.settings.files_dir
    app.state.store = app.state.worker = None
    if directory is not None:
        try:
            store = Store(directory)
        except OSError as error:
            raise ConfigError(f"Cannot keep files in {directory}: {error.strerror}.") from error

        def busy() -> bool:
            try:
                return service.frontend.stats().waiting > 0
            except EngineDeadError:
                return True

        app.state.store = store
        app.state.worker = Worker(store, app, busy, service.settings.body_limit)


@contextlib.asynccontextmanager
async def working(app: Starlette) -> AsyncIterator[None]:
    """Batches are worked on meanwhile; those of an earlier run go on where they were."""
    worker: Worker | None = app.state.worker
    if worker is None:
        yield
        return
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.leave()
        await cancelled(task)
