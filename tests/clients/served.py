"""What the clients' tests talk to, in a process with radixserve's own environment.

``python -m tests.clients.served model DIR`` serves a tiny random model that it writes into DIR;
``... caller`` serves an engine that answers everything with the same tool call.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "tiny"
OPTIONS = (
    "--port 0 --dtype float32 --device cpu --threads 1 --num-pages 1500 --log-level warning "
    "--tool-call-parser hermes"
)


def model(directory: Path) -> None:
    from tests.model import tiny
    from tests.text.tiny import tiny_tokenizer_dir

    config = tiny.FAMILIES["llama"]()
    config.vocab_size, config.max_position_embeddings = 266, 2048
    tiny.save(directory, config)
    tiny_tokenizer_dir(directory)
    program = "from radixserve.cli import main; main()"
    arguments = ["serve", str(directory), "--served-model-name", NAME, *OPTIONS.split()]
    os.execv(sys.executable, [sys.executable, "-c", program, *arguments])


def caller() -> None:
    from msgspec.structs import replace

    from radixserve.server.app import create_app
    from radixserve.server.service import Settings
    from tests.server.fake import FakeFrontend, serving
    from tests.text.parsing.samples import SAMPLES

    sample = SAMPLES["hermes three"]
    frontend = FakeFrontend(sample.text, max_model_len=5000)
    frontend.tokenizer.takes_tools = True
    frontend.card = replace(frontend.card, name=NAME)
    with serving(create_app(frontend, settings=Settings(tool_call_parser=sample.tools))) as served:
        print(f"API {served.url}/v1", flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "model":
        model(Path(sys.argv[2]))
    else:
        caller()
