"""An engine in a process of its own, which runs the simulated model."""

from __future__ import annotations

import sys
from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.process.supervisor import SupervisedLLM
from radixserve.text.tokenizer import Tokenizer
from tests.text.tiny import tiny_tokenizer_dir

COMMAND = (sys.executable, "-c", "from tests.engine.process_model import main; main()")


def supervised(
    directory: Path, how: str = "well", *, once: bool = True, **settings: object
) -> SupervisedLLM:
    """An engine whose process fails as ``how`` says; after it was started again, only unless
    ``once``."""
    [first] = Tokenizer.load(tiny_tokenizer_dir(directory)).decode([3]).encode()
    (directory / "offset").write_text(str(3 - first))
    (directory / "how").write_text(how)
    if once:
        (directory / "once").touch()
    config = EngineConfig(
        **{"tokenizer": str(directory), "page_size": 4, "max_num_seqs": 8, **settings}
    )
    return SupervisedLLM(config, command=COMMAND)
