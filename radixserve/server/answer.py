"""How the choices of an answer become HTTP: one JSON object, or a stream of chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

import radixserve
from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.server.endpoint import Call
from radixserve.server.parameters import stream_options
from radixserve.server.service import Deltas, until_gone
from radixserve.server.sse import EventStream, event
from radixserve.server.tally import Tally
from radixserve.server.tenants.auth import EXPLAIN_HEADER
from radixserve.server.wire import Completion, GenerationFields, PromptLogprobs

FINGERPRINT = f"radixserve-{radixserve.__version__}"
LOWEST_LOGPROB = -9999.0
"""What OpenAI writes for a token that can hardly be; JSON has no infinities."""


class Shape(Protocol):
    """The choices in the form that one API gives them."""

    prompt_logprobs: PromptLogprobs | UnsetType
    """What a whole answer has beside its choices."""

    async def whole(self, deltas: Deltas) -> list[Any]:
        """All choices, once they have finished."""

    def chunks(self, deltas: Deltas) -> AsyncGenerator[list[Any], None]:
        """The choices of each chunk, as they come."""


class Envelope:
    """What is the same in all chunks of an answer.

    Args:
        prefix: What its id begins with.
        kind: Of a whole answer, and ``chunk_kind`` of a part of one.
    """

    def __init__(
        self, fields: GenerationFields, model: str, *, prefix: str, kind: str, chunk_kind: str
    ):
        self.id = prefix + uuid.uuid4().hex
        self._kind, self._chunk_kind = kind, chunk_kind
        self._model, self._created = model, int(time.time())
        self.stream = bool(fields.stream)
        self.include_usage, self._continuous_usage, self.ignored = stream_options(fields)
        self._reuse = bool(fields.return_cached_tokens_details)
        self.explain = bool(fields.explain)
        self.prompt_token_ids: list[int] | UnsetType = UNSET
        """Told once, in the first chunk."""

    def whole(
        self, choices: list[Any], tally: Tally, prompt_logprobs: PromptLogprobs | UnsetType
    ) -> Completion[Any]:
        completion = self._filled(self._kind, choices, tally, usage=True)
        completion.prompt_token_ids = self.prompt_token_ids
        completion.prompt_logprobs = prompt_logprobs
        return completion

    async def events(
        self, chunks: AsyncGenerator[list[Any], None], tally: Tally
    ) -> AsyncGenerator[bytes, None]:
        """The events of a stream, with usage where it was asked for."""
        told = self.prompt_token_ids
        async with aclosing(chunks):
            async for choices in chunks:
                chunk = self._filled(self._chunk_kind, choices, tally, usage=self._continuous_usage)
                chunk.prompt_token_ids, told = told, UNSET
                yield event(chunk)
        if self.include_usage:
            yield event(self._filled(self._chunk_kind, [], tally, usage=True))

    def _filled(
        self, kind: str, choices: list[Any], tally: Tally, *, usage: bool
    ) -> Completion[Any]:
        absent = None if self.include_usage else UNSET
        return Completion(
            id=self.id,
            object=kind,
            created=self._created,
            model=self._model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            usage=tally.usage(reuse=self._reuse) if usage else absent,
        )


async def respond(
    call: Call, envelope: Envelope, prompts: Sequence[TextRequest], shape: Shape
) -> Completion[Any] | EventStream:
    """Generate answers to ``prompts`` and send them as the client asked for them."""
    visit, tally = call.visit, call.visit.tally
    visit.ignored += envelope.ignored
    if envelope.stream and not envelope.include_usage:
        # There is no usage that could explain it.
        asked = {"explain": envelope.explain, EXPLAIN_HEADER: tally.explain}
        visit.ignored += [name for name, explains in asked.items() if explains]
    tally.explain = tally.explain or envelope.explain
    deltas = call.service.answers(prompts, visit)
    if envelope.stream:
        return call.streamed(envelope.events(shape.chunks(deltas), tally))
    choices = await until_gone(call.receive, shape.whole(deltas))
    return envelope.whole(choices, tally, shape.prompt_logprobs)


def token_ids(news: TextDelta) -> list[int]:
    """All that the model has chosen, the end of the answer among them."""
    return [*news.tokens] if news.end is None else [*news.tokens, news.end]


def clipped(logprob: float) -> float:
    """``logprob`` as JSON can hold it."""
    return max(logprob, LOWEST_LOGPROB) if logprob == logprob else LOWEST_LOGPROB
