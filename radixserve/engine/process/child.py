"""What runs in the engine's own process, from its first line to its last."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore, Runner
from radixserve.engine.grammars import Grammars
from radixserve.engine.loop import EngineLoop
from radixserve.engine.messages import Command, Failure, Fault, Found, News, RankLost, Stop
from radixserve.engine.stats import ready
from radixserve.errors import RadixServeError

log = logging.getLogger(__name__)

DONE, FAILED = 0, 1
LAST = 5.0
"""Seconds that the other end has to hear the last word."""


class Start(msgspec.Struct, frozen=True):
    """What the process is told when it begins: one line of JSON on its standard input, which stays
    open for as long as somebody wants it."""

    config: dict[str, Any]
    """Fields of ``EngineConfig``."""
    socket: int
    """File descriptor of its end of a socket pair, over which messages travel."""
    log_level: int


Load = Callable[[EngineConfig, "Wire"], tuple[Runner, Grammars, EngineConfig]]
"""Makes what runs the model and what compiles grammars, and says which settings hold here."""


def main(load: Load | None = None) -> None:
    """Load the model with ``load`` and run its engine until the other end says, or is gone."""
    for each in (signal.SIGINT, signal.SIGTERM):
        # Whoever ends a group or a service means the process that started this one, which drains.
        signal.signal(each, signal.SIG_IGN)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s")
    logging.getLogger("radixserve").setLevel(start.log_level)
    wire = Wire(Connection(start.socket))
    status, runner = DONE, None
    try:
        runner, grammars, config = (load or _load)(EngineConfig(**start.config), wire)
        core = EngineCore(config, runner, grammars)
        wire.send(ready(runner.info, config, core.stats()))
        EngineLoop(core, wire.get, wire.send).run()
    except OSError as error:
        if not wire.broken:
            status = _fail(wire, error)
    except Exception as error:
        status = _fail(wire, error)
    try:
        if runner is not None:
            runner.close()
    except Exception:
        log.exception("what computed steps could not be ended")
    # Without ado: threads of libraries can hang a plain exit.
    sys.stderr.flush()
    os._exit(status)


class Wire:
    """The engine's end of the messages."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
        self._inside, self._told = Pipe(duplex=False)
        self.broken = False
        """Whether the other end is gone."""

    def tell(self, command: Command) -> None:
        """Put ``command`` before those of the other end, from any thread of this process."""
        self._told.send_bytes(msgspec.msgpack.encode(command))

    def get(self, block: bool) -> Command:
        """The next command.

        Raises:
            queue.Empty: there is none, and it was not to be waited for.
            OSError: the other end is gone.
        """
        try:
            heard = wait([self._inside, self._connection], None if block else 0)
            if not heard:
                raise queue.Empty
            source = self._inside if self._inside in heard else self._connection
            return self._decoder.decode(source.recv_bytes())
        except (EOFError, OSError) as error:
            self.broken = True
            raise OSError("nobody asks any more") from error

    def hear_out(self) -> None:
        """Take commands and do nothing, until the other end says stop or is gone: a socket that is
        closed with something unread resets the connection, and what was said last may be lost."""
        until = time.monotonic() + LAST
        with suppress(EOFError, OSError):
            while self._connection.poll(max(0.0, until - time.monotonic())):
                if isinstance(self._decoder.decode(self._connection.recv_bytes()), Stop):
                    return

    def send(self, news: News) -> None:
        """Hand ``news`` on.

        Raises:
            OSError: the other end is gone.
        """
        try:
            self._connection.send_bytes(self._encoder.encode(news))
        except OSError:
            self.broken = True
            raise


def _load(config: EngineConfig, wire: Wire) -> tuple[Runner, Grammars, EngineConfig]:
    # What the engine needs takes seconds to import, and errors above are told without it.
    from radixserve.engine.garbage import spare_what_is_loaded
    from radixserve.engine.model_files import prepare, settle
    from radixserve.model import ranks
    from radixserve.text.tokenizer import Tokenizer

    config = settle(config)
    files = prepare(config)
    wire.send(Found(files.name, str(files.tokenizer)))
    tokenizer = Tokenizer.load(files.tokenizer)
    runner = ranks.load(
        files,
        config,
        eos_token_ids=tokenizer.eos_token_ids,
        lost=lambda reason: wire.tell(RankLost(reason)),
    )
    grammars = Grammars(tokenizer.table())
    grammars.prepare()
    spare_what_is_loaded()
    return runner, grammars, config


def _fail(wire: Wire, error: Exception) -> int:
    if not isinstance(error, RadixServeError):
        log.exception("the engine has died")
    try:
        wire.send(Failure(Fault.of(error)))
        wire.hear_out()
    except Exception:
        log.error("nobody was told: %s", error)
    return FAILED


def _end_with_parent() -> None:
    """The input ends when the process that holds its other end does, however that happens."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(DONE)
