"""The servers that are measured over HTTP: how each is made, started and spoken to."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.client import Connection
from bench.peer import llama_server
from bench.peer.cases import OURS
from bench.peer.environments import VLLM, Models, Say, make
from bench.peer.roster import KV_BYTES
from bench.servers import COMMAND, Process
from bench.workloads import Turn, drawn

SEATS = 64
"""Requests that vLLM may run at once, as many as radixserve does by default on a CPU."""
SLOTS = 8
"""Of llama-server, each with KV of its own.

It reuses a prefix from a slot that is free or from its prompt cache, where a prompt is that a slot
was freed of; more slots leave less to find there. Of 4, 8, 16 and 32 slots these 8 took the least
CPU time on shared prompts, and none reused more. Eight in a unified KV of the same size took 1.4
times as much and reused less: it does not hold a prefix once for all either.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all servers are told."""

    models: Models
    folder: Path
    threads: int
    longest: int
    """Tokens of a prompt and its answer, at most."""
    say: Say


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the servers."""

    name: str
    title: str
    command: Callable[[Setting], tuple[list[str], dict[str, str]]]
    """What starts it, and its environment; makes what it needs if that is not there."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of each request beyond those of all."""


def _ours(setting: Setting) -> tuple[list[str], dict[str, str]]:
    options = ["--kv-memory", str(KV_BYTES), "--threads", str(setting.threads)]
    model = str(setting.models.directory)
    return [*COMMAND, model, "--log-level", "warning", *options], {}


def _vllm(setting: Setting) -> tuple[list[str], dict[str, str]]:
    python = make(VLLM, setting.folder, setting.say)
    cores = sorted(os.sched_getaffinity(0))[: setting.threads]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, KV_BYTES >> 30)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(setting.models.directory), "--served-model-name", "served"]
    command += ["--dtype", "bfloat16", "--enable-prefix-caching", "--max-num-seqs", str(SEATS)]
    # A multiple of its blocks, and room for what it adds to a prompt.
    command += ["--max-model-len", str(-(-setting.longest // 128) * 128 + 128)]
    command += ["--host", "127.0.0.1", "--generation-config", "vllm", "--disable-log-stats"]
    command += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    return command, environment


def _llama(setting: Setting) -> tuple[list[str], dict[str, str]]:
    program = llama_server.make(setting.folder, setting.say)
    model = setting.models.gguf(program, setting.say)
    threads = str(setting.threads)
    command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--no-ui"]
    command += ["--parallel", str(SLOTS), "--no-kv-unified"]
    # In whole cells of 256, and with room behind the longest request: without it the server ends.
    command += ["--ctx-size", str(SLOTS * (-(-(setting.longest + 64) // 256) * 256))]
    command += ["--threads", threads, "--threads-batch", threads, "--flash-attn", "on"]
    command += ["--cache-ram", str(KV_BYTES >> 20), "--log-verbosity", "1"]
    return command, {}


KINDS = (
    Kind(OURS, "radixserve", _ours),
    Kind("vllm", "vLLM", _vllm, {"model": "served"}),
    Kind("llama.cpp", "llama.cpp's server", _llama),
)
BY_NAME = {kind.name: kind for kind in KINDS}


class Served:
    """A running server, which stands still unless it is awake.

    Raises:
        PeerError: ``make``: it cannot be made.
        ServerError: ``start``: it did not come up.
    """

    def __init__(self, name: str, setting: Setting):
        self.kind = BY_NAME[name]
        self._setting = setting
        self._command, self._environment = self.kind.command(setting)

    async def start(self, stack: AsyncExitStack) -> dict[str, Any]:
        """Start it, ask it once, and pause it; what is to be known of it. ``stack`` ends it."""
        began = perf_counter()
        logs = self._setting.folder / "served"
        logs.mkdir(exist_ok=True)
        self._process = Process(self.kind.name, self._command, logs, self._environment)
        await stack.enter_async_context(self._process)
        ours = self.kind.name == OURS
        self.connection = await stack.enter_async_context(
            Connection(self._process, ours=ours, extra=self.kind.extra)
        )
        await self.wake()
        seconds = perf_counter() - began
        self.pause()
        return {"command": self._command, "environment": self._environment, "start_s": seconds}

    async def wake(self) -> None:
        """Let it run, and see it answer: what was paged out or cooled down is not measured."""
        self._process.resume()
        await self.connection.ask(Turn(drawn("warm-up", 40), 4), "", perf_counter())

    def pause(self) -> None:
        self._process.pause()
