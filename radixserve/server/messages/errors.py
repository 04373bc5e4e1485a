"""Errors in the shape that Anthropic's clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import Headers
from starlette.types import Scope

if TYPE_CHECKING:
    from radixserve.server.errors import ApiError

MESSAGES = "/v1/messages"
MODELS = "/v1/models"
VERSION_HEADER = "anthropic-version"
"""Tells Anthropic's clients from OpenAI's where both have the same URL."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; any other is an ``invalid_request_error``, or from 500 on an ``api_error``."""


class ErrorDetails(msgspec.Struct, frozen=True):
    """Which clients read beside the message; not there where it would say nothing."""

    error_code: str | UnsetType = UNSET
    param: str | UnsetType = UNSET


class AnthropicError(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    error: AnthropicError
    request_id: str | None


def is_messages(path: str) -> bool:
    """Whether only Anthropic's clients ask for ``path``."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def is_meant(scope: Scope) -> bool:
    """Whether the request of ``scope`` is one to Anthropic's API."""
    path = scope["path"]
    if path == MODELS or path.startswith(f"{MODELS}/"):
        return VERSION_HEADER in Headers(scope=scope)
    return is_messages(path)


def error_body(error: ApiError, scope: Scope) -> bytes:
    """``error`` as JSON."""
    message, param = error.short()
    details: ErrorDetails | UnsetType = UNSET
    if error.code or param:
        details = ErrorDetails(error.code or UNSET, param or UNSET)
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told = AnthropicError(kind, message, details)
    request_id = scope.get("state", {}).get("request_id")
    return msgspec.json.encode(AnthropicErrorBody(told, request_id))
