"""``--record-trace``: prompts as salted hashes of their blocks, for ``radixserve simulate``."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import xxhash

from radixserve.engine.frontend import TextRequest
from radixserve.server.lines import LineFile
from radixserve.simulation.trace import Line
from radixserve.tokens import TOKEN_BYTES, count

BLOCK = 64
"""Tokens."""


class Recorder(AbstractContextManager["Recorder"]):
    """Appends a line for each prompt that was answered, if there is a file.

    The salt is drawn anew at each start and kept nowhere: whoever has the file cannot try texts
    against it, and what was recorded before a restart has nothing in common with what comes after.
    """

    def __init__(self, path: Path | None = None):
        """
        Raises:
            ConfigError: the file cannot be written.
        """
        self._lines = None if path is None else LineFile(path)
        self._salt = secrets.token_bytes(16)

    def note(self, request: TextRequest, began: float, generated: int) -> None:
        """The answers to ``request`` have ended. What passes the cache by is left out.

        Args:
            began: Unix time in seconds at which it came.
            generated: Tokens of its answers.
        """
        if self._lines is None or request.cache == "off":
            return
        line = Line(
            timestamp=round(1000 * began),
            input_length=count(request.prompt),
            output_length=generated,
            hash_ids=self._ids(request.prompt),
            tenant=xxhash.xxh3_64_hexdigest(self._salt + request.namespace),
            block_size=BLOCK,
        )
        self._lines.append(msgspec.json.encode(line).decode())

    def _ids(self, prompt: bytes) -> list[int]:
        """An id of 63 bits for each block and all before it. O(tokens)."""
        hashed = xxhash.xxh3_64(self._salt)
        ids = []
        step = BLOCK * TOKEN_BYTES
        for at in range(0, len(prompt), step):
            hashed.update(prompt[at : at + step])
            ids.append(hashed.intdigest() >> 1)
        return ids

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.close()
