"""What a model is asked and what comes back, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from radixserve.rag.answer import Counted, Message

Fields = dict[str, Any]
"""Settings of sampling, by the names of OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that holds documents."""

    messages: list[Message]
    at: int
    """The message with the documents."""
    parts: list[str]
    """What of that message belongs to each document; they follow each other and are found once."""

    @property
    def before(self) -> str:
        """That message up to the first document."""
        content = self.messages[self.at]["content"]
        return content[: content.index("".join(self.parts))]


@dataclass(frozen=True, slots=True)
class Counts:
    """Where in a prompt the documents are, in tokens."""

    before: int
    """Tokens in front of the first document."""
    documents: list[int]
    counted: Counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer as the model's server counts it."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int


class Model(Protocol):
    """A model that can be asked."""

    def ask(self, question: Question, fields: Fields) -> tuple[Said, Counts]:
        """The answer, and where the documents were.

        Raises:
            InvalidRequestError: the prompt is too long, or a setting is out of its range.
            RadixServeError: it could not be asked.
        """

    async def aask(self, question: Question, fields: Fields) -> tuple[Said, Counts]:
        """As ``ask``, while the event loop goes on."""

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def estimated(question: Question, prompt_tokens: int) -> Counts:
    """Counts by the share of characters, where nobody counts tokens."""
    characters = sum(len(each["content"]) for each in question.messages)
    each = prompt_tokens / max(characters, 1)
    before = sum(len(message["content"]) for message in question.messages[: question.at])
    lengths: Sequence[int] = [len(part) for part in question.parts]
    return Counts(
        round((before + len(question.before)) * each),
        [round(length * each) for length in lengths],
        "estimated",
    )
