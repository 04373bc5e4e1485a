"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from radixserve.engine.frontend import TextDelta, TextRequest, TokenLogprob
from radixserve.server.answer import Envelope, Shape, clipped, respond, token_ids
from radixserve.server.beams import beams_of
from radixserve.server.best_of import BestOf, answers_of
from radixserve.server.endpoint import Call
from radixserve.server.errors import wrong
from radixserve.server.keeping import with_end
from radixserve.server.parameters import bad_words, sampling_params, text_request
from radixserve.server.prompts import Prompt, named, tokenized
from radixserve.server.scored import Echo, Entry, likeliest, prompt_logprobs, scored
from radixserve.server.service import Deltas, Service
from radixserve.server.sse import EventStream
from radixserve.server.structured import check_form, form_of
from radixserve.server.wire import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptLogprobs,
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


async def completions(
    call: Call, fields: CompletionRequest
) -> Completion[CompletionChoice] | EventStream:
    service = call.service
    name = service.frontend.card.name
    envelope = Envelope(
        fields, name, prefix="cmpl-", kind="text_completion", chunk_kind="text_completion"
    )
    prompted = await prepared(call, fields, envelope.id)
    requests, tokens = prompted.requests, [each.prompt for each in prompted.requests]
    texts = await service.text_work(_echoed, service, fields, prompted.sent)
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
    return await respond(call, envelope, requests, shape)


async def prepared(call: Call, fields: CompletionRequest, id: str) -> Prompted:
    """The prompts of ``fields``, tokenized; they are checked before that costs much.

    Raises:
        ApiError, RadixServeError: as ``conversation.tokenized``.
    """
    service = call.service
    card, most = service.frontend.card, service.frontend.most
    form = form_of(fields)
    answers = answers_of(fields)
    n = 1 if fields.n is None else fields.n
    ranks = answers[1] > n
    logprobs = 0 if ranks and fields.logprobs is None else fields.logprobs
    length = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    sampling = sampling_params(
        fields,
        card,
        max_tokens=("max_tokens", length),
        logprobs=("logprobs", logprobs),
        prompt_logprobs=_prompt_logprobs(fields),
        least=0 if fields.echo or fields.prompt_logprobs is not None else 1,
        grammar=None if form is None else form.grammar,
    )
    sampling = replace(sampling, bad_words=bad_words(fields, service.frontend.tokenizer))
    prompts = named(fields.prompt, "prompt")
    draft = text_request(
        fields,
        call.headers,
        id,
        sampling=sampling,
        continuation=True,
        most=most,
        prompts=len(prompts),
        answers=answers,
    )
    beams = beams_of(fields, sampling, card, most=most, prompts=len(prompts), ranks=True)
    draft = replace(draft, beams=beams, end_logprob=_scored_echo(fields))
    if draft.n > 1 and _scored_echo(fields):
        name = answers[0]
        raise wrong(
            name, "must be 1 with echo and logprobs, which would be the same in each choice"
        )
    service.check_load()
    await check_form(service, form)
    special = fields.add_special_tokens is not False
    requests = [
        replace(each, keeping=with_end(each.keeping, fields, each.prompt))
        for each in await tokenized(service, draft, prompts, add_special_tokens=special)
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
                front[prompt] += self._echoes[prompt].take(delta)
                if self._rivals is not None:
                    told[prompt] += [scored(each, self._rivals) for each in delta.prompt_logprobs]
        choices = []
        for index, news in enumerate(pieces):
            prompt, place = divmod(index, self._n)
            echo, scores = self._echoes[prompt], [] if place else front[prompt]
            chosen = [each for delta in news for each in delta.logprobs]
            choices.append(
                CompletionChoice(
                    index,
                    echo.text + "".join(delta.text for delta in news),
                    _logprobs(scores, chosen, len(echo.text)),
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
        offsets: dict[int, int] = {}
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                index, echo = prompt * self._n + delta.index, self._echoes[prompt]
                text, front = delta.text, []
                first = index not in offsets
                if first:
                    text, front = echo.text + text, echo.begin()
                    offsets[index] = len(echo.text)
                front += echo.take(delta)
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
    front: list[Entry], chosen: Sequence[TokenLogprob], offset: int
) -> CompletionLogprobs | None:
    """Behind ``front``, those of tokens whose text begins ``offset`` characters into the choice."""
    shown = CompletionLogprobs()
    for each in chosen:
        front.append(Entry(offset, each.token, clipped(each.logprob), likeliest(each)))
        offset += len(each.token)
    for entry in front:
        shown.text_offset.append(entry.offset)
        shown.tokens.append(entry.token)
        shown.token_logprobs.append(entry.logprob)
        shown.top_logprobs.append(entry.top)
    return shown if front else None
