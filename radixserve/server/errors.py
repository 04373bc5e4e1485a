"""What went wrong, as a client reads it: its API's error object, a status and headers."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import inspect
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.errors import (
    DeadlineError,
    EngineDeadError,
    InvalidRequestError,
    LostError,
    OverloadedError,
)
from radixserve.server.messages import errors as anthropic

log = logging.getLogger(__name__)

MAX_MESSAGE = 1000
MAX_PARAM = 200
MAX_RETRY_AFTER = 120
NOT_THAT = 405
"""The status where a URL is there, and does not take the method."""

PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
BOUND = re.compile(r"^Expected `\w+` (?:of (?P<length>length) )?(?P<sign>[<>]=?) (?P<bound>\S+)$")
SIGNS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
ENUM = "Invalid enum value"
MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`")
SURROGATE = re.compile(r"(?:surrogate|end of hex escape).*\(byte (?P<byte>\d+)\)")
MOST_AFTER_HALF = 11
HALF_AT_END = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u|\\?$).{,5}$", re.DOTALL)
"""The first half of a pair so near to the end that the decoder takes the second one for cut off."""


class ErrorObject(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorObject


@dataclass(kw_only=True, eq=False)
class ApiError(Exception):
    """An error with everything that its answer needs."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def short(self) -> tuple[str, str | None]:
        """Message and param; whatever of them came from the client is cut to size."""
        param = None if self.param is None else _short(self.param, MAX_PARAM)
        return _short(self.message, MAX_MESSAGE), param

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        message, param = self.short()
        return msgspec.json.encode(ErrorBody(ErrorObject(message, self.type, param, self.code)))

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The same of fields that the client knows by other ``names``."""
        words = "|".join(map(re.escape, names))
        message = re.sub(rf"\b({words})\b", lambda found: names[found[0]], self.message)
        name, dot, rest = (self.param or "").partition(".")
        return replace(self, message=message, param=names.get(name, name) + dot + rest or None)

    def within(self, path: str) -> ApiError:
        """The same of fields that stand in the one at ``path``."""
        return replace(self, param=f"{path}.{self.param}" if self.param else path)

    def response(self, scope: Scope) -> Response:
        """The answer to the request of ``scope``, in the shape of the API that it is meant for."""
        body = anthropic.error_body(self, scope) if anthropic.is_meant(scope) else self.body()
        return Response(body, self.status, self.headers, "application/json")


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """The refusal of a request, over one field's value if over nothing more."""
    return ApiError(status=400, message=f"{message}.", param=param, code=code)


def wrong(param: str, says: str, code: str = "invalid_value") -> ApiError:
    """The refusal of one field's value, with a sentence that begins with the field's name."""
    return invalid(param, f"{param} {says}", code)


def required(param: str) -> ApiError:
    """The refusal of a request that lacks a field."""
    return wrong(param, "is required", "missing_required_parameter")


def absent(param: str | None, message: str, code: str) -> ApiError:
    """The refusal of a name of something that is not there."""
    return ApiError(status=404, message=f"{message}.", param=param, code=code)


class AnswerError(Exception):
    """The engine gave up on one answer; ``reason`` is a sentence of its own."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def to_api_error(error: Exception) -> ApiError:
    """How ``error`` is told to a client. What nobody foresaw tells nothing but that it happened."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(status=400, message=error.message, param=error.param, code=error.code)
        case OverloadedError():
            return _try_later(error.message, error.retry_after)
        case DeadlineError():
            return ApiError(
                status=504,
                message=str(error),
                type="timeout_error",
                code="deadline_exceeded",
                # Libraries retry on any 5xx, which would only lengthen the queue.
                headers={"x-should-retry": "false"},
            )
        case LostError():
            return _try_later(
                "The engine has failed, and has begun anew: send the request once more.", 1.0
            )
        case EngineDeadError(retry_after=float(seconds)):
            return _try_later(
                "The engine has died, and is being started again: send the request once more.",
                seconds,
            )
        case EngineDeadError():
            return _server_error(
                "The server is shutting down, or its engine has died; try again once it is back.",
                "engine_dead",
            )
        case AnswerError():
            return _server_error(
                f"The answer could not be finished: {error.reason}", "answer_error"
            )
        case HTTPException():
            return _routing_error(error)
        case _:
            return _server_error("The server failed on this request.", "internal_error")


def invalid_json(
    error: Exception, within: str = "", data: bytes = b"", type_: Any = None
) -> ApiError:
    """What the decoder found: no JSON, a missing field, or a value of the wrong type.

    Args:
        within: The path of what was decoded, if that is not the body.
        data: What was decoded, if it was JSON.
        type_: As what.
    """
    if isinstance(error, RecursionError):
        return invalid(None, "The body is nested too deeply", "invalid_json")
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        half = SURROGATE.search(text)
        if half or HALF_AT_END.search(data, max(0, len(data) - MOST_AFTER_HALF)):
            place = f"byte {half['byte']}" if half else "its end"
            message = (
                f"The body is not valid text: a lone surrogate, one half of a pair of \\u escapes, "
                f"stands before {place}. Send both halves, or the character itself"
            )
            return invalid(None, message, "invalid_json")
        return invalid(None, f"The body is not valid JSON in UTF-8: {text}", "invalid_json")
    found = PATH.search(text)
    path = _dotted(found["path"]) if found else None
    param = ".".join(filter(None, (within, path))) or None
    reason = text[: found.start()] if found else text
    if missing := MISSING.match(reason):
        param = f"{param}.{missing['name']}" if param else missing["name"]
        return required(param)
    if bound := BOUND.match(reason):
        what = "must have a length of" if bound["length"] else "must be"
        says = f"{what} {SIGNS[bound['sign']]} {bound['bound'].removesuffix('.0')}"
        return invalid(param, f"{_subject(param, found[0] if found else '')} {says}")
    if words := _words(type_, found["path"]) if found and reason.startswith(ENUM) else []:
        return invalid(param, f"{param} must be one of {', '.join(words)}")
    code = "invalid_value" if "out of range" in reason else "invalid_type"
    return invalid(param, f"{param or 'The body'}: {reason}", code)


async def answer_with_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for every error that is foreseen."""
    told = to_api_error(error)
    if told.status == NOT_THAT:
        methods = ", ".join(_methods(request)) or told.headers.get("Allow", "GET, HEAD")
        message = f"This URL takes {methods}, not {request.method}."
        told = replace(told, message=message, headers={"Allow": methods})
    return told.response(request.scope)


def _methods(request: Request) -> list[str]:
    """What the routes of this URL take; a route of Starlette's knows its own alone. None for what
    is mounted, which by then has written its own root into the scope.
    """
    found: set[str] = set()
    root = request.scope.get("app_root_path", request.scope.get("root_path", ""))
    scope = {**request.scope, "root_path": root}
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)


class CatchAll:
    """Answers 500 in the shape of all errors when a route fails in a way that nobody foresaw."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except asyncio.CancelledError:
            # The server goes down and has waited long enough; nobody else cancels a request.
            if not started:
                await to_api_error(going_down()).response(scope)(scope, receive, send)
        except Exception as error:
            log.exception("a request failed")
            if started:
                raise
            await to_api_error(error).response(scope)(scope, receive, send)


def going_down() -> OverloadedError:
    """What a request that cannot be finished any more is told."""
    return OverloadedError("The server is shutting down.")


def _try_later(message: str, seconds: float) -> ApiError:
    whole = min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER)
    return ApiError(
        status=503,
        message=message,
        type="server_error",
        code="server_overloaded",
        headers={"retry-after": str(whole)},
    )


def _server_error(message: str, code: str) -> ApiError:
    return ApiError(status=500, message=message, type="server_error", code=code)


def _routing_error(error: HTTPException) -> ApiError:
    messages = {404: "There is no such URL here; the API begins at /v1."}
    codes = {404: "unknown_url", NOT_THAT: "method_not_allowed"}
    return ApiError(
        status=error.status_code,
        message=messages.get(error.status_code, error.detail),
        code=codes.get(error.status_code),
        headers=dict(error.headers or {}),
    )


def _words(type_: Any, path: str) -> list[str]:
    """Those that may stand at ``path`` in ``type_``; none where that cannot be told."""
    kinds = _kinds(inspect.type_info(type_))
    for name in filter(None, re.split(r"[.\[\]]+", path)):
        kinds = [
            each.type
            for kind in kinds
            if isinstance(kind, inspect.StructType)
            for each in kind.fields
            if each.encode_name == name
        ]
        kinds = [each for kind in kinds for each in _kinds(kind)]
    if not all(isinstance(kind, inspect.LiteralType | inspect.NoneType) for kind in kinds):
        return []  # what is no word may stand there too
    literals = [kind.values for kind in kinds if isinstance(kind, inspect.LiteralType)]
    return [str(word) for values in literals for word in values]


def _kinds(kind: inspect.Type) -> list[inspect.Type]:
    """What ``kind`` may be."""
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _subject(param: str | None, place: str) -> str:
    """Of what a bound is told: the value at ``place``, or a key or a value of the object there."""
    if "`key` in" in place:
        return f"A key of {param or 'the body'}"
    if place.endswith("[...]`"):
        return f"A value of {param or 'the body'}"
    return param or "The body"


def _dotted(path: str) -> str | None:
    """``.messages[0].role`` as ``messages.0.role``; unnamed keys are left out."""
    return path.replace("[...]", "").replace("[", ".").replace("]", "").strip(".") or None


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
