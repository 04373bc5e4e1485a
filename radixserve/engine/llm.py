"""The engine in the caller's own process and thread, without a server."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import msgspec
from tqdm import tqdm

from radixserve.cache.namespace import client_namespace
from radixserve.cache.purge import Purge
from radixserve.config import EngineConfig
from radixserve.engine.answer import Answer
from radixserve.engine.core import EngineCore
from radixserve.engine.frontend import TextRequest, TokenLogprob
from radixserve.engine.garbage import spare_what_is_loaded
from radixserve.engine.grammars import Grammars
from radixserve.engine.messages import (
    CacheMode,
    EngineStats,
    FinishReason,
    GenerationDelta,
    Usage,
)
from radixserve.engine.model_files import prepare, settle
from radixserve.errors import RadixServeError
from radixserve.model import ranks
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count, pack

Prompt = str | Sequence[int]


class Completion(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it, if one did."""


class RequestOutput(msgspec.Struct, kw_only=True):
    """The answers to one prompt."""

    prompt_token_ids: bytes
    """int32 big-endian."""
    completions: list[Completion]
    prompt_logprobs: list[TokenLogprob] = []
    """Of the prompt's tokens from ``SamplingParams.prompt_logprobs_start`` on, if they are asked
    for."""
    usage: Usage
    """``completion_tokens`` are those of all answers, ``cached_tokens`` count once."""

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.completions[0].text


class LLM:
    """A model and its prefix cache::

        llm = LLM()  # the demo model
        chat = [{"role": "user", "content": "What is a radix tree?"}]
        print(llm.chat(chat, SamplingParams(max_tokens=60)).text)

    With ``tensor_parallel_size`` above 1 it starts processes, which import the caller's main
    module again: a script has to make it below ``if __name__ == "__main__":``.

    Args:
        model: a directory, a GGUF file or a Hugging Face id; None is the demo model.
        settings: any other field of ``EngineConfig``.

    Raises:
        ConfigError: a setting cannot work.
        ModelError: the model cannot be found, read or served.
        EngineDeadError: one of several ranks has ended.
    """

    def __init__(self, model: str | None = None, **settings: Any):
        # Whoever calls waits for all the answers anyway.
        settings.setdefault("max_queue", sys.maxsize)
        config = settle(EngineConfig(model=model, **settings))
        files = prepare(config)
        self.name = files.name
        self.tokenizer = Tokenizer.load(files.tokenizer, chat_template=config.chat_template)
        runner = ranks.load(files, config, eos_token_ids=self.tokenizer.eos_token_ids)
        self._grammars = Grammars(self.tokenizer.table())
        self.core = EngineCore(config, runner, self._grammars)
        spare_what_is_loaded()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        stop: str | Sequence[str] = (),
        cache_salt: str | None = None,
        cache: CacheMode = "on",
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer ``prompts`` (texts or token ids), batched; the outputs are in their order.

        ``sampling`` is for all prompts, or one for each. ``cache`` says whether they take cached
        prefixes and leave their own.

        Raises:
            InvalidRequestError: a prompt is empty, too long, or has a token that does not exist; or
                a grammar is not valid.
            RadixServeError: a step failed.
        """
        single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        many: Sequence[Any] = [prompts] if single else prompts
        encoded = [
            self.tokenizer.encode(each) if isinstance(each, str) else pack(each) for each in many
        ]
        if sampling is None or isinstance(sampling, SamplingParams):
            sampling = [sampling or SamplingParams()] * len(encoded)
        requests = [
            _request(prompt, each, n, stop, cache_salt, cache)
            for prompt, each in zip(encoded, sampling, strict=True)
        ]
        return self._run(requests, progress)

    def chat(
        self,
        messages: list[dict[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        n: int = 1,
        stop: str | Sequence[str] = (),
        cache_salt: str | None = None,
        **template: Any,
    ) -> RequestOutput:
        """Answer a conversation; ``template`` passes on to ``Tokenizer.encode_chat``.

        Raises:
            InvalidRequestError: as ``generate``, or the chat template refuses the messages.
            RadixServeError: a step failed.
        """
        prompt = self.tokenizer.encode_chat(messages, **template)
        request = _request(prompt, sampling or SamplingParams(), n, stop, cache_salt, "on")
        [output] = self._run([request], progress=False)
        return output

    def stats(self) -> EngineStats:
        """Gauges and totals as of now."""
        return self.core.stats()

    def reset_prefix_cache(self) -> Purge:
        """Forget every cached prefix."""
        return self.core.reset_prefix_cache()

    def _run(self, requests: list[TextRequest], progress: bool) -> list[RequestOutput]:
        for grammar in {request.sampling.grammar for request in requests}:
            if grammar is not None:
                self._grammars.check(grammar)
        outputs, answers = [], {}
        for request in requests:
            output = RequestOutput(
                prompt_token_ids=request.prompt,
                completions=[Completion(index=index) for index in range(request.n)],
                usage=Usage(count(request.prompt), 0, 0),
            )
            outputs.append(output)
            for index in range(request.n):
                answer = Answer(index, request, self.tokenizer)
                answers[answer.id] = (answer, output)
        try:
            for answer, _ in answers.values():
                self.core.add(answer.sequence(None))
            with tqdm(total=len(answers), desc="Answers", disable=not progress) as bar:
                for _ in self._finished(answers):
                    bar.update()
        finally:
            for identity in answers:
                self.core.abort(identity)
            while not self.core.idle:  # a step that went on with those that have ended
                self._step()
        return outputs

    def _step(self) -> list[GenerationDelta]:
        self.core.cache.time = monotonic()
        return self.core.step()

    def _finished(self, answers: dict[str, tuple[Answer, RequestOutput]]) -> Iterator[str]:
        """Step until all are answered; yields the id of each as it ends."""
        while answers:
            for delta in self._step():
                answer, output = answers[delta.id]
                news = answer.take(delta)
                if news.error is not None:
                    raise RadixServeError(news.error)
                completion = output.completions[answer.index]
                completion.text += news.text
                completion.token_ids.extend(news.tokens)
                completion.logprobs.extend(news.logprobs)
                output.prompt_logprobs.extend(news.prompt_logprobs)
                if not answer.finished:
                    continue
                completion.finish_reason, completion.stop_reason = news.finish, news.stop
                before, final = output.usage, news.usage
                output.usage = Usage(
                    final.prompt_tokens,
                    before.completion_tokens + final.completion_tokens,
                    before.cached_tokens if answer.index else final.cached_tokens,
                )
                self.core.abort(delta.id)
                del answers[delta.id]
                yield delta.id


def _request(
    prompt: bytes,
    sampling: SamplingParams,
    n: int,
    stop: str | Sequence[str],
    cache_salt: str | None,
    cache: CacheMode,
) -> TextRequest:
    return TextRequest(
        id=uuid.uuid4().hex,
        prompt=prompt,
        sampling=sampling,
        n=n,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        namespace=client_namespace(cache_salt),
        cache=cache,
    )
