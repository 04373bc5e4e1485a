"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.frontend import TextDelta, TextRequest, TokenLogprob
from radixserve.server.answer import Envelope, Shape, clipped, respond, token_ids
from radixserve.server.beams import beams_of
from radixserve.server.best_of import BestOf, answers_of
from radixserve.server.fields import COMPLETION_REFUSED, triage, unknown_options
from radixserve.server.keeping import with_end
from radixserve.server.limits import read_json
from radixserve.server.parameters import (
    bad_words,
    check_model,
    sampling_params,
    text_request,
)
from radixserve.server.prompts import Prompt, encoded, named
from radixserve.server.scored import Echo, likeliest, prompt_logprobs, scored
from radixserve.server.service import Deltas, Service
from radixserve.server.structured import check_form, form_of
from radixserve.server.wire import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptCacheOptions,
    PromptLogprobs,
    invalid,
)
from radixserve.tokens import unpack

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompts of a request on their way to the engine."""

    requests: list[TextRequest]
    sent: list[Prompt]
    """As the client has them."""
    answers: int
    """That are shown, of those that are generated."""


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    fields, raws = await read_json(request, CompletionRequest)
    ignored = triage(raws, CompletionRequest, COMPLETION_REFUSED)
    ignored += unknown_options(raws, PromptCacheOptions)
    name = service.frontend.card.name
    envelope = Envelope.of(
        fields, name, prefix="cmpl-", kind="text_completion", chunk_kind="text_completion"
    )
    prompted = await prepared(service, fields, request.headers, envelope.id)
    requests, tokens = prompted.requests, [each.prompt for each in prompted.requests]
    texts = await service.text_work(partial(_echoed, service, fields, prompted.sent))
    top = fields.logprobs if _scored_echo(fields) else None
    echoes = [
        Echo(text, prompt, service.frontend.tokenizer, top)
        for text, prompt in zip(texts, tokens, strict=True)
    ]
    told = tokens if fields.return_token_ids else None
    n = requests[0].n
    shape: Shape = CompletionAnswer(echoes, n, fields.prompt_logprobs, told)
    if n > prompted.answers:
        logprobs = fields.logprobs is not None
        shape = BestOf(shape, n=prompted.answers, of=n, logprobs=logprobs)
    return await respond(request, envelope, ignored, requests, shape)


async def prepared(
    service: Service, fields: CompletionRequest, headers: Headers, id: str
) -> Prompted:
    """The prompts of ``fields``, tokenized; they are checked before that costs much.

    Args:
        id: of the answer.

    Raises:
        ApiError: 400, a field cannot be.
        InvalidRequestError: what the tokenizer refuses.
        ContextLengthError: a prompt is too long.
        OverloadedError: too many wait already.
    """
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
        prompt_logprobs=_prompt_logprobs(fields),
        least=0 if fields.echo or fields.prompt_logprobs is not None else 1,
        grammar=None if form is None else form.grammar,
    )
    sampling = replace(sampling, bad_words=bad_words(fields, service.frontend.tokenizer))
    prompts = named(fields.prompt, "prompt")
    draft = text_request(
        fields,
        headers,
        id,
        sampling=sampling,
        continuation=True,
        most=service.frontend.most,
        prompts=len(prompts),
        answers=answers,
    )
    most, count = service.frontend.most, len(prompts)
    beams = beams_of(fields, sampling, card, most=most, prompts=count, ranks=True)
    draft = replace(draft, beams=beams)
    if draft.n > 1 and _scored_echo(fields):
        name = answers[0]
        message = f"{name} must be 1 with echo and logprobs, which would be the same in each choice"
        raise invalid(name, message)
    service.check_load()
    await check_form(service, form)
    special = fields.add_special_tokens is not False
    tokens = [
        await service.text_work(
            partial(encoded, service, prompt, param, add_special_tokens=special)
        )
        for param, prompt in prompts.items()
    ]
    requests = [
        replace(
            draft,
            id=f"{id}-{index}",
            prompt=prompt,
            end_logprob=_scored_echo(fields),
            keeping=with_end(draft.keeping, fields, prompt),
        )
        for index, prompt in enumerate(tokens)
    ]
    return Prompted(requests, list(prompts.values()), n)


def _scored_echo(fields: CompletionRequest) -> bool:
    return bool(fields.echo) and fields.logprobs is not None


def _prompt_logprobs(fields: CompletionRequest) -> int | None:
    """As many likeliest tokens as are shown of, by vLLM's field or with an echo."""
    wanted = [prompt_logprobs(fields), fields.logprobs if _scored_echo(fields) else None]
    return max((each for each in wanted if each is not None), default=None)


def _echoed(service: Service, fields: CompletionRequest, prompts: list[Prompt]) -> list[str]:
    """The text that is shown of each prompt."""
    if not fields.echo:
        return [""] * len(prompts)
    decode_ids = service.frontend.tokenizer.decode
    return [each if isinstance(each, str) else decode_ids(each) for each in prompts]


class CompletionAnswer:
    """The answers in the shape of completions; choices are numbered prompt by prompt.

    Args:
        echoes: What to put in front of the answers to each prompt.
        n: Answers to each prompt.
        rivals: Likeliest tokens to tell of at each of a prompt, in vLLM's way; None for nothing.
        prompts: Their tokens, if those and the answers' are to be told.
    """

    prompt_logprobs: PromptLogprobs | UnsetType = UNSET

    def __init__(self, echoes: list[Echo], n: int, rivals: int | None, prompts: list[bytes] | None):
        self._echoes = echoes
        self._n = n
        self._rivals = rivals
        self._prompts = prompts

    async def whole(self, deltas: Deltas) -> list[CompletionChoice]:
        pieces: list[list[TextDelta]] = [[] for _ in range(self._n * len(self._echoes))]
        front = [echo.begin() for echo in self._echoes]
        told: list[PromptLogprobs] = [[None] for _ in self._echoes]
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                pieces[prompt * self._n + delta.index].append(delta)
                _extend(front[prompt], self._echoes[prompt].take(delta))
                if self._rivals is not None:
                    told[prompt] += [scored(each, self._rivals) for each in delta.prompt_logprobs]
        choices = []
        for index, news in enumerate(pieces):
            prompt, place = divmod(index, self._n)
            echo, logprobs = self._echoes[prompt], front[prompt] if not place else None
            chosen = [each for delta in news for each in delta.logprobs]
            choices.append(
                CompletionChoice(
                    index,
                    echo.text + "".join(delta.text for delta in news),
                    _logprobs(logprobs, chosen, len(echo.text)),
                    news[-1].finish,
                    news[-1].stop,
                    *self._told(index, news, first=True),
                    prompt_logprobs=(
                        told[prompt] if self._rivals is not None and not place else UNSET
                    ),
                )
            )
        return choices

    async def chunks(self, deltas: Deltas) -> AsyncGenerator[list[CompletionChoice], None]:
        begun: set[int] = set()
        offsets: dict[int, int] = {}
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                index, echo = prompt * self._n + delta.index, self._echoes[prompt]
                text, front = delta.text, CompletionLogprobs()
                first = index not in begun
                if first:
                    begun.add(index)
                    text, front = echo.text + text, echo.begin()
                    offsets[index] = len(echo.text)
                _extend(front, echo.take(delta))
                logprobs = _logprobs(front, delta.logprobs, offsets[index])
                told = self._told(index, [delta], first=first)
                if not (text or logprobs or delta.finish or self._prompts):
                    continue
                offsets[index] += sum(len(each.token) for each in delta.logprobs)
                yield [CompletionChoice(index, text, logprobs, delta.finish, delta.stop, *told)]

    def _told(
        self, index: int, news: list[TextDelta], *, first: bool
    ) -> tuple[list[int] | UnsetType, list[int] | UnsetType]:
        """The tokens of ``news``, and those of the prompt in the ``first`` chunk; none unasked."""
        if self._prompts is None:
            return UNSET, UNSET
        ids = [each for delta in news for each in token_ids(delta)]
        return ids, unpack(self._prompts[index // self._n]) if first else UNSET


def _logprobs(
    front: CompletionLogprobs | None, chosen: Sequence[TokenLogprob], offset: int
) -> CompletionLogprobs | None:
    """Behind ``front``, those of tokens whose text begins ``offset`` characters into the choice."""
    shown = front or CompletionLogprobs()
    for each in chosen:
        shown.text_offset.append(offset)
        shown.tokens.append(each.token)
        shown.token_logprobs.append(clipped(each.logprob))
        shown.top_logprobs.append(likeliest(each))
        offset += len(each.token)
    return shown if shown.tokens else None


def _extend(front: CompletionLogprobs, more: CompletionLogprobs) -> None:
    front.text_offset += more.text_offset
    front.tokens += more.tokens
    front.token_logprobs += more.token_logprobs
    front.top_logprobs += more.top_logprobs
