"""``GET /v1/models`` and ``GET /v1/models/{id}``. Clients that send the
header ``anthropic-version`` get the shape that they read."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import ModelCard
from radixserve.server.messages import errors as anthropic
from radixserve.server.messages.wire import AnthropicModel, AnthropicModels
from radixserve.server.parameters import model_not_found
from radixserve.server.service import Service
from radixserve.server.tenants.visit import Visit, forbidden
from radixserve.server.wire import Json


class ModelObject(msgspec.Struct, frozen=True):
    id: str
    created: int
    max_model_len: int
    root: str
    parent: None = None
    owned_by: str = "radixserve"
    object: str = "model"
    permission: tuple[()] = ()


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelObject]
    object: str = "list"


async def list_models(request: Request) -> Response:
    """Those that the tenant may use."""
    card = _card(request)
    mine = [card] if _mine(request, card) else []
    if anthropic.is_meant(request.scope):
        ends = mine[0].name if mine else None
        listed = [_anthropic_model(each) for each in mine]
        return Json(AnthropicModels(listed, first_id=ends, last_id=ends))
    return Json(ModelList([_model(each) for each in mine]))


async def get_model(request: Request) -> Response:
    card = _card(request)
    name = request.path_params["name"]
    if name != card.name:
        raise model_not_found(name, card)
    if not _mine(request, card):
        raise forbidden(f"This key may not use the model {name!r}.")
    return Json(_anthropic_model(card) if anthropic.is_meant(request.scope) else _model(card))


def _card(request: Request) -> ModelCard:
    service: Service = request.app.state.service
    return service.frontend.card


def _mine(request: Request, card: ModelCard) -> bool:
    visit: Visit = request.state.visit
    return visit.tenant.may_use(card.name)


def _model(card: ModelCard) -> ModelObject:
    return ModelObject(card.name, card.created, card.max_model_len, root=card.name)


def _anthropic_model(card: ModelCard) -> AnthropicModel:
    created = datetime.fromtimestamp(card.created, UTC)
    return AnthropicModel(
        card.name,
        display_name=card.name,
        created_at=f"{created:%Y-%m-%dT%H:%M:%SZ}",
        max_input_tokens=card.max_model_len - 1,
        max_tokens=card.max_model_len,
    )
