"""The examples are no package: they are found as Python finds them when one is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rag.conftest import directory, url

__all__ = ["directory", "url"]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
