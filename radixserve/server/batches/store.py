"""Files and batches on local disk: what is said to be there survives the server."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

IDENTITY = re.compile(r"(file|batch)[-_][0-9a-f]{32}")
Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Output = Literal["output", "error"]
OUTPUTS: tuple[Output, ...] = ("output", "error")
ENDED = frozenset({"failed", "completed", "expired", "cancelled"})


class FileObject(msgspec.Struct, kw_only=True):
    """OpenAI's file object, and whose it is."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    owner: str = ""


class BatchError(msgspec.Struct, kw_only=True):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct):
    data: list[BatchError]
    object: str = "list"


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, kw_only=True):
    """OpenAI's batch object, and whose it is. Times are Unix seconds."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    owner: str = ""

    def collected(self) -> list[tuple[Output, str]]:
        """The files with its results, by kind."""
        named: list[tuple[Output, str | None]] = [
            ("output", self.output_file_id),
            ("error", self.error_file_id),
        ]
        return [(kind, identity) for kind, identity in named if identity is not None]


Record = TypeVar("Record", FileObject, BatchObject)


class Store:
    """A directory of records (``ID.json``) and of the files' bytes (``ID.data``).

    A record is replaced whole or not at all. Nobody's id is ever part of a path before it was
    matched against the form of ids.
    """

    def __init__(self, directory: Path):
        """Raises OSError: the directory cannot be made or written to."""
        self.directory = directory
        self.adopting = threading.Lock()
        """Held by who adopts what was found to have room."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".writable").touch()

    def save(self, record: FileObject | BatchObject) -> None:
        path = self._record(record.id)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def file(self, identity: str, owner: str) -> FileObject | None:
        """The file ``identity``, if there is one and it is ``owner``'s."""
        return self._mine(identity, owner, FileObject)

    def batch(self, identity: str, owner: str) -> BatchObject | None:
        """The batch ``identity``, if there is one and it is ``owner``'s."""
        return self._mine(identity, owner, BatchObject)

    def files(self, owner: str) -> list[FileObject]:
        """Those of ``owner``, newest first. O(all files)."""
        found = [each for each in self._all("file-*.json", FileObject) if each.owner == owner]
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def batches(self, owner: str | None = None) -> list[BatchObject]:
        """Those of ``owner``, or all, newest first. O(all batches)."""
        found = self._all("batch_*.json", BatchObject)
        mine = [each for each in found if owner is None or each.owner == owner]
        return sorted(mine, key=lambda each: (each.created_at, each.id), reverse=True)

    def unfinished(self, owner: str) -> int:
        """Bytes that results of the batches of ``owner`` take that are no files yet. O(batches)."""
        running = [each for each in self.batches(owner) if each.status not in ENDED]
        parts = [self.part(batch, kind) for batch in running for kind in OUTPUTS]
        return sum(part.stat().st_size for part in parts if part.exists())

    def data(self, identity: str) -> Path:
        """Where a file's bytes are.

        Raises:
            ValueError: ``identity`` is no id.
        """
        if not IDENTITY.fullmatch(identity):
            raise ValueError(f"{identity!r} is no id")
        return self.directory / f"{identity}.data"

    def adopt(
        self, path: Path, identity: str, *, filename: str, purpose: str, owner: str
    ) -> FileObject:
        """Take ``path``, a file in this directory, as the bytes of a new file ``identity``."""
        record = FileObject(
            id=identity,
            bytes=path.stat().st_size,
            created_at=int(time.time()),
            filename=filename,
            purpose=purpose,
            owner=owner,
        )
        # The record first: bytes without a record would be lost if we were stopped in between.
        self.save(record)
        path.replace(self.data(identity))
        return record

    def delete(self, record: FileObject) -> None:
        self._record(record.id).unlink(missing_ok=True)
        self.data(record.id).unlink(missing_ok=True)

    def draft(self) -> Path:
        """A new path in this directory that nobody uses."""
        return self.directory / f"{uuid.uuid4().hex}.draft"

    def part(self, batch: BatchObject, kind: Output) -> Path:
        """Where the lines of a batch that is not finished are collected."""
        return self.directory / f"{batch.id}.{kind}.part"

    def _record(self, identity: str) -> Path:
        return self.data(identity).with_suffix(".json")

    def _mine(self, identity: str, owner: str, kind: type[Record]) -> Record | None:
        if not IDENTITY.fullmatch(identity):
            return None
        record = _read(self._record(identity), kind)
        return record if record is not None and record.owner == owner else None

    def _all(self, pattern: str, kind: type[Record]) -> Iterator[Record]:
        for path in self.directory.glob(pattern):
            record = _read(path, kind)
            if record is not None:
                yield record


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def new_batch_id() -> str:
    return f"batch_{uuid.uuid4().hex}"


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
