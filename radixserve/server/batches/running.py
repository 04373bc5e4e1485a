"""The worker as long as the application runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from radixserve.errors import ConfigError
from radixserve.server.batches.store import Store
from radixserve.server.batches.worker import Worker, waiting_in
from radixserve.server.service import Service, cancelled


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
        busy = waiting_in(lambda: service.frontend.stats().waiting)
        app.state.store = store
        app.state.worker = Worker(store, app, busy, service.settings.body_limit)


@asynccontextmanager
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
