"""An engine whose model is the simulated one of the scheduler's tests."""

from __future__ import annotations

from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.text.tokenizer import Tokenizer
from tests.engine.saying import SayingModel
from tests.text.tiny import tiny_tokenizer_dir


def simulated_engine(
    directory: Path, *, num_pages: int = 200, **settings: object
) -> tuple[AsyncLLM, SayingModel, Tokenizer]:
    """An engine (to be started with the model and the tokenizer), its model and its tokenizer."""
    tiny_tokenizer_dir(directory)
    tokenizer = Tokenizer.load(directory)
    config = EngineConfig(**{"page_size": 4, "max_num_seqs": 8, **settings})
    [first] = tokenizer.decode([3]).encode()  # ids of bytes are their value plus this offset
    return AsyncLLM(config), SayingModel(config, num_pages, offset=3 - first), tokenizer
