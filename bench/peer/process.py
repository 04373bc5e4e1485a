"""A peer's worker: a process of its own that stands still while others are measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from bench.peer.environments import WORKERS, PeerError

Message = dict[str, Any]

START_SECONDS = 600
RUN_SECONDS = 600


class Worker:
    """One worker, started with ``python`` on ``script`` and loaded with ``settings``.

    Raises:
        PeerError: it ended, said that it failed, or gave no answer in time; the process is gone.
    """

    def __init__(
        self, name: str, python: Path, script: str, settings: Message, log: Path, threads: int
    ):
        self.name = name
        self._log = log
        self._rest = b""
        with log.open("wb") as errors:
            # Its own session: Ctrl-C reaches only us, and the whole group can be stopped.
            self._process = subprocess.Popen(
                [str(python), str(WORKERS / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"},
            )
        try:
            self.loaded = self.ask({"op": "load", **settings}, START_SECONDS)
        except BaseException:
            self.close()
            raise

    def ask(self, message: Message, seconds: float = RUN_SECONDS) -> Message:
        """Send ``message``, wait at most ``seconds`` for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed("it ended") from error
        answer: Message = json.loads(self._line(monotonic() + seconds))
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def pause(self) -> None:
        """Stand still: idle threads of some engines spin, and would take the others' time."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, also while it is paused."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                raise self._failed("no answer in time")
            read = os.read(pipe, 1 << 20)
            if not read:
                raise self._failed("it ended")
            self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _failed(self, why: str) -> PeerError:
        self.close()
        if why == "it ended":
            lines = self._log.read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it says nothing")
            why = f"it ended with status {self._process.returncode}: {last.strip()}"
        return PeerError(f"{self.name}: {' '.join(why.split())[:300]}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
