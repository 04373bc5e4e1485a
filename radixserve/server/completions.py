"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import TextDelta, TokenLogprob
from radixserve.server.answer import Envelope, Shape, clipped, respond, token_ids
from radixserve.server.best_of import BestOf, answers_of
from radixserve.server.fields import COMPLETION_REFUSED, triage
from radixserve.server.limits import decode, read_body
from radixserve.server.parameters import (
    bad_words,
    check_model,
    sampling_params,
    text_request,
)
from radixserve.server.prompts import Prompt, encoded, named
from radixserve.server.service import Deltas, Service
from radixserve.server.structured import check_form, form_of
from radixserve.server.wire import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    invalid,
)
from radixserve.tokens import unpack

DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_body(request, service.settings.body_limit)
    fields, raws = await decode(body, CompletionRequest, service.large_bodies)
    ignored = triage(raws, CompletionRequest, COMPLETION_REFUSED)
    card = service.frontend.card
    check_model(fields.model, card)
    form = form_of(fields)
    answers = answers_of(fields)
    n = 1 if fields.n is None else fields.n
    ranks = answers[1] > n
    logprobs = 0 if ranks and fields.logprobs is None else fields.logprobs
    sampling = sampling_params(
        fields,
        card,
        max_tokens=(
            "max_tokens",
            DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens,
        ),
        logprobs=("logprobs", logprobs),
        grammar=None if form is None else form.grammar,
    )
    sampling = replace(sampling, bad_words=bad_words(fields, service.frontend.tokenizer))
    prompts = named(fields.prompt, "prompt")
    envelope = Envelope.of(
        fields, card.name, prefix="cmpl-", kind="text_completion", chunk_kind="text_completion"
    )
    draft = text_request(
        fields,
        request.headers,
        envelope.id,
        sampling=sampling,
        continuation=True,
        most=service.frontend.most,
        prompts=len(prompts),
        answers=answers,
    )
    if fields.echo and fields.logprobs is not None:
        message = "echo together with logprobs is not supported here"
        raise invalid("echo", message, "unsupported_parameter")
    service.check_load()
    await check_form(service, form)
    special = fields.add_special_tokens is not False
    tokens = [
        await service.text_work(
            partial(encoded, service, prompt, param, add_special_tokens=special)
        )
        for param, prompt in prompts.items()
    ]
    echoes = await service.text_work(partial(_echoes, service, fields, list(prompts.values())))
    requests = [
        replace(draft, id=f"{envelope.id}-{index}", prompt=prompt)
        for index, prompt in enumerate(tokens)
    ]
    told = tokens if fields.return_token_ids else None
    shape: Shape = CompletionAnswer(echoes, draft.n, told)
    if ranks:
        shape = BestOf(shape, n=n, of=draft.n, logprobs=fields.logprobs is not None)
    return await respond(request, envelope, ignored, requests, shape)


def _echoes(service: Service, fields: CompletionRequest, prompts: list[Prompt]) -> list[str]:
    if not fields.echo:
        return [""] * len(prompts)
    decode_ids = service.frontend.tokenizer.decode
    return [each if isinstance(each, str) else decode_ids(each) for each in prompts]


class CompletionAnswer:
    """The answers in the shape of completions; choices are numbered prompt by prompt.

    Args:
        echoes: Text to put in front of the answers to each prompt.
        n: Answers to each prompt.
        prompts: Their tokens, if those and the answers' are to be told.
    """

    def __init__(self, echoes: list[str], n: int, prompts: list[bytes] | None):
        self._echoes = echoes
        self._n = n
        self._prompts = prompts

    async def whole(self, deltas: Deltas) -> list[CompletionChoice]:
        pieces: list[list[TextDelta]] = [[] for _ in range(self._n * len(self._echoes))]
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                pieces[prompt * self._n + delta.index].append(delta)
        return [
            CompletionChoice(
                index,
                self._echoes[index // self._n] + "".join(delta.text for delta in news),
                _logprobs([each for delta in news for each in delta.logprobs], 0),
                news[-1].finish,
                news[-1].stop,
                *self._told(index, news, first=True),
            )
            for index, news in enumerate(pieces)
        ]

    async def chunks(self, deltas: Deltas) -> AsyncGenerator[list[CompletionChoice], None]:
        begun: set[int] = set()
        offsets: dict[int, int] = {}
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                index = prompt * self._n + delta.index
                text = delta.text
                first = index not in begun
                if first:
                    begun.add(index)
                    text = self._echoes[prompt] + text
                told = self._told(index, [delta], first=first)
                if not (text or delta.logprobs or delta.finish or told):
                    continue
                logprobs = _logprobs(delta.logprobs, offsets.get(index, 0))
                if logprobs is not None:
                    offsets[index] = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
                yield [CompletionChoice(index, text, logprobs, delta.finish, delta.stop, *told)]

    def _told(self, index: int, news: list[TextDelta], *, first: bool) -> list[list[int]]:
        """The tokens of ``news``, and those of the prompt in the ``first`` chunk; none unasked."""
        if self._prompts is None:
            return []
        ids = [each for delta in news for each in token_ids(delta)]
        return [ids, unpack(self._prompts[index // self._n])] if first else [ids]


def _logprobs(
    chosen: tuple[TokenLogprob, ...] | list[TokenLogprob], offset: int
) -> CompletionLogprobs | None:
    """The logprobs of tokens whose text begins ``offset`` characters into the answer."""
    if not chosen:
        return None
    shown = CompletionLogprobs([], [], [], [])
    for each in chosen:
        shown.text_offset.append(offset)
        shown.tokens.append(each.token)
        shown.token_logprobs.append(clipped(each.logprob))
        shown.top_logprobs.append(
            {other.token: clipped(other.logprob) for other in each.top}
            | {each.token: clipped(each.logprob)}
        )
        offset += len(each.token)
    return shown
