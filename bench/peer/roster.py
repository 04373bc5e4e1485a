"""Who is measured: the peers, how each is made ready and with which settings it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peer.cases import CASES, GRID, OURS
from bench.peer.environments import LLAMA_CPP, OPENVINO, VLLM, Environment, Models, Say, make
from bench.peer.process import Worker

KV_BYTES = 2 << 30
"""Of each peer, where it takes a size: 93,000 tokens in 16 bits."""

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """One column of the table."""

    name: str
    title: str
    script: str
    settings: Callable[[Models, Path, Say], Settings]
    """Called with the peer's Python; makes its form of the model if need be."""
    environment: Environment | None = None
    """None is the one that the benchmark itself runs in."""
    kv_bits: int = 16


def _ours(models: Models, python: Path, say: Say) -> Settings:
    return {
        "model": str(models.directory),
        "kv_bytes": KV_BYTES,
        "weight_bytes": models.weight_bytes,
    }


def _apart(models: Models, python: Path, say: Say) -> Settings:
    return _ours(models, python, say) | {"cascade": False}


def _vllm(models: Models, python: Path, say: Say) -> Settings:
    longest = max(case.longest for case in (*CASES, *GRID))
    # A multiple of its blocks, and room for what it adds to a prompt.
    return {
        "model": str(models.directory),
        "kv_bytes": KV_BYTES,
        "longest": -(-longest // 128) * 128 + 128,
    }


def _openvino(kv: str) -> Callable[[Models, Path, Say], Settings]:
    def settings(models: Models, python: Path, say: Say) -> Settings:
        return {"model": str(models.openvino(python, say)), "kv_bytes": KV_BYTES, "kv": kv}

    return settings


def _llama_cpp(models: Models, python: Path, say: Say) -> Settings:
    return {"model": str(models.gguf(python, say)), "flash": True, "kv": "f16"}


PEERS = (
    Peer(OURS, "radixserve", "run_radixserve.py", _ours),
    Peer("vllm", "vLLM", "run_vllm.py", _vllm, VLLM),
    Peer("openvino", "OpenVINO, KV 8 bit", "run_openvino.py", _openvino("u8"), OPENVINO, 8),
    Peer("openvino-16", "OpenVINO, KV 16 bit", "run_openvino.py", _openvino("bf16"), OPENVINO),
    Peer("llama.cpp", "llama.cpp", "run_llamacpp.py", _llama_cpp, LLAMA_CPP),
)
APART = Peer("apart", "radixserve, each for itself", "run_radixserve.py", _apart)
"""Without shared-prefix groups; only where sharing is what is looked at."""
BY_NAME = {peer.name: peer for peer in (*PEERS, APART)}


@dataclass(frozen=True, slots=True)
class Roster:
    """All peers, with what they need kept below ``folder``."""

    models: Models
    folder: Path
    threads: int
    say: Say

    def make(self, name: str) -> None:
        """Its environment and its form of the model, if they are not there yet.

        Raises:
            PeerError: they cannot be made.
        """
        self._made(BY_NAME[name])

    def start(self, name: str) -> Worker:
        """Its worker, loaded and running.

        Raises:
            PeerError: it cannot be made, or does not start.
        """
        peer = BY_NAME[name]
        python, settings = self._made(peer)
        return Worker(
            name,
            python,
            peer.script,
            settings | {"threads": self.threads},
            self.folder / f"{name}-run.log",
            self.threads,
        )

    def _made(self, peer: Peer) -> tuple[Path, Settings]:
        python = Path(sys.executable)
        if peer.environment is not None:
            python = make(peer.environment, self.folder, self.say)
        return python, peer.settings(self.models, python, self.say)
