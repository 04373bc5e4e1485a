"""What a request's body may be, checked before anything is made of it."""

from __future__ import annotations

from typing import TypeVar

import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request

from radixserve.server.errors import ApiError, invalid, invalid_json

BODY_LIMIT = 32 * 2**20
LARGE_BODY = 2**18
"""Bytes from which decoding would hold up the event loop for more than a few milliseconds."""
BULK = ("messages", "system", "prompt", "input", "instructions")
"""Fields that may hold as many values as fit into the body."""
NULL = b"null"
MAX_COMMAS = 2**16
"""Commas outside of these, and so values beside them."""
MAX_CONTAINERS = 2**18
"""Lists and objects of a body. Brackets inside of texts count too, since telling them apart costs
what this saves; a text with so many is longer than what models take."""

T = TypeVar("T")
Raws = dict[str, msgspec.Raw]

SUSPECTS = ("stop", "stop_token_ids", "logit_bias", "response_format", "structured_outputs")
"""Fields that somebody might make large."""

_Bulk = msgspec.defstruct(
    "_Bulk", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in (*BULK, *SUSPECTS)]
)


async def read_body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """The body of a JSON request.

    Raises:
        ApiError: 415, it is not said to be plain JSON; 413, it is longer than ``limit``.
        ClientDisconnect: the client went away while it was sending.
    """
    _check_headers(request, limit)
    chunks, size = [], 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            body = request.state.visit.body = b"".join(chunks)
            return body


async def decode(body: bytes, type_: type[T], limiter: anyio.CapacityLimiter) -> tuple[T, Raws]:
    """``body`` as ``type_``, and its top-level fields as they were sent.

    Of a key that comes twice the last one counts. A large body is decoded on a thread, under
    ``limiter``.

    Raises:
        ApiError: 400, it is not JSON, or not of this type.
    """
    if len(body) < LARGE_BODY:
        return _decode(body, type_)
    return await anyio.to_thread.run_sync(_decode, body, type_, limiter=limiter)


def _decode(body: bytes, type_: type[T]) -> tuple[T, Raws]:
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into what it skips
        _check_values(body)
        raws = msgspec.json.decode(body, type=Raws)
        return msgspec.json.decode(body, type=type_), raws
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid_json(error, data=body, type_=type_) from error


def is_null(raw: msgspec.Raw) -> bool:
    """Whether a value is null; a large one is not looked at. O(1)."""
    return len(raw) == len(NULL) and bytes(raw) == NULL


def converted(sent: object, type_: type[T], path: str) -> T:
    """``sent``, which was decoded at ``path`` of a body, as ``type_``.

    Raises:
        ApiError: 400, a field is missing or of another type.
    """
    try:
        return msgspec.convert(sent, type_)
    except (msgspec.ValidationError, RecursionError) as error:
        raise invalid_json(error, path, type_=type_) from error


def _check_values(body: bytes) -> None:
    """Bound what the decoder has to build, by looks that build nothing."""
    if body.count(b",") <= MAX_COMMAS:
        return
    if body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
        raise invalid(None, f"The body holds more than {MAX_CONTAINERS} lists and objects")
    bulk = msgspec.json.decode(body, type=_Bulk)
    commas = {name: bytes(raw).count(b",") for name, raw in msgspec.structs.asdict(bulk).items()}
    besides = body.count(b",") - sum(commas.pop(name) for name in BULK)
    if besides > MAX_COMMAS:
        largest = max(commas, key=lambda name: commas[name])
        param = largest if commas[largest] > besides // 2 else None
        if param in ("response_format", "structured_outputs"):
            message = f"Invalid schema for {param}: it holds too many values"
            raise invalid(param, message, "invalid_json_schema")
        raise invalid(param, "The body holds too many values besides the prompt itself")


def _check_headers(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "The body must be JSON: send the header Content-Type: application/json."
        raise unsupported_media("content-type", message)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise unsupported_media("content-encoding", "The body must not be compressed.")
    if announced(request) > limit:
        raise _too_large(limit)


def announced(request: Request) -> int:
    """Bytes of the body; 0 if it does not say how many it has."""
    length = request.headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0


def unsupported_media(header: str, message: str) -> ApiError:
    """The refusal of a body for what ``header`` says, or does not say, of it."""
    return ApiError(status=415, message=message, param=header, code="unsupported_media_type")


def _too_large(limit: int) -> ApiError:
    return ApiError(
        status=413,
        message=f"The body is larger than {limit} bytes.",
        type="request_too_large",
        code="request_too_large",
        # What is still on its way would be read as the next request.
        headers={"connection": "close"},
    )
