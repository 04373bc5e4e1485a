"""The examples of retrieval, with vectors of words in place of a model's."""

from __future__ import annotations

import importlib
import math
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.clients.asked import HANG, KEY

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2 * HANG)]
EXAMPLES = Path(__file__).parents[2] / "examples"
SIZE = 512
CHUNK = 64


class Words:
    """A vector of length 1 of the words of a text, each in the place of its checksum."""

    def __init__(self) -> None:
        self.longest = 0
        """Tokens of the longest text that was embedded."""

    def tokens(self, text: str) -> list[str]:
        return re.findall(r"\w+|\W", text)

    def embed(self, texts: list[str]) -> list[list[float]]:
        self.longest = max(self.longest, *(len(self.tokens(text)) for text in texts))
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * SIZE
        for word in re.findall(r"\w{4,}", text.lower()):
            vector[zlib.crc32(word.encode()) % SIZE] += 1.0
        length = math.hypot(*vector) or 1.0
        return [each / length for each in vector]


@pytest.mark.parametrize("name", ["rag_llamaindex", "rag_langchain"])
def test_an_example_reuses_more_in_the_order_of_what_is_cached(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("comparing.CHUNK", CHUNK)
    example: Any = importlib.import_module(name)
    model = Words()
    reused = example.main(model, url, api_key=KEY, max_tokens=4)
    # LlamaIndex does not count the empty line that it puts between a title and a text.
    assert CHUNK / 2 < model.longest <= CHUNK + len("\n\n")
    assert 0 < reused["rank"] < reused["cached"]
    said = capsys.readouterr().out
    assert f"order=cached: {reused['cached']:,} of" in said
