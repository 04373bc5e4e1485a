"""A file that lines are appended to, on a thread of its own: a slow disk holds up no request."""

from __future__ import annotations

import logging
import queue
import sys
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from pathlib import Path
from typing import Any

from radixserve.errors import ConfigError

log = logging.getLogger(__name__)

MOST_WAITING = 2**16
"""Lines that a slow disk may owe; more are lost, which the server's log says."""


class LineFile:
    """The file may be rotated: it is opened again when another one is in its place. What cannot be
    written is lost, which the server's log says."""

    def __init__(self, path: Path):
        """
        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            self._file = _File(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error
        self._waiting: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._handler = _Waiting(self._waiting)
        self._listener = QueueListener(self._waiting, self._file)
        self._listener.start()

    def append(self, line: str) -> None:
        """Have ``line`` written, without its end."""
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._waiting.join()
        self._listener.stop()
        self._file.close()


class _File(WatchedFileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # there is no file to open again
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        log.error("a line is lost: %s cannot be written: %s", self.baseFilename, _cause())

    def close(self) -> None:
        try:
            super().close()
        except OSError:
            log.error("lines are lost: %s cannot be written: %s", self.baseFilename, _cause())


class _Waiting(QueueHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        log.error("a line is lost: %d wait to be written", MOST_WAITING)


def _cause() -> str:
    error = sys.exception()
    return getattr(error, "strerror", None) or str(error)
