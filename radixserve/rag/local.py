"""Questions to a model in this process."""

from __future__ import annotations

import asyncio
import itertools
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING

from radixserve.errors import InvalidRequestError
from radixserve.rag.asked import Counts, Fields, Question, Said, estimated
from radixserve.scheduling.sampling import SamplingParams

if TYPE_CHECKING:
    from radixserve.engine.llm import LLM


class LocalModel:
    """Implements ``Model`` with an ``LLM``, which answers one question after the other."""

    def __init__(self, llm: LLM, *, cache_salt: str | None = None):
        self._llm = llm
        self._salt = cache_salt
        self._turn = threading.Lock()

    def ask(self, question: Question, fields: Fields) -> tuple[Said, Counts]:
        settings = {name: value for name, value in fields.items() if name != "stop"}
        try:
            sampling = SamplingParams(**settings)
        except TypeError as error:
            raise InvalidRequestError(
                f"The settings are not those of SamplingParams: {error}.", param="sampling"
            ) from error
        with self._turn:
            output = self._llm.chat(
                question.messages, sampling, stop=fields.get("stop", ()), cache_salt=self._salt
            )
        usage = output.usage
        said = Said(
            text=output.text,
            finish_reason=output.completions[0].finish_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
        return said, self._count(question, usage.prompt_tokens)

    async def aask(self, question: Question, fields: Fields) -> tuple[Said, Counts]:
        return await asyncio.to_thread(self.ask, question, fields)

    def close(self) -> None:
        """Nothing: the model is the caller's."""

    async def aclose(self) -> None:
        """Nothing: the model is the caller's."""

    def _count(self, question: Question, prompt_tokens: int) -> Counts:
        tokenizer = self._llm.tokenizer
        prompt = tokenizer.render_chat(question.messages)
        documents = "".join(question.parts)
        start = prompt.find(question.before + documents)
        if start < 0:  # a template that rewrites what it is given
            return estimated(question, prompt_tokens)
        starts = tokenizer.starts(prompt)
        bounds = itertools.accumulate(
            (len(part) for part in question.parts), initial=start + len(question.before)
        )
        first, *ends = (bisect_left(starts, bound) for bound in bounds)
        tokens = [end - begin for begin, end in itertools.pairwise([first, *ends])]
        return Counts(first, tokens, "exact")
