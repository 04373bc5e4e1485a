"""The server process: a socket, the engine, uvicorn, and a clean end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from radixserve.errors import ConfigError
from radixserve.server.prefixes import Prefixes, read_prefixes
from radixserve.server.protocol import BoundedProtocol
from radixserve.server.service import Service, Settings
from radixserve.server.tenants.registry import Registry
from radixserve.tenants.file import Roster

log = logging.getLogger(__name__)

LAST_SECONDS = 1
"""For what is left after draining: to be told that the server goes down."""
DRAIN_TICK = 0.05

Announce = Callable[[str, str], None]
"""Called with the model's name and the server's URL once requests are served."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port in use is found before the model is loaded.

    Nobody can connect to it yet: that begins when requests are served.

    Raises:
        ConfigError: there is no such address here, or the port is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    return listener


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``address``."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def tenants_of(settings: Settings) -> Registry:
    """The tenants of a file, or one that has the keys; without either the server is open.

    Raises:
        ConfigError: both are given, or one of them is wrong.
    """
    path, keys = settings.tenants_file, settings.api_keys
    if path is not None and keys:
        raise ConfigError("--tenants and --api-key exclude each other: put the keys into the file.")
    if path is not None:
        return Registry.from_file(path)
    return Registry(Roster.of_keys(keys)) if keys else Registry()


def prefixes_of(settings: Settings, tenants: Registry) -> Prefixes:
    """The prefixes of a file, if there is one, which are those of ``tenants``.

    Raises:
        ConfigError: it cannot be read, or is wrong.
    """
    path = settings.prefixes_file
    return Prefixes(None if path is None else read_prefixes(path, tenants))


def serve_until_stopped(app: Starlette, listener: socket.socket, announce: Announce) -> None:
    """Start the engine of ``app``, which ``create_app`` has made, and serve it until SIGINT or
    SIGTERM.

    From then on new requests are refused with 503, and those that run get the settings'
    ``drain_timeout`` seconds to finish. A second signal does not wait. SIGHUP reads the
    file of tenants again, if they come from one.

    Raises:
        ConfigError: the settings cannot work, or the port was taken meanwhile.
        ModelError: the model cannot be served.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _leave_at_once)
    factory = uvicorn.Config(app, loop="auto").get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(app, listener, announce))


async def _serve(app: Starlette, listener: socket.socket, announce: Announce) -> None:
    service: Service = app.state.service
    frontend, tenants = service.frontend, service.tenants
    if tenants.path is not None:
        reloader = Reloader(tenants)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.start)
    await frontend.start()
    try:
        server = Server(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_SECONDS,
            ),
            service,
        )
        host, port = listener.getsockname()[:2]
        server.ready = lambda: announce(frontend.card.name, _url(host, port))
        server.taken = lambda error: _cannot_listen(host, port, error)
        # uvicorn takes the signals over, and raises them again when it has ended.
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, _stopped_already)
        await server.serve(sockets=[listener])
    finally:
        await frontend.stop()


class Server(uvicorn.Server):
    """Drains before it stops."""

    ready: Callable[[], None]
    taken: Callable[[OSError], ConfigError]
    """What it means that nobody can listen any more."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:
            raise self.taken(error) from error
        try:
            self.ready()
        except BaseException:  # also that of a terminal that is gone
            await self.shutdown(sockets)
            raise

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets running requests finish; any second one ends at once."""
        if self._service.draining:
            self.should_exit = self.force_exit = True
            return
        self._service.draining = True
        self._loop.call_soon_threadsafe(self._start_draining)

    def _start_draining(self) -> None:
        self._draining = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        deadline = self._loop.time() + self._service.settings.drain_timeout
        while self.server_state.tasks and self._loop.time() < deadline:
            await asyncio.sleep(DRAIN_TICK)
        self.should_exit = True


class Reloader:
    """Reads the file of tenants again whenever it is told to, from a signal's handler."""

    def __init__(self, tenants: Registry):
        self._tenants = tenants
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        task = asyncio.create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        try:
            await self._tenants.reload()
        except ConfigError as error:
            log.error("the tenants stay as they were: %s", error)


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    """While the model is loaded there is nothing to finish, and threads would hold us up."""
    os._exit(128 + number)


def _stopped_already(number: int, frame: FrameType | None) -> None:
    pass


def _url(host: str, port: int) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    return ConfigError(f"Cannot listen on {host}:{port}: {reason}. Try another --port or --host.")
