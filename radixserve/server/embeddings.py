"""``POST /v1/embeddings``: a vector for each input, from the decoder's hidden states."""

from __future__ import annotations

import base64
import uuid
from contextlib import aclosing
from typing import ClassVar, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from radixserve.engine.frontend import ModelCard, TextRequest
from radixserve.errors import DeadlineError
from radixserve.scheduling.sampling import Pooling, SamplingParams
from radixserve.server.endpoint import Call
from radixserve.server.errors import invalid, wrong
from radixserve.server.fields import Body, Values
from radixserve.server.parameters import text_request
from radixserve.server.prompts import Prompts, named, tokenized
from radixserve.server.service import Service, until_gone
from radixserve.server.tally import Tally
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import (
    CacheFields,
    GenerationFields,
    Json,
    Priority,
    PromptTokensDetails,
)

MAX_INPUTS = 2048
AT_ONCE = 32
"""Inputs of a request that the engine is given at once: enough to fill its steps, and too few to
keep others waiting."""
Encoding = Literal["float", "base64"]


class EmbeddingRequest(Body, kw_only=True):
    """OpenAI's fields, and ours behind them."""

    refused: ClassVar[Values] = {
        "messages": (),
        "truncate_prompt_tokens": (),
        "normalize": (True,),
        "embed_dtype": ("float32",),
    }

    input: Prompts
    model: str | None = None
    encoding_format: Encoding | None = None
    dimensions: int | None = None
    pooling: Pooling | None = None
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    cache: CacheFields | None = None


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    """Numbers, or these as fp32 little-endian in base64."""
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


async def embeddings(call: Call, fields: EmbeddingRequest) -> EmbeddingList | Json[EmbeddingList]:
    service = call.service
    card = service.frontend.card
    size = _size(fields, card)
    inputs = named(fields.input, "input", most=MAX_INPUTS)
    draft = _draft(call, fields)
    service.check_load()
    special = fields.add_special_tokens is not False
    requests = await tokenized(service, draft, inputs, add_special_tokens=special)
    found = _embedded(service, requests, call.visit, size, fields.encoding_format or "float")
    data = await until_gone(call.receive, found)
    answer = EmbeddingList(data, card.name, _usage(call.visit.tally))
    if len(data) * size <= 2**14:
        return answer
    # So many numbers would hold up the event loop.
    return Json(await service.text_work(msgspec.json.encode, answer), headers=call.notes())


def _draft(call: Call, fields: EmbeddingRequest) -> TextRequest:
    """What the engine is asked for, still without an input."""
    pooling: Pooling = fields.pooling or "last"
    draft = text_request(
        GenerationFields(
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            extra_key=fields.extra_key,
            cache=fields.cache,
        ),
        call.headers,
        f"embd-{uuid.uuid4().hex}",
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, pooling=pooling),
        continuation=False,
        most=call.service.frontend.most,
    )
    # Nobody goes on with an input, so that it is no session's.
    draft = replace(draft, keeping=None)
    # A mean takes nothing of the cache, and leaves nothing where others would lose their place.
    return replace(draft, cache="off") if pooling == "mean" else draft


async def _embedded(
    service: Service, requests: list[TextRequest], visit: Visit, size: int, encoding: Encoding
) -> list[Embedding]:
    """The vectors of all ``requests``, in their order.

    Raises:
        DeadlineError: for one of them there was no time.
        AnswerError: one failed.
        RadixServeError: what ``Service.answers`` raises.
    """
    found: dict[int, Embedding] = {}
    async with aclosing(service.answers(requests, visit, at_once=AT_ONCE)) as deltas:
        async for index, delta in deltas:
            if delta.vector is not None:
                found[index] = Embedding(index, _shown(delta.vector, size, encoding))
    if len(found) < len(requests):
        raise DeadlineError("The server was too busy to begin with all inputs in time.")
    return [found[index] for index in range(len(requests))]


def _shown(vector: bytes, size: int, encoding: Encoding) -> list[float] | str:
    """The first ``size`` numbers, with a length of 1."""
    numbers = np.frombuffer(vector, "<f4")[:size].astype(np.float64)
    length = float(np.linalg.norm(numbers))
    unit = (numbers / length if length else numbers).astype("<f4")
    return base64.b64encode(unit.tobytes()).decode() if encoding == "base64" else unit.tolist()


def _size(fields: EmbeddingRequest, card: ModelCard) -> int:
    """Numbers of each vector.

    Raises:
        ApiError: 400, the model gives none, or none of so many.
    """
    most = card.embedding_size
    if most is None:
        raise invalid(
            "model",
            "The served model gives no embeddings on this device, or by several ranks",
            "unsupported_parameter",
        )
    if fields.dimensions is not None and not 1 <= fields.dimensions <= most:
        raise wrong("dimensions", f"must be between 1 and {most}")
    return fields.dimensions or most


def _usage(tally: Tally) -> EmbeddingUsage:
    usage = tally.usage()
    return EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens, usage.prompt_tokens_details)
