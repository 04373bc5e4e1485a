"""A server as a process: ``python -m tests.server.draining SECONDS [LETTERS | early]``.

A line of input releases its answers, which wait after two tokens; those of so many LETTERS do not.
With ``early`` it is told to end while it starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from radixserve.server import app
from radixserve.server.run import listen, serve_until_stopped
from radixserve.server.service import Settings
from tests.server.fake import FakeFrontend


class Holding(FakeFrontend):
    async def start(self) -> None:
        if len(sys.argv) > 2:
            self.answer = "a" * int(sys.argv[2])
            return
        self.hold(after=2)

        def wait_for_a_line() -> None:
            if sys.stdin.readline():
                self.release()

        threading.Thread(target=wait_for_a_line, daemon=True).start()


def announce(url: str) -> None:
    sys.stdout.write(url + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def told_to_end(application: Starlette) -> AsyncIterator[None]:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    async with working(application):
        yield


working = app.working
if __name__ == "__main__":
    if sys.argv[2:] == ["early"]:
        app.working = told_to_end
        del sys.argv[2]
    served = app.create_app(Holding(), settings=Settings(drain_timeout=float(sys.argv[1])))
    serve_until_stopped(served, listen("127.0.0.1", 0), lambda model, url: announce(url))
