"""Retrieved documents, checked and in the order of their rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.errors import InvalidRequestError

LONGEST = 2**23
"""Characters of a question and all its documents: far more than any model takes."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text that a retriever found: a page, or a chunk of one."""

    id: str
    """Its own: the chunks of a page have one each."""
    text: str
    title: str = ""
    """What the model reads above the text; the id if there is none."""
    score: float | None = None
    """The higher, the better. Leave it out where it is a distance."""

    @property
    def heading(self) -> str:
        return self.title or self.id


def ranked(question: str, documents: Sequence[Document], *, needed: bool = True) -> list[Document]:
    """``documents`` best first: by falling score, or as they came where nobody has a score.

    O(n log n + characters). ``needed`` says whether there have to be some.

    Raises:
        InvalidRequestError: nothing can be asked with these; ``param`` names what is at fault.
    """
    if not isinstance(question, str):
        raise InvalidRequestError(
            f"question must be a text, not {type(question).__name__}: say what to ask.",
            param="question",
        )
    if not question.strip():
        raise InvalidRequestError("question is empty: say what to ask.", param="question")
    _check_text(question, "question")
    if isinstance(documents, str) or not isinstance(documents, Sequence):
        raise InvalidRequestError(
            f"documents must be a list of radixserve.rag.Document, not {type(documents).__name__}.",
            param="documents",
        )
    if needed and not documents:
        raise InvalidRequestError(
            "documents is empty: pass at least one. Where the retriever found nothing, say so to "
            "whoever asks, or ask the model without documents.",
            param="documents",
        )
    places: dict[str, int] = {}
    for place, document in enumerate(documents):
        _check(document, f"documents[{place}]")
        if document.id in places:
            raise InvalidRequestError(
                f"documents[{places[document.id]}] and documents[{place}] have the same id, "
                f"{_short(document.id)}. Send a document once; chunks of one page need an id each.",
                param=f"documents[{place}].id",
            )
        places[document.id] = place
    _check_length(question, documents)
    unscored = [place for place, each in enumerate(documents) if each.score is None]
    if len(unscored) == len(documents):
        return list(documents)
    if unscored:
        raise InvalidRequestError(
            f"documents[{unscored[0]}] has no score, others have: give all of them one, or none.",
            param=f"documents[{unscored[0]}].score",
        )
    return sorted(documents, key=lambda each: -(each.score or 0.0))


def _check(document: Document, param: str) -> None:
    if not isinstance(document, Document):
        raise InvalidRequestError(
            f"{param} is a {type(document).__name__}: make it a radixserve.rag.Document.",
            param=param,
        )
    for name in ("id", "text", "title"):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InvalidRequestError(
                f"{param}.{name} must be a text, not {type(value).__name__}.",
                param=f"{param}.{name}",
            )
        _check_text(value, f"{param}.{name}")
    for name in ("id", "text"):
        if not getattr(document, name).strip():
            raise InvalidRequestError(
                f"{param}.{name} is empty: leave the document out.", param=f"{param}.{name}"
            )
    score = document.score
    if score is not None and (not isinstance(score, (int, float)) or not math.isfinite(score)):
        raise InvalidRequestError(
            f"{param}.score must be a finite number, not {score!r}.", param=f"{param}.score"
        )


def _check_text(text: str, param: str) -> None:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{param} is not valid Unicode: it holds half of a surrogate pair. Decode what was "
            'read with errors="replace".',
            param=param,
        ) from error


def _check_length(question: str, documents: Sequence[Document]) -> None:
    total = len(question) + sum(len(each.text) for each in documents)
    if total <= LONGEST:
        return
    if len(question) > LONGEST // 2:
        what, param = "The question is the most of it", "question"
    else:
        place = max(range(len(documents)), key=lambda each: len(documents[each].text))
        what, param = f"The longest is {_short(documents[place].id)}", f"documents[{place}].text"
    raise InvalidRequestError(
        f"The question and its documents have {total:,} characters, more than any model takes. "
        f"{what}: cut documents into chunks, and retrieve those.",
        param=param,
        code="context_length_exceeded",
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")
