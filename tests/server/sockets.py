"""A server on a real socket, and connections to it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette

from radixserve.server.protocol import BoundedProtocol
from tests.server.asking import HANG


@dataclass
class Serving:
    url: str
    server: uvicorn.Server

    def stop(self) -> None:
        """Tell the server to stop; it first waits for what is running."""
        self.server.should_exit = True


@contextlib.contextmanager
def serving(app: Starlette, *, drain: int = 5) -> Iterator[Serving]:
    """The app behind uvicorn on a free port of this machine."""
    # The socket listens before uvicorn accepts, so that nobody has to wait for it.
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=drain,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield Serving(f"http://127.0.0.1:{listener.getsockname()[1]}", server)
    finally:
        server.should_exit = True
        thread.join(timeout=30)


def connected(url: str, path: str, **fields: object) -> socket.socket:
    """A connection on which a request was sent, and from which nothing was read."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=HANG)
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection
