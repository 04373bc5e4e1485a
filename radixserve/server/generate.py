"""``POST /generate``: SGLang's own API, as far as its benchmarks and simple clients use it.

Streams are cumulative, as there: each event holds the whole text so far.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from time import perf_counter
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
from msgspec.structs import asdict

from radixserve.engine.frontend import Alternative, TextDelta, TextRequest, TokenLogprob
from radixserve.errors import InvalidRequestError
from radixserve.server.answer import clipped
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError, invalid, invalid_json, to_api_error, wrong
from radixserve.server.fields import Body, Values, triage
from radixserve.server.parameters import sampling_params, text_request
from radixserve.server.prompts import Prompt, Prompts, named, tokenized
from radixserve.server.service import Deltas, until_gone
from radixserve.server.sse import EventStream, event
from radixserve.server.structured import Form, check_form, form_of
from radixserve.server.wire import GenerationFields, LikeliestTokens, Priority
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import TOKEN_BYTES, count, unpack

DEFAULTS: dict[str, Any] = {"max_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
"""None of the model's."""
NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
}
"""Sampling parameters that are called otherwise in OpenAI's API, by their names there."""
SAMPLING = "sampling_params"


class SamplingFields(Body, kw_only=True, rename=NAMES):
    """Each under its name in OpenAI's API."""

    refused: ClassVar[Values] = {
        "structural_tag": (),
        "stop_regex": ([], ""),
        "spaces_between_special_tokens": (True,),
        "custom_params": ({},),
    }

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


class GenerateRequest(Body, kw_only=True):
    refused: ClassVar[Values] = {
        "image_data": ([],),
        "video_data": ([],),
        "audio_data": ([],),
        "input_embeds": (),
        "lora_path": ([],),
        "token_ids_logprob": ([],),
        "return_hidden_states": (False,),
        "return_routed_experts": (False,),
        "custom_logit_processor": (),
        "session_params": ({},),
    }

    text: Prompts | None = None
    input_ids: Prompts | None = None
    sampling_params: dict[str, msgspec.Raw] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: LikeliestTokens | None = None
    priority: Priority | None = None
    extra_key: str | None = None
    cache_salt: str | None = None


async def generate(
    call: Call, fields: GenerateRequest
) -> dict[str, Any] | list[dict[str, Any]] | EventStream:
    service = call.service
    chosen, ignored = _sampling(fields)
    call.visit.ignored += ignored
    asked = _asked(fields, chosen)
    sent = _prompts(fields)
    identity = uuid4().hex
    form = form_of(asked)
    form = None if form is None else form.within(SAMPLING)
    with _their_names("text" if fields.input_ids is None else "input_ids"):
        draft = _draft(call, fields, asked, form, identity, len(sent))
    service.check_load()
    await check_form(service, form)
    prompts = await tokenized(service, draft, sent, add_special_tokens=True)
    start = fields.logprob_start_len if draft.sampling.prompt_logprobs is not None else None
    logprobs = bool(fields.return_logprob)
    answers = Answers(identity, prompts, service.frontend.tokenizer, logprobs=logprobs, start=start)
    deltas = service.answers(prompts, call.visit)
    several = ("text" not in sent and "input_ids" not in sent) or draft.n > 1
    if fields.stream:
        return call.streamed(answers.events(deltas, several))
    done = await until_gone(call.receive, answers.whole(deltas))
    return done if several else done[0]


class Answers:
    """What was generated so far, in the shape of this API. The logprobs of a prompt, from ``start``
    on, stand beside the first answer to it; its first one has none, as there."""

    def __init__(
        self,
        identity: str,
        prompts: list[TextRequest],
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        start: int | None,
    ):
        self._identity = identity
        self._n = prompts[0].n
        self._logprobs = logprobs
        self._began = perf_counter()
        self._texts: list[list[str]] = [[] for _ in range(len(prompts) * self._n)]
        self._ids: list[list[int]] = [[] for _ in self._texts]
        self._shown: list[list[list[Any]]] = [[] for _ in self._texts]
        self._rivals: list[list[list[Any]]] = [[] for _ in self._texts]
        self._top = prompts[0].sampling.logprobs or 0
        self._inputs: list[list[list[Any]]] = [[] for _ in self._texts]
        self._input_rivals: list[list[list[Any] | None]] = [[] for _ in self._texts]
        for place, prompt in enumerate(prompts):
            if start is not None and start < count(prompt.prompt):
                [token] = unpack(prompt.prompt[TOKEN_BYTES * start :][:TOKEN_BYTES])
                self._inputs[place * self._n].append([None, token, tokenizer.token_text(token)])
                self._input_rivals[place * self._n].append(None)
        self._last: list[dict[str, Any]] = [{} for _ in self._texts]

    async def whole(self, deltas: Deltas) -> list[dict[str, Any]]:
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                self._take(prompt, delta)
        return self._last

    async def events(self, deltas: Deltas, several: bool) -> AsyncGenerator[bytes, None]:
        """The events of a stream; ``several`` answers are told apart by their index."""
        async with aclosing(deltas):
            async for prompt, delta in deltas:
                index = self._take(prompt, delta)
                if delta.text or delta.finish is not None:
                    news = self._last[index] | ({"index": index} if several else {})
                    yield event(news)

    def _take(self, prompt: int, delta: TextDelta) -> int:
        index = prompt * self._n + delta.index
        self._texts[index].append(delta.text)
        self._ids[index] += delta.tokens
        for each in delta.prompt_logprobs:
            self._inputs[index].append(_entry(each))
            self._input_rivals[index].append([_entry(other) for other in each.top])
        for each in delta.logprobs:
            self._shown[index].append(_entry(each))
            self._rivals[index].append([_entry(other) for other in each.top])
        if delta.text or delta.finish is not None:
            text = "".join(self._texts[index])
            self._texts[index] = [text]
            self._last[index] = {
                "text": text,
                "output_ids": self._ids[index],
                "meta_info": self._meta(index, delta),
            }
        return index

    def _meta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        usage = delta.usage
        meta: dict[str, Any] = {
            "id": self._identity if len(self._texts) == 1 else f"{self._identity}-{index}",
            "finish_reason": _finish(delta),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "e2e_latency": perf_counter() - self._began,
        }
        if self._logprobs:
            meta["input_token_logprobs"] = self._inputs[index]
            meta["output_token_logprobs"] = self._shown[index]
        if self._top:
            meta["input_top_logprobs"] = self._input_rivals[index]
            meta["output_top_logprobs"] = self._rivals[index]
        return meta


def _entry(token: TokenLogprob | Alternative) -> list[Any]:
    return [clipped(token.logprob), token.id, token.token]


def _finish(delta: TextDelta) -> dict[str, Any] | None:
    if delta.finish is None:
        return None
    if delta.finish == "length":
        return {"type": "length", "length": delta.usage.completion_tokens}
    return {"type": delta.finish, "matched": delta.stop}


@contextmanager
def _their_names(prompt: str) -> Iterator[None]:
    """Errors name fields as this API does; that of the prompts is called ``prompt``."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        names = {**NAMES, "logprobs": "top_logprobs_num", "prompt": prompt}
        told = to_api_error(error).renamed(names)
        name = (told.param or "").partition(".")[0]
        if name in SamplingFields.__struct_encode_fields__:
            told = told.within(SAMPLING)
        raise told from error


def _sampling(fields: GenerateRequest) -> tuple[SamplingFields, list[str]]:
    """The sampling parameters, and the paths of those that have no effect.

    Raises:
        ApiError: 400, one of them is of a wrong type or not supported.
    """
    sent = fields.sampling_params or {}
    data = msgspec.json.encode(sent)
    try:
        ignored = triage(sent, SamplingFields)
        chosen = msgspec.json.decode(data, type=SamplingFields, strict=False)
    except msgspec.DecodeError as error:
        raise invalid_json(error, data=data).within(SAMPLING) from error
    except ApiError as error:
        raise error.within(SAMPLING) from error
    return chosen, [f"{SAMPLING}.{name}" for name in ignored]


def _asked(fields: GenerateRequest, chosen: SamplingFields) -> GenerationFields:
    """The same in the words of OpenAI's API."""
    said = {name: value for name, value in asdict(chosen).items() if value is not None}
    if chosen.json_schema is not None:
        said["json_schema"] = msgspec.Raw(msgspec.json.encode(chosen.json_schema))
    return GenerationFields(
        **DEFAULTS | said,
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        extra_key=fields.extra_key,
    )


def _prompts(fields: GenerateRequest) -> dict[str, Prompt]:
    if fields.text is not None and fields.input_ids is None:
        return named(fields.text, "text")
    if fields.text is None and fields.input_ids is not None:
        return named(fields.input_ids, "input_ids")
    raise invalid("text", "Send either text or input_ids")


def _draft(
    call: Call,
    fields: GenerateRequest,
    asked: GenerationFields,
    form: Form | None,
    identity: str,
    prompts: int,
) -> TextRequest:
    start = -1 if fields.logprob_start_len is None else fields.logprob_start_len
    if not -1 <= start < 2**31 - 1:
        raise wrong("logprob_start_len", "must be -1 or a place in the prompt")
    scores = bool(fields.return_logprob) and start >= 0
    if scores and fields.stream:
        message = "logprobs of the prompt cannot be streamed: set stream to false"
        raise invalid("logprob_start_len", message)
    top = fields.top_logprobs_num or 0
    sampling = sampling_params(
        asked,
        call.service.frontend.card,
        max_tokens=("max_tokens", asked.max_tokens),
        logprobs=("logprobs", top if fields.return_logprob else None),
        prompt_logprobs=top if scores else None,
        prompt_logprobs_start=max(1, start + 1),
        least=0,
        grammar=None if form is None else form.grammar,
    )
    return text_request(
        asked,
        call.headers,
        identity,
        sampling=sampling,
        continuation=True,
        most=call.service.frontend.most,
        prompts=prompts,
    )
