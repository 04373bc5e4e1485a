"""Servers for clients that live in another environment: see ``make test-clients``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("RADIXSERVE_PYTHON", sys.executable)
"""Of the environment that radixserve is installed in."""
CLIENTS = ("langchain_openai", "litellm", "llama_index", "llm_comply", "schemathesis")
HERE = all(importlib.util.find_spec(name) for name in CLIENTS)
collect_ignore_glob = [] if HERE else ["test_*.py"]


@contextmanager
def served(log: Path, *arguments: str) -> Iterator[str]:
    """The base URL of a server that ``tests.clients.served`` starts."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [PYTHON, "-m", "tests.clients.served", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
    with process:
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if "API" in line), None)
            assert line is not None, log.read_text()
            yield line.split()[-1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a tiny model that talks at random, the same for the same prompt."""
    directory = tmp_path_factory.mktemp("model")
    with served(directory / "log", "model", str(directory)) as url:
        yield url


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[str]:
    """Of the same model, on a server that nobody else asks."""
    with served(tmp_path / "log", "model", str(tmp_path / "model")) as url:
        yield url


@pytest.fixture(scope="session")
def polite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an engine that calls where there are tools, and else says a sentence."""
    with served(tmp_path_factory.mktemp("polite") / "log", "polite") as url:
        yield url


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an engine that always answers with the same three calls."""
    with served(tmp_path_factory.mktemp("caller") / "log", "caller") as url:
        yield url
