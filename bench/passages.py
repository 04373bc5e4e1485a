"""Questions over the documents of ``pydoc_data.topics``, and the chunks that answer them.

Chunks are found by BM25 (Robertson and Zaragoza, 2009), so that nothing has to be downloaded. The
topics are those of the Python that runs this; other versions have other texts.
"""

from __future__ import annotations

import math
import pydoc_data.topics
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from radixserve.rag import Document

HOT = 3
"""Documents, the longest ones, that take ``HOT_SHARE`` of the questions."""
HOT_SHARE = 0.6
K1, B = 1.2, 0.75
SHORTEST, LONGEST = 30, 200
"""Characters of a sentence that stands for a question."""
FEWEST_WORDS = 4

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A question with an answer that can be looked for."""

    question: str
    expected: tuple[str, ...]
    """In lower case; one of them is in a right answer."""


FACTS = (
    Fact("What kind of operation is the pass statement?", ("null", "nothing")),
    Fact("When is the pass statement useful?", ("placeholder",)),
    Fact("Which loops may a break statement be nested in?", ("while",)),
    Fact("Which clause of a loop does the break statement skip?", ("else",)),
    Fact("What does the break statement terminate?", ("loop",)),
    Fact("Which exception does a failing assert statement raise?", ("assertionerror",)),
    Fact("Which command line option makes __debug__ False?", ("-o",)),
    Fact("Which built-in variable does the assert statement look at?", ("__debug__",)),
    Fact("Which exception is raised when raise has no active exception?", ("runtimeerror",)),
    Fact("Which class must an exception that is raised be a subclass of?", ("baseexception",)),
    Fact("Which attribute of an exception holds the traceback?", ("__traceback__",)),
    Fact("Which attribute is set by raise with a from clause?", ("__cause__",)),
    Fact("What do lambda expressions create?", ("anonymous", "function")),
    Fact("What can functions created with lambda not contain?", ("statement", "annotation")),
    Fact("Which exception is raised when an unbound name is deleted with del?", ("nameerror",)),
    Fact("In what order does del delete a list of targets?", ("left",)),
    Fact("Which method of a context manager does the with statement call first?", ("__enter__",)),
    Fact("Which method of a context manager is called when the with block ends?", ("__exit__",)),
    Fact("Which scope do names of a nonlocal statement refer to?", ("enclosing",)),
    Fact("Which statement makes names refer to globals?", ("global",)),
    Fact("What does an expression list with at least one comma yield?", ("tuple",)),
    Fact("What is needed to create a tuple of a single item?", ("comma",)),
    Fact("What does a function that contains yield become?", ("generator",)),
    Fact("Which PEP proposed iterable unpacking in expression lists?", ("448",)),
)
"""Several about each of a few topics, so that their chunks overlap."""


def chunks(count: Count, limit: int) -> list[Document]:
    """The topics in chunks of whole lines, at most ``limit`` tokens each where lines allow it."""
    found = []
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        lines: list[str] = []
        tokens = 0
        pieces = []
        for line in text.strip().splitlines(keepends=True):
            size = count(line)
            if lines and tokens + size > limit:
                pieces.append("".join(lines))
                lines, tokens = [], 0
            lines.append(line)
            tokens += size
        pieces.append("".join(lines))
        found += [
            Document(f"{topic}/{number}", piece, topic)
            for number, piece in enumerate(pieces)
            if piece.strip()
        ]
    return found


class Retriever:
    """The chunks that share most words with a question."""

    def __init__(self, documents: list[Document]):
        self.documents = documents
        counts = [Counter(_words(each.text)) for each in documents]
        average = sum(count.total() for count in counts) / len(counts)
        found = Counter(word for count in counts for word in count)
        self._weights: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, count in enumerate(counts):
            norm = K1 * (1 - B + B * count.total() / average)
            for word, times in count.items():
                rarity = math.log(1 + (len(counts) - found[word] + 0.5) / (found[word] + 0.5))
                self._weights[word].append((number, rarity * times * (K1 + 1) / (times + norm)))

    def top(self, question: str, k: int) -> list[Document]:
        """The ``k`` best ones, best first. O(chunks that share a word, times words)."""
        scores: Counter[int] = Counter()
        for word in set(_words(question)):
            for number, weight in self._weights.get(word, ()):
                scores[number] += weight  # type: ignore[assignment]
        best = sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:k]
        return [self.documents[number] for number, _ in best]


def questions(documents: list[Document], number: int, seed: int = 0) -> list[str]:
    """Sentences of the documents in place of questions: ``HOT`` topics take ``HOT_SHARE`` of them,
    the others follow Zipf's law by their length."""
    topics: defaultdict[str, list[str]] = defaultdict(list)
    for each in documents:
        topics[each.title] += _sentences(each.text)
    by_length = sorted((t for t in topics if topics[t]), key=lambda t: -len("".join(topics[t])))
    hot, rest = by_length[:HOT], by_length[HOT:]
    weights = [1 / rank for rank in range(1, len(rest) + 1)]
    rng = random.Random(seed)
    return [
        rng.choice(
            topics[rng.choice(hot) if rng.random() < HOT_SHARE else rng.choices(rest, weights)[0]]
        )
        for _ in range(number)
    ]


def _sentences(text: str) -> list[str]:
    whole = (" ".join(each.split()) for each in re.split(r"(?<=[.:])\s+", text))
    return [
        each
        for each in whole
        if SHORTEST <= len(each) <= LONGEST and len(_words(each)) >= FEWEST_WORDS
    ]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
