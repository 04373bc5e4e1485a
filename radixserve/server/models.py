"""``GET /v1/models`` and ``GET /v1/models/{id}``. Clients that send the
header ``anthropic-version`` get the shape that they read."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from radixserve.engine.frontend import ModelCard
from radixserve.server.endpoint import Call
from radixserve.server.messages import errors as anthropic
from radixserve.server.messages.wire import AnthropicModel, AnthropicModels
from radixserve.server.parameters import check_model
from radixserve.server.tenants.visit import forbidden


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


async def list_models(call: Call) -> ModelList | AnthropicModels:
    """Those that the tenant may use."""
    card = call.service.frontend.card
    mine = [card] if call.visit.tenant.may_use(card.name) else []
    if anthropic.is_meant(call.scope):
        ends = mine[0].name if mine else None
        listed = [_anthropic_model(each) for each in mine]
        return AnthropicModels(listed, first_id=ends, last_id=ends)
    return ModelList([_model(each) for each in mine])


async def get_model(call: Call, name: str) -> ModelObject | AnthropicModel:
    card = call.service.frontend.card
    check_model(name, card)
    if not call.visit.tenant.may_use(name):
        raise forbidden(f"This key may not use the model {name!r}.")
    return _anthropic_model(card) if anthropic.is_meant(call.scope) else _model(card)


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
