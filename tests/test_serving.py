"""``radixserve serve`` as a process with an engine of its own, and Ctrl-C in the middle of work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from transformers import AutoModel

from tests.engine.supervised import exists
from tests.model import tiny

ROOT = Path(__file__).parents[1]
HANG = 120.0
"""Seconds; what takes longer is taken for a hang."""
CLIENTS = 20
PROMPTS = [f"Client {number} asks the model, which talks at random." for number in range(CLIENTS)]
OPTIONS = "--port 0 --dtype float32 --device cpu --threads 1 --num-pages 4500 --log-level warning"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.speaking(tmp_path_factory.mktemp("tiny"), length=4096)


@dataclass
class Serving:
    process: subprocess.Popen[str]
    client: httpx2.Client
    log: Path

    def children(self) -> list[int]:
        """The processes that it has started."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: every process of the group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)


@contextmanager
def serving(directory: Path, log: Path, *arguments: str) -> Iterator[Serving]:
    program = "from radixserve.cli import main; main()"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", str(directory), *OPTIONS.split(), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "200"},
        )
    with process:
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if "API" in line), None)
            assert line is not None, log.read_text()
            url = line.split()[-1].removesuffix("/v1")
            with httpx2.Client(base_url=url, timeout=HANG) as client:
                yield Serving(process, client, log)
        finally:
            process.kill()


def ask(client: httpx2.Client, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
    return dict(client.post("/v1/completions", json=body).raise_for_status().json())


def stream(
    client: httpx2.Client, prompt: str, begun: threading.Semaphore, **fields: Any
) -> list[str]:
    """The data of all events; ``begun`` is released at the first."""
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
    body["stream_options"] = {"include_usage": True}
    data: list[str] = []
    with client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                if not data:
                    begun.release()
                data.append(line.removeprefix("data: "))
    return data


def text(data: list[str]) -> str:
    choices = [choice for each in data for choice in json.loads(each)["choices"]]
    return "".join(choice["text"] for choice in choices)


@contextmanager
def streams(served: Serving, **fields: Any) -> Iterator[list[Any]]:
    """The futures of a stream for each client, all of which have begun."""
    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(CLIENTS) as pool:
        asked = [pool.submit(stream, served.client, each, begun, **fields) for each in PROMPTS]
        for _ in asked:
            assert begun.acquire(timeout=HANG)
        yield asked


def test_vectors_come_from_the_states_of_the_served_model_whatever_is_cached(directory, tmp_path):
    with serving(directory, tmp_path / "log") as served:
        for pooling in ("last", "mean"):
            fields = {"input": PROMPTS[:3], "pooling": pooling, "dimensions": 16}
            tokens = [tokenized(served.client, each) for each in PROMPTS[:3]]
            for _ in range(2):
                body = served.client.post("/v1/embeddings", json=fields).raise_for_status().json()
                assert body["usage"]["total_tokens"] == sum(map(len, tokens))
                reused = body["usage"]["prompt_tokens_details"]["cached_tokens"]
                found = torch.tensor([each["embedding"] for each in body["data"]])
                torch.testing.assert_close(found, states(directory, tokens, pooling))
            assert reused == (sum(map(len, tokens)) - 3 if pooling == "last" else 0)


def tokenized(client: httpx2.Client, prompt: str) -> list[int]:
    body = client.post("/tokenize", json={"prompt": prompt}).raise_for_status().json()
    return list(body["tokens"])


def states(directory: Path, prompts: list[list[int]], pooling: str) -> torch.Tensor:
    """The first 16 numbers of transformers' own, with a length of 1."""
    model = AutoModel.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        found = [model(torch.tensor([each])).last_hidden_state[0] for each in prompts]
    pooled = [each[-1] if pooling == "last" else each.mean(0) for each in found]
    return torch.nn.functional.normalize(torch.stack(pooled)[:, :16], dim=-1)


def ended_well(served: Serving, children: list[int]) -> None:
    assert served.process.wait(HANG) == 0
    assert children
    assert not [pid for pid in children if exists(pid)]
    assert "Traceback" not in served.log.read_text()


def test_twenty_streams_and_one_ctrl_c_and_each_gets_exactly_its_tokens(directory, tmp_path):
    length = 400
    with serving(directory, tmp_path / "log") as served, ThreadPoolExecutor(CLIENTS) as pool:
        whole = list(pool.map(lambda each: ask(served.client, each, max_tokens=length), PROMPTS))
        expected = [each["choices"][0]["text"] for each in whole]
        assert len(set(expected)) == CLIENTS, "answers that are mixed up would not be seen"
        children = served.children()
        with streams(served, max_tokens=length) as asked:
            served.interrupt()
            while (refusal := served.client.get("/health")).status_code == 200:
                pass
            assert refusal.status_code == 503
            for future, right in zip(asked, expected, strict=True):
                *chunks, done = future.result(HANG)
                assert done == "[DONE]"
                assert text(chunks) == right
                usage = json.loads(chunks[-1])["usage"]
                assert usage["completion_tokens"] == length
                assert usage["prompt_tokens_details"]["cached_tokens"] > 0
        ended_well(served, children)


def test_twenty_streams_that_get_no_time_each_end_with_an_error_after_right_tokens(
    directory, tmp_path
):
    with serving(directory, tmp_path / "log", "--drain-timeout", "0") as served:
        expected = [
            ask(served.client, each, max_tokens=60)["choices"][0]["text"] for each in PROMPTS
        ]
        children = served.children()
        with streams(served, max_tokens=3500) as asked:
            served.interrupt()
            for future, right in zip(asked, expected, strict=True):
                *chunks, error, done = future.result(HANG)
                assert done == "[DONE]"
                assert json.loads(error)["error"]["code"] == "server_overloaded"
                said = text(chunks)
                # Only where an answer ends at its length is the half of a character shown.
                whole = right.rstrip("\ufffd")
                assert said.startswith(whole) or whole.startswith(said)
        ended_well(served, children)


def test_an_engine_that_dies_while_the_server_ends_holds_nothing_up_and_leaves_nothing(
    directory, tmp_path
):
    with serving(directory, tmp_path / "log") as served:
        [engine] = served.children()
        with streams(served, max_tokens=3500) as asked:
            served.interrupt()
            while served.client.get("/health").status_code == 200:
                pass
            os.kill(engine, signal.SIGKILL)
            for future in asked:
                *_, error, done = future.result(HANG)
                assert done == "[DONE]"
                assert json.loads(error)["error"]["code"] == "server_overloaded"
        ended_well(served, [engine])
