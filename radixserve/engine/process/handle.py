"""One run of the engine in a process of its own, as seen from the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Self

import msgspec

from radixserve.config import EngineConfig
from radixserve.engine.messages import Command, Failure, News, Stop
from radixserve.engine.process.child import Start
from radixserve.errors import EngineDeadError

COMMAND = (sys.executable, "-c", "from radixserve.engine.process.child import main; main()")
GRACE = 5.0
"""Seconds that the process has to end when it is told to."""
_HEADER = struct.Struct("!i")
"""Of a message: its length in bytes, as ``multiprocessing.connection`` has it."""


class Handle:
    """Made by ``start``; ``end`` has to be called, also if the process has ended by itself."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._process, self._reader, self._writer = process, reader, writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[News] = msgspec.msgpack.Decoder(News)

    @classmethod
    async def start(cls, config: EngineConfig, command: Sequence[str] = COMMAND) -> Self:
        """Start a process that loads the model. Its logs go where ours go."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, pass_fds=[theirs.fileno()]
            )
            level = logging.getLogger("radixserve").getEffectiveLevel()
            start = Start(config.chosen(), theirs.fileno(), level)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def receive(self) -> News:
        """The next message.

        Raises:
            RadixServeError: the process has said why it ends.
            EngineDeadError: it has ended without a word.
        """
        try:
            (length,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            news = self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EngineDeadError(await self._epitaph()) from error
        except msgspec.MsgspecError as error:
            raise EngineDeadError(f"The engine's process speaks nonsense: {error}") from error
        if isinstance(news, Failure):
            raise news.fault.error()
        return news

    def send(self, command: Command) -> None:
        """Give it a command, without waiting.

        Raises:
            EngineDeadError: it is not there any more.
        """
        if self._writer.is_closing() or self._process.returncode is not None:
            raise EngineDeadError("The engine's process has ended.")
        data = self._encoder.encode(command)
        self._writer.write(_HEADER.pack(len(data)) + data)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """End it, politely at first, and give back what it held."""
        with contextlib.suppress(EngineDeadError):
            self.send(Stop())
        try:
            async with asyncio.timeout(GRACE):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        finally:
            assert self._process.stdin is not None
            for each in (self._writer, self._process.stdin):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _epitaph(self) -> str:
        # The socket is closed a moment before the system knows how the process ended.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "The engine's process does not speak any more."
        if code < 0:
            return f"The engine's process was killed ({signal.Signals(-code).name})."
        return f"The engine's process has ended with status {code}."
