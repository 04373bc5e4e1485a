"""How the choices of an answer become HTTP: one JSON object, or a stream of chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, Self

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

import radixserve
from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.server.fields import canonical_header, ignored_header
from radixserve.server.keeping import keep_header
from radixserve.server.parameters import stream_options
from radixserve.server.service import Deltas, Service, until_gone
from radixserve.server.sse import EventStream, event
from radixserve.server.tally import Tally
from radixserve.server.tenants.auth import EXPLAIN_HEADER
from radixserve.server.tenants.visit import Visit
from radixserve.server.wire import Completion, GenerationFields, Json, PromptLogprobs

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What is the same in all chunks of an answer."""

    id: str
    kind: str
    chunk_kind: str
    created: int
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    reuse: bool
    """Whether usage says where the prompt's tokens came from."""
    explain: bool
    """Likewise why they were computed."""
    ignored: list[str]
    """Stream options that have no effect."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Told once, in the first chunk."""

    @classmethod
    def of(
        cls, fields: GenerationFields, model: str, *, prefix: str, kind: str, chunk_kind: str
    ) -> Self:
        include_usage, continuous, ignored = stream_options(fields)
        return cls(
            id=prefix + uuid.uuid4().hex,
            kind=kind,
            chunk_kind=chunk_kind,
            created=int(time.time()),
            model=model,
            stream=bool(fields.stream),
            include_usage=include_usage,
            continuous_usage=continuous,
            reuse=bool(fields.return_cached_tokens_details),
            explain=bool(fields.explain),
            ignored=ignored,
        )

    def whole(
        self, choices: list[Any], tally: Tally, prompt_logprobs: PromptLogprobs | UnsetType
    ) -> Completion:
        completion = self._filled(self.kind, choices, tally, usage=True)
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
                chunk = self._filled(self.chunk_kind, choices, tally, usage=self.continuous_usage)
                chunk.prompt_token_ids, told = told, UNSET
                yield event(chunk)
        if self.include_usage:
            yield event(self._filled(self.chunk_kind, [], tally, usage=True))

    def _filled(self, kind: str, choices: list[Any], tally: Tally, *, usage: bool) -> Completion:
        return Completion(
            id=self.id,
            object=kind,
            created=self.created,
            model=self.model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            usage=tally.usage(reuse=self.reuse) if usage else None if self.include_usage else UNSET,
        )


async def respond(
    request: Request,
    envelope: Envelope,
    ignored: Sequence[str],
    prompts: Sequence[TextRequest],
    shape: Shape,
    canonical: Sequence[str] = (),
) -> Response:
    """Generate answers to ``prompts`` and send them as the client asked for them.

    Args:
        canonical: Forms that changed the prompt.
    """
    service: Service = request.app.state.service
    visit: Visit = request.state.visit
    ignored = [*ignored, *envelope.ignored]
    if envelope.stream and not envelope.include_usage:
        # There is no usage that could explain it.
        asked = {"explain": envelope.explain, EXPLAIN_HEADER: visit.tally.explain}
        ignored += [name for name, explains in asked.items() if explains]
    headers = headers_of(service, prompts[0], ignored, canonical)
    visit.tally.explain = visit.tally.explain or envelope.explain
    deltas = service.answers(prompts, visit)
    if envelope.stream:
        events = envelope.events(shape.chunks(deltas), visit.tally)
        return EventStream(events, service.settings, headers)
    choices = await until_gone(request.receive, shape.whole(deltas))
    whole = envelope.whole(choices, visit.tally, shape.prompt_logprobs)
    return Json(whole, headers=headers | keep_header(visit.tally.kept()))


def token_ids(news: TextDelta) -> list[int]:
    """All that the model has chosen, the end of the answer among them."""
    return [*news.tokens] if news.end is None else [*news.tokens, news.end]


def headers_of(
    service: Service, asked: TextRequest, ignored: Sequence[str], canonical: Sequence[str] = ()
) -> dict[str, str]:
    """What the headers of an answer to ``asked`` say of fields that have no effect, and of
    canonical forms that changed its prompt."""
    unheeded = asked.priority and not service.settings.priorities
    ignored = [*ignored, "priority"] if unheeded else ignored
    return ignored_header(ignored) | canonical_header(canonical)


def clipped(logprob: float) -> float:
    """``logprob`` as JSON can hold it."""
    return max(logprob, LOWEST_LOGPROB) if logprob == logprob else LOWEST_LOGPROB
