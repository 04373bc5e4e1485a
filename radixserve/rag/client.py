"""Questions about documents, to a model in this process or to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from radixserve.errors import ConfigError, InvalidRequestError
from radixserve.prompts.retrieval import INSTRUCTION, retrieval_messages
from radixserve.rag.answer import DocumentReuse, Message, RagAnswer, parts, reused
from radixserve.rag.asked import Counts, Fields, Model, Question, Said
from radixserve.rag.document import Document, ranked
from radixserve.rag.order import Sent, SentOrders

if TYPE_CHECKING:
    from radixserve.engine.llm import LLM

Order = Literal["rank", "cached"]
FURTHER = "Further documents:"
"""What the documents of a later turn begin with."""
DEFAULTS: Fields = {"max_tokens": 512, "temperature": 0.0}


@dataclass(frozen=True, slots=True)
class _Plan:
    """A prompt that is about to be sent."""

    documents: list[Document]
    ranks: list[int]
    seen: tuple[bool, ...]
    question: Question
    sent: Sent | None
    """None where no other prompt can begin alike."""


class Rag:
    """Asks a model about documents, the instruction first and the question last.

    ``answer.documents`` says for each document how much of it was reused. Threads and tasks may
    share one object; what it has sent is what it orders by, so share it.

    Args:
        source: An ``LLM``, or the address of a server that speaks OpenAI's API, with or without
            ``http://`` and ``/v1``.
        model: The name that the server knows the model by; None is the first that it lists.
        order: "rank" keeps the best document first. "cached" puts those first that have been sent
            in this order before, so that their prefix is reused; the others follow by rank. A model
            may answer differently to another order: compare before you rely on it.
        max_shift: With "cached": how many places a document may end up from its rank at most.
        instruction: What the prompt begins with.
        cache_salt: Only requests with the same one share what is cached.
        count_tokens: Whether a server is asked for the tokens of each document that is new to us
            (``/tokenize``); otherwise they are estimated.
        sampling: Fields of OpenAI's API, or of ``SamplingParams`` in-process; by default at most
            512 tokens, greedy. None leaves one to the server.

    Raises:
        ConfigError: settings that cannot work.
        ServerError: no address of a server, or a key that cannot be sent.
    """

    def __init__(
        self,
        source: str | LLM,
        *,
        model: str | None = None,
        api_key: str | None = None,
        order: Order = "rank",
        max_shift: int | None = None,
        instruction: str = INSTRUCTION,
        cache_salt: str | None = None,
        count_tokens: bool = True,
        **sampling: Any,
    ):
        if order not in get_args(Order):
            raise ConfigError(f"order must be one of {', '.join(get_args(Order))}, not {order!r}.")
        if max_shift is not None and (order == "rank" or max_shift < 0):
            raise ConfigError(
                'max_shift is a number of places, 0 or more, and goes with order="cached".'
            )
        self._order, self._max_shift = order, max_shift
        self._instruction = instruction
        self._sampling = DEFAULTS | sampling
        self._sent = SentOrders()
        self._model: Model
        if isinstance(source, str):
            from radixserve.rag.http import HttpModel

            self._model = HttpModel(
                source,
                model=model,
                api_key=api_key,
                cache_salt=cache_salt,
                count_tokens=count_tokens,
            )
        else:
            from radixserve.engine.llm import LLM
            from radixserve.rag.local import LocalModel

            if not isinstance(source, LLM):
                raise ConfigError(
                    f"Rag asks a server by its address or an LLM, not {type(source).__name__}."
                )

            self._model = LocalModel(source, cache_salt=cache_salt)

    def ask(
        self,
        question: str,
        documents: Sequence[Document],
        *,
        history: Sequence[Message] = (),
        **sampling: Any,
    ) -> RagAnswer:
        """The answer to ``question`` from ``documents``, which come best first or have scores.

        With the ``history`` of an earlier answer the conversation goes on behind it: documents that
        it holds are not sent again, and there need not be any. ``sampling`` overrides what the
        object was made with.

        Raises:
            InvalidRequestError: there are no documents, two have one id, something is empty or too
                long, a setting is out of its range; ``param`` names it.
            ServerError: the server cannot be asked, and what to do about it.
            RadixServeError: the model in this process failed.
        """
        plan = self._plan(question, documents, history)
        try:
            said, counts = self._model.ask(plan.question, self._fields(sampling))
        except InvalidRequestError as error:
            raise _about(error, plan.documents) from error
        return self._answer(plan, said, counts)

    async def aask(
        self,
        question: str,
        documents: Sequence[Document],
        *,
        history: Sequence[Message] = (),
        **sampling: Any,
    ) -> RagAnswer:
        """As ``ask``, while the event loop goes on. A model in this process answers one after the
        other."""
        plan = self._plan(question, documents, history)
        try:
            said, counts = await self._model.aask(plan.question, self._fields(sampling))
        except InvalidRequestError as error:
            raise _about(error, plan.documents) from error
        return self._answer(plan, said, counts)

    def close(self) -> None:
        """Close the connections of ``ask``; an ``LLM`` is the caller's, and stays."""
        self._model.close()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._model.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _fields(self, sampling: Fields) -> Fields:
        chosen = self._sampling | sampling
        return {name: value for name, value in chosen.items() if value is not None}

    def _plan(
        self, question: str, documents: Sequence[Document], history: Sequence[Message]
    ) -> _Plan:
        _check_history(history)
        best_first = ranked(question, documents, needed=not history)
        if history:
            return self._later(question, best_first, history)
        keys = [_key(each) for each in best_first]
        ranks = list(range(len(keys)))
        if self._order == "cached":
            sizes = [len(each.text) for each in best_first]
            ranks = self._sent.arrange(keys, sizes, max_shift=self._max_shift)
        placed = [best_first[rank] for rank in ranks]
        keys = [keys[rank] for rank in ranks]
        messages = _layout(question, placed, self._instruction)
        found = parts(messages[0]["content"], self._instruction, placed)
        seen = self._sent.seen(keys)
        sent = self._sent.send(keys)
        return _Plan(placed, ranks, seen, Question(messages, 0, found), sent)

    def _later(
        self, question: str, best_first: Sequence[Document], history: Sequence[Message]
    ) -> _Plan:
        """Behind a history nothing else is cached, so that the order may be that of the ranks."""
        told = [str(message.get("content")) for message in history]
        ranks = [
            rank
            for rank, each in enumerate(best_first)
            if not any(each.text.strip() in content for content in told)
        ]
        placed = [best_first[rank] for rank in ranks]
        content, found = question, []
        if placed:
            content = "\n\n".join(each["content"] for each in _layout(question, placed, FURTHER))
            found = parts(content, FURTHER, placed)
        messages = [*history, {"role": "user", "content": content}]
        seen = self._sent.seen([_key(each) for each in placed])
        return _Plan(placed, ranks, seen, Question(messages, len(history), found), None)

    def _answer(self, plan: _Plan, said: Said, counts: Counts) -> RagAnswer:
        found = reused(said.cached_tokens, counts.before, counts.documents)
        if plan.sent is not None and said.cached_tokens is not None:
            self._sent.confirm(plan.sent, _leading(found, counts.documents))
        uses = zip(plan.documents, plan.ranks, counts.documents, found, plan.seen, strict=True)
        return RagAnswer(
            text=said.text,
            finish_reason=said.finish_reason,
            messages=plan.question.messages,
            documents=[DocumentReuse(*use) for use in uses],
            counted=counts.counted,
            prompt_tokens=said.prompt_tokens,
            cached_tokens=said.cached_tokens,
            completion_tokens=said.completion_tokens,
        )


def _check_history(history: Sequence[Message]) -> None:
    told = "pass the history of an earlier answer, or messages with role and content."
    if isinstance(history, (str, Mapping)) or not isinstance(history, Sequence):
        raise InvalidRequestError(
            f"history must be a list, not {type(history).__name__}: {told}", param="history"
        )
    for place, message in enumerate(history):
        said = isinstance(message, Mapping) and message.keys() & {"content", "tool_calls"}
        if not said or "role" not in message:
            raise InvalidRequestError(
                f"history[{place}] is no message: {told}", param=f"history[{place}]"
            )


def _key(document: Document) -> int:
    """What tells documents apart in a prompt, where ids are not."""
    return hash((document.heading, document.text))


def _layout(question: str, documents: Sequence[Document], instruction: str) -> list[Message]:
    titled = [(each.heading, each.text) for each in documents]
    messages: list[Message] = retrieval_messages(titled, question, instruction=instruction)
    return messages


def _leading(reused: Sequence[int | None], tokens: Sequence[int]) -> int:
    """How many of the first documents were in the cache: most of each, since its end may have been
    evicted, and counts may be estimates."""
    for place, (cached, count) in enumerate(zip(reused, tokens, strict=True)):
        if 2 * (cached or 0) < count:
            return place
    return len(tokens)


def _about(error: InvalidRequestError, documents: Sequence[Document]) -> InvalidRequestError:
    """``error`` as it concerns whoever passes documents, not messages."""
    if error.code != "context_length_exceeded":
        return error
    longest = max(documents, key=lambda each: len(each.text))
    return InvalidRequestError(
        f"The documents are too long, {len(documents)} in all: {error.message.rstrip('.')}. Pass "
        f"fewer or shorter ones; the longest is {longest.id[:80]!r}, {len(longest.text):,} "
        "characters.",
        param="documents",
        code=error.code,
    )
