"""Servers under test: started as processes of their own, ended by their process ids."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx2

COMMAND = [sys.executable, "-c", "from radixserve.cli import main; main()", "serve"]
START_SECONDS = 600
STOP_SECONDS = 15


class ServerError(Exception):
    """The server is not there (any more); the message ends with the last lines of its log."""


class Process:
    """``command`` with ``--port`` and a free port behind it; an asynchronous context manager.

    Raises:
        ServerError: on entry: it did not come up.
    """

    def __init__(
        self, label: str, command: list[str], logs: Path, environment: dict[str, str] | None = None
    ):
        """Its output goes to a file in ``logs``; ``environment`` is added to our own."""
        self.label = label
        self.command = command
        self._environment = environment or {}
        self._log = logs / f"{label}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def __aenter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with self._log.open("wb") as log:
            # Its own session: Ctrl-C reaches only us, and we end it when the numbers are safe.
            self._process = subprocess.Popen(
                [*self.command, "--port", str(port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"TQDM_DISABLE": "1"} | self._environment,
            )
        try:
            await self._wait()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def pause(self) -> None:
        """Stand still, with all its processes: idle threads of some engines spin."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise ServerError(
                f"server {self.label!r} ended with status {self._process.returncode}: {self.tail()}"
            )

    def tail(self) -> str:
        """The last lines of its log, in one."""
        lines = (
            self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        )
        return " | ".join(lines[-3:]) or "its log is empty"

    async def _wait(self) -> None:
        async with httpx2.AsyncClient() as client:
            for _ in range(START_SECONDS * 5):
                self.check()
                try:
                    if (await client.get(f"{self.url}/health", timeout=5)).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.2)
        raise ServerError(
            f"server {self.label!r} did not come up in {START_SECONDS} s: {self.tail()}"
        )

    def _end(self) -> None:
        """End it, also while it is paused."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self.resume()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


class Server(Process):
    """``radixserve serve`` with ``options``."""

    def __init__(self, label: str, model: str | None, options: list[str], logs: Path):
        arguments = [*([model] if model else []), "--log-level", "warning", *options]
        super().__init__(label, [*COMMAND, *arguments], logs)


class Remote:
    """A server that somebody else runs."""

    label = "given"

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    async def __aenter__(self) -> Remote:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        pass


Endpoint = Process | Remote
