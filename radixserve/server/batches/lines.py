"""The lines of a batch's input and output, as OpenAI has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from radixserve.errors import what_is_wrong
from radixserve.server.batches.store import BatchError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
MOST_LINES = 50_000
MOST_ERRORS = 100
LONGEST_ID = 512


class InputLine(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    code: str
    message: str


class OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None


def read(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number, from 1 on. One in memory at a time."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def validate(path: Path, endpoint: str, longest: int) -> tuple[int, list[BatchError]]:
    """How many requests there are, and what is wrong with them (the first of many).

    Args:
        longest: Bytes that a line may have.
    """
    errors: list[BatchError] = []
    seen: set[str] = set()
    count = 0
    for number, line in read(path):
        count += 1
        if count > MOST_LINES:
            message = f"The file has more than {MOST_LINES} requests."
            errors.append(BatchError(code="too_many_tasks", message=message, line=number))
            break
        wrong = _wrong(line, endpoint, longest, seen)
        if wrong is not None:
            errors.append(BatchError(code=wrong[0], message=wrong[1], line=number, param=wrong[2]))
        if len(errors) == MOST_ERRORS:
            break
    if not count:
        errors.append(BatchError(code="empty_file", message="The file has no requests."))
    return count, errors


def _wrong(
    line: bytes, endpoint: str, longest: int, seen: set[str]
) -> tuple[str, str, str | None] | None:
    """A code, a sentence and a field, or None if the line is right; its id joins ``seen``."""
    if len(line) > longest:
        return "invalid_json_line", f"A line must have at most {longest} bytes.", None
    try:
        parsed = msgspec.json.decode(line, type=InputLine)
        body: Any = msgspec.json.decode(parsed.body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return "invalid_json_line", f"This line is no request: {what_is_wrong(error)}.", None
    if not 1 <= len(parsed.custom_id) <= LONGEST_ID:
        message = f"custom_id must have 1 to {LONGEST_ID} characters."
        return "invalid_custom_id", message, "custom_id"
    if parsed.custom_id in seen:
        message = f"The custom_id {parsed.custom_id[:100]!r} was used before."
        return "duplicate_custom_id", message, "custom_id"
    seen.add(parsed.custom_id)
    if parsed.method != "POST":
        return "invalid_method", "method must be POST.", "method"
    if parsed.url != endpoint:
        return "mismatched_url", f"url must be {endpoint}, the batch's endpoint.", "url"
    if bytes(body.get("stream", b"false")) not in (b"false", b"null"):
        return "invalid_request", "A batch cannot stream.", "body.stream"
    return None


def done(path: Path) -> set[str]:
    """The ids of the requests that ``path`` has whole lines of; a torn last line is cut off."""
    found: set[str] = set()
    if not path.exists():
        return found
    whole = 0
    with path.open("rb+") as file:
        for line in file:
            try:
                found.add(msgspec.json.decode(line, type=OutputLine).custom_id)
            except msgspec.DecodeError:
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
        file.truncate(whole)
    return found
