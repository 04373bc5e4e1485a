"""``GET /openapi.json``: the routes as they are, with the fields that they honour."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from starlette.routing import BaseRoute, Route

import radixserve
from radixserve.server.cache import Salt
from radixserve.server.endpoint import Call, Endpoint
from radixserve.server.errors import ErrorBody
from radixserve.server.messages.errors import AnthropicErrorBody, is_messages
from radixserve.server.sse import EventStream
from radixserve.server.wire import ChatRequest, Json

BODIES: dict[str, type[msgspec.Struct]] = {
    "POST /v1/cache/lookup": ChatRequest,
    "DELETE /v1/cache/sessions/{session}": Salt,
}
"""What may be sent where endpoints do not declare it, by method and path."""
TEMPLATE = "#/components/schemas/{name}"
REQUIRED = {"schema": {"type": "string"}, "in": "path", "required": True}
Schemas = dict[Any, dict[str, Any]]
"""By type."""


async def openapi(call: Call) -> dict[str, Any]:
    """What this server takes and gives."""
    return described(call.app.routes)


def described(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 description of ``routes``."""
    shown = [each for each in routes if isinstance(each, Route)]
    kinds = {ErrorBody, AnthropicErrorBody, *BODIES.values()}
    for route in shown:
        if isinstance(route.endpoint, Endpoint):
            kinds.update(_structs(route.endpoint.takes), _structs(route.endpoint.gives))
    unique = sorted(kinds, key=str)
    schemas, components = msgspec.json.schema_components(unique, ref_template=TEMPLATE)
    named = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        path = route.path.replace(":path}", "}")
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(method, path, route.endpoint, named)
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "radixserve", "version": radixserve.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(method: str, path: str, endpoint: object, named: Schemas) -> dict[str, Any]:
    errors = AnthropicErrorBody if is_messages(path) else ErrorBody
    refused = {
        "description": "What is wrong, and what to do.",
        "content": {"application/json": {"schema": named[errors]}},
    }
    told: dict[str, Any] = {"description": "The answer."}
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{path}".translate(str.maketrans("/{}", "___")),
        "responses": {"200": told, "4XX": refused, "5XX": refused},
    }
    takes: object = BODIES.get(f"{method} {path}")
    if isinstance(endpoint, Endpoint):
        takes = endpoint.takes or takes
        if content := _content(endpoint.gives, named):
            told["content"] = content
        endpoint = endpoint.function
    if doc := inspect.getdoc(endpoint):
        operation["description"] = doc
    names = [each[1:-1] for each in path.split("/") if each.startswith("{")]
    if names:
        operation["parameters"] = [{"name": name, **REQUIRED} for name in names]
    if takes is not None:
        body = {"application/json": {"schema": named[takes]}}
        operation["requestBody"] = {"required": True, "content": body}
    elif (method, path) == ("POST", "/v1/files"):
        operation["requestBody"] = _upload()
    return operation


def _content(gives: object, named: Schemas) -> dict[str, Any]:
    """What the answer may be, by its media type."""
    content: dict[str, Any] = {}
    schemas = [named[each] for each in dict.fromkeys(_structs(gives))]
    if schemas:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        content["application/json"] = {"schema": schema}
    if EventStream in get_args(gives):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _structs(kind: object) -> Iterator[Any]:
    """The structs that ``kind``, one or a union, stands for."""
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        origin = get_origin(each) or each
        if origin is Json:
            yield from _structs(get_args(each)[0])
        elif isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            yield each


def _upload() -> dict[str, Any]:
    fields = {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
