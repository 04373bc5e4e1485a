"""A file that lines are appended to, on a thread of its own: a slow disk holds up no request."""

from __future__ import annotations

import logging
import queue
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from pathlib import Path
from typing import Any

from radixserve.errors import ConfigError

MOST_WAITING = 2**16
"""Lines that a slow disk may owe; more are lost, which the server's log says."""


class LineFile:
    """The file may be rotated: it is opened again when another one is in its place."""

    def __init__(self, path: Path):
        """
        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            self._file = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error
        waiting: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._handler = QueueHandler(waiting)
        self._listener = QueueListener(waiting, self._file)
        self._listener.start()

    def append(self, line: str) -> None:
        """Have ``line`` written, without its end."""
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._listener.stop()
        self._file.close()
