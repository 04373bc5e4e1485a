"""Where a model's files come from: a directory, a GGUF file, the Hugging Face hub, or the demo."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import xxhash
from filelock import FileLock

from radixserve.config import EngineConfig
from radixserve.errors import ModelError
from radixserve.folders import cache_directory
from radixserve.model import demo, hub
from radixserve.model.loader import DTYPES, ModelFiles, pick_device
from radixserve.text.gguf_tokenizer import write_tokenizer


def prepare(config: EngineConfig) -> ModelFiles:
    """Find, download or convert the files that ``config`` names, and say where they are.

    What is made is kept in ``$XDG_CACHE_HOME/radixserve`` (or ``~/.cache/radixserve``); several
    processes may do so at once, and an interrupted one leaves nothing half made.

    Raises:
        ModelError: there is no such model, or its files cannot be fetched or read.
    """
    files = _find(config)
    tokenizer = files.tokenizer
    if config.tokenizer is not None:
        tokenizer = Path(config.tokenizer)
        if not tokenizer.exists():
            tokenizer = hub.snapshot(config.tokenizer, weights=False)
        elif tokenizer.is_file():
            tokenizer = tokenizer.parent
    return ModelFiles(files.model, tokenizer, config.served_model_name or files.name)


def settle(config: EngineConfig) -> EngineConfig:
    """``config`` for the device that there is.

    Raises:
        ConfigError: there is no such device, or the settings do not go together on it.
    """
    device: Any = pick_device(config.device).type
    return config.on(device)


def _find(config: EngineConfig) -> ModelFiles:
    if config.model is None:
        directory = _made("demo-" + demo.SHA256[:12], _make_demo)
        return ModelFiles(directory, directory, demo.NAME)
    path = Path(config.model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json: it is not a model's directory.")
        return ModelFiles(path, path, path.resolve().name)
    if path.is_file() and path.suffix == ".json" and config.load_format == "dummy":
        return ModelFiles(path, path.parent, path.resolve().parent.name)
    if path.is_file() and (path.suffix == ".gguf" or config.load_format == "gguf"):
        return _from_gguf(path, config)
    if path.is_file():
        raise ModelError(f"{path} is neither a directory nor a GGUF file (.gguf).")
    if (
        config.load_format == "gguf"
        or path.suffix == ".gguf"
        or not hub.HUB_ID.fullmatch(config.model)
    ):
        raise ModelError(f"{config.model}: there is no such file or directory.")
    directory = hub.snapshot(config.model, weights=config.load_format != "dummy")
    return ModelFiles(directory, directory, config.model)


def _make_demo(target: Path) -> None:
    file = target / "model.gguf"
    demo.fetch(file)
    _convert(file, target, torch.bfloat16)
    file.unlink()


def _from_gguf(path: Path, config: EngineConfig) -> ModelFiles:
    dtype = torch.bfloat16 if config.dtype == "auto" else DTYPES[config.dtype]
    directory = _made(_gguf_key(path, dtype), lambda target: _convert(path, target, dtype))
    return ModelFiles(directory, directory, path.stem)


def _gguf_key(path: Path, dtype: torch.dtype) -> str:
    state = path.stat()
    key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {dtype}"
    return f"{path.stem}-{xxhash.xxh3_128_hexdigest(key.encode())[:16]}"


def _convert(path: Path, target: Path, dtype: torch.dtype) -> None:
    from radixserve.model.gguf import convert  # slow to import, and needed once a model

    sys.stderr.write(f"Converting {path.name} (once)\n")
    convert(path, target, dtype)
    write_tokenizer(path, target)


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The cached directory ``name``; if it is not there yet, ``make`` fills it, all or nothing."""
    directory = cache_directory() / name
    if directory.is_dir():
        return directory
    with FileLock(f"{directory}.lock"):
        if directory.is_dir():  # another process has made it meanwhile
            return directory
        for stale in directory.parent.glob(f"{name}.part-*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}.part-", dir=directory.parent) as part:
            filled = Path(part) / "model"
            filled.mkdir()
            make(filled)
            filled.rename(directory)
    return directory
