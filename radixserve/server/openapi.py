"""``GET /openapi.json``: the routes as they are, with the fields that they honour."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import radixserve
from radixserve.server.batches.routes import BatchRequest
from radixserve.server.batches.store import BatchObject, FileObject
from radixserve.server.cache import PurgeRequest, Salt
from radixserve.server.embeddings import EmbeddingList, EmbeddingRequest
from radixserve.server.errors import ErrorBody
from radixserve.server.explained import Told
from radixserve.server.generate import GenerateRequest
from radixserve.server.messages.errors import AnthropicErrorBody, is_messages
from radixserve.server.messages.wire import (
    CountTokensRequest,
    CountTokensResponse,
    MessageObject,
    MessagesRequest,
)
from radixserve.server.models import ModelList, ModelObject
from radixserve.server.prefixes import PrefixList, PrefixObject
from radixserve.server.prewarm import Prewarmed, PrewarmRequest
from radixserve.server.responses.wire import (
    DeletedResponse,
    InputTokens,
    ItemList,
    ResponseObject,
    ResponsesRequest,
)
from radixserve.server.tenants.public import (
    PublicPrefixList,
    PublicPrefixObject,
    PublicPrefixRequest,
)
from radixserve.server.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from radixserve.server.tree import TreeObject
from radixserve.server.wire import ChatRequest, CompletionRequest, Json

Struct = type[msgspec.Struct]

BODIES: dict[str, Struct] = {
    "POST /v1/chat/completions": ChatRequest,
    "POST /v1/completions": CompletionRequest,
    "POST /v1/embeddings": EmbeddingRequest,
    "POST /v1/messages": MessagesRequest,
    "POST /v1/messages/count_tokens": CountTokensRequest,
    "POST /v1/responses": ResponsesRequest,
    "POST /v1/responses/input_tokens": ResponsesRequest,
    "POST /generate": GenerateRequest,
    "POST /tokenize": TokenizeRequest,
    "POST /detokenize": DetokenizeRequest,
    "POST /v1/batches": BatchRequest,
    "POST /v1/cache/lookup": ChatRequest,
    "POST /v1/cache/purge": PurgeRequest,
    "POST /v1/cache/prewarm": PrewarmRequest,
    "DELETE /v1/cache/sessions/{session}": Salt,
    "PUT /v1/cache/prefixes/{prefix}": PrewarmRequest,
    "PUT /v1/cache/public/{prefix}": PublicPrefixRequest,
}
"""What is sent, by method and path."""
ANSWERS: dict[str, Struct] = {
    "GET /v1/models": ModelList,
    "GET /v1/models/{name}": ModelObject,
    "POST /v1/embeddings": EmbeddingList,
    "POST /v1/messages": MessageObject,
    "POST /v1/messages/count_tokens": CountTokensResponse,
    "POST /v1/responses": ResponseObject,
    "POST /v1/responses/input_tokens": InputTokens,
    "GET /v1/responses/{id}": ResponseObject,
    "DELETE /v1/responses/{id}": DeletedResponse,
    "POST /v1/responses/{id}/cancel": ResponseObject,
    "GET /v1/responses/{id}/input_items": ItemList,
    "POST /tokenize": TokenizeResponse,
    "POST /detokenize": DetokenizeResponse,
    "POST /v1/batches": BatchObject,
    "GET /v1/batches/{id}": BatchObject,
    "POST /v1/files": FileObject,
    "GET /v1/files/{id}": FileObject,
    "GET /v1/cache/tree": TreeObject,
    "GET /v1/cache/requests/{id}": Told,
    "POST /v1/cache/lookup": Told,
    "POST /v1/cache/prewarm": Prewarmed,
    "GET /v1/cache/prefixes": PrefixList,
    "PUT /v1/cache/prefixes/{prefix}": PrefixObject,
    "POST /v1/cache/prefixes/{prefix}/prewarm": PrefixObject,
    "GET /v1/cache/public": PublicPrefixList,
    "PUT /v1/cache/public/{prefix}": PublicPrefixObject,
}
"""What comes back with status 200, where it is more than a few words."""
STREAMS = frozenset(
    {
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/messages",
        "POST /v1/responses",
        "POST /generate",
    }
)
TEMPLATE = "#/components/schemas/{name}"
REQUIRED = {"schema": {"type": "string"}, "in": "path", "required": True}


async def openapi(request: Request) -> Response:
    return Json(described(request.app.routes))


def described(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 description of ``routes``."""
    structs: set[Struct] = {*BODIES.values(), *ANSWERS.values(), ErrorBody, AnthropicErrorBody}
    unique = sorted(structs, key=lambda each: each.__name__)
    schemas, components = msgspec.json.schema_components(unique, ref_template=TEMPLATE)
    named = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not isinstance(route, Route):
            continue
        path = route.path.replace(":path}", "}")
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(f"{method} {path}", route, named)
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "radixserve", "version": radixserve.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(key: str, route: Route, named: dict[Struct, dict[str, Any]]) -> dict[str, Any]:
    method, path = key.split(" ")
    said: dict[str, Any] = {"description": "The answer."}
    content: dict[str, Any] = {}
    if key in ANSWERS:
        content["application/json"] = {"schema": named[ANSWERS[key]]}
    if key in STREAMS:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if content:
        said["content"] = content
    errors = AnthropicErrorBody if is_messages(path) else ErrorBody
    refused = {
        "description": "What is wrong, and what to do.",
        "content": {"application/json": {"schema": named[errors]}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{path}".translate(str.maketrans("/{}", "___")),
        "responses": {"200": said, "4XX": refused, "5XX": refused},
    }
    if doc := inspect.getdoc(route.endpoint):
        operation["description"] = doc
    names = [each[1:-1] for each in path.split("/") if each.startswith("{")]
    if names:
        operation["parameters"] = [{"name": name, **REQUIRED} for name in names]
    if key in BODIES:
        body = {"application/json": {"schema": named[BODIES[key]]}}
        operation["requestBody"] = {"required": True, "content": body}
    elif key == "POST /v1/files":
        operation["requestBody"] = _upload()
    return operation


def _upload() -> dict[str, Any]:
    fields = {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
