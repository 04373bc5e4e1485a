"""What a request's body may be, checked before anything is made of it."""

from __future__ import annotations

from typing import TypeVar

import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request

from radixserve.server.errors import ApiError, invalid_json

BODY_LIMIT = 32 * 2**20
LARGE_BODY = 2**18
"""Bytes from which decoding would hold up the event loop for more than a few milliseconds."""
BULK = ("messages", "system", "prompt", "input", "instructions")
"""Fields that may hold as many values as fit into the body."""
MAX_COMMAS = 2**16
"""Commas outside of these, and so values beside them."""
MAX_CONTAINERS = 2**18
"""Lists and objects of a body. Brackets inside of texts count too, since telling them apart costs
what this saves; a text with so many is longer than what models take."""

T = TypeVar("T")
Raws = dict[str, msgspec.Raw]


class _Bulk(msgspec.Struct):
    """The fields that may be large, and those that somebody might make so."""

    messages: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    stop: msgspec.Raw = msgspec.Raw(b"")
    stop_token_ids: msgspec.Raw = msgspec.Raw(b"")
    logit_bias: msgspec.Raw = msgspec.Raw(b"")
    response_format: msgspec.Raw = msgspec.Raw(b"")
    structured_outputs: msgspec.Raw = msgspec.Raw(b"")


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


async def read_json(request: Request, type_: type[T], limit: int | None = None) -> tuple[T, Raws]:
    """The body of ``request``, of at most ``limit`` bytes or as many as the server takes, as
    ``decode`` has it.

    Raises:
        ApiError, ClientDisconnect: as ``read_body`` and ``decode``.
    """
    service = request.app.state.service
    body = await read_body(request, service.settings.body_limit if limit is None else limit)
    return await decode(body, type_, service.large_bodies)


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


def _check_values(body: bytes) -> None:
    """Bound what the decoder has to build, by looks that build nothing."""
    if body.count(b",") <= MAX_COMMAS:
        return
    if body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
        raise ApiError(
            status=400,
            message=f"The body holds more than {MAX_CONTAINERS} lists and objects.",
            code="invalid_value",
        )
    bulk = msgspec.json.decode(body, type=_Bulk)
    commas = {name: bytes(raw).count(b",") for name, raw in msgspec.structs.asdict(bulk).items()}
    besides = body.count(b",") - sum(commas.pop(name) for name in BULK)
    if besides > MAX_COMMAS:
        largest = max(commas, key=lambda name: commas[name])
        if commas[largest] > besides // 2 and largest in ("response_format", "structured_outputs"):
            raise ApiError(
                status=400,
                message=f"Invalid schema for {largest}: it holds too many values.",
                param=largest,
                code="invalid_json_schema",
            )
        raise ApiError(
            status=400,
            message="The body holds too many values besides the prompt itself.",
            param=largest if commas[largest] > besides // 2 else None,
            code="invalid_value",
        )


def _check_headers(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            status=415,
            message="The body must be JSON: send the header Content-Type: application/json.",
            param="content-type",
            code="unsupported_media_type",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(
            status=415,
            message="The body must not be compressed.",
            param="content-encoding",
            code="unsupported_media_type",
        )
    if announced(request) > limit:
        raise _too_large(limit)


def announced(request: Request) -> int:
    """Bytes of the body; 0 if it does not say how many it has."""
    length = request.headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0


def _too_large(limit: int) -> ApiError:
    return ApiError(
        status=413,
        message=f"The body is larger than {limit} bytes.",
        type="request_too_large",
        code="request_too_large",
        # What is still on its way would be read as the next request.
        headers={"connection": "close"},
    )
