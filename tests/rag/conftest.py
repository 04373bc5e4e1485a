"""A tiny model that talks at random, in this process and behind a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.llm import LLM
from radixserve.server.app import create_app
from radixserve.server.tenants.registry import Registry
from radixserve.tenants.file import Roster
from tests.model import tiny
from tests.server.asking import HANG
from tests.text.tiny import tiny_tokenizer_dir

KEY = "right"
SETTINGS = {"dtype": "float32", "num_pages": 400, "page_size": 4, "threads": 1}


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    config = tiny.FAMILIES["llama"]()
    config.vocab_size, config.max_position_embeddings = 266, 1024
    tiny.save(made, config)
    return tiny_tokenizer_dir(made)


@pytest.fixture
def llm(directory: Path) -> LLM:
    return LLM(str(directory), **SETTINGS)


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    """Of a server with that model, which wants ``KEY``."""
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        engine = AsyncLLM(EngineConfig(model=str(directory), served_model_name="tiny", **SETTINGS))
        await engine.start()
        app = create_app(engine, tenants=Registry(Roster.of_keys([KEY])))
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on")
        servers.append(uvicorn.Server(config))
        started.set()
        try:
            await servers[0].serve(sockets=[listener])
        finally:
            await engine.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(HANG)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    servers[0].should_exit = True
    thread.join(HANG)
    assert not thread.is_alive()
