"""What the clients' tests talk to, in a process with radixserve's own environment.

``python -m tests.clients.served model DIR`` serves a tiny random model that it writes into DIR;
``... caller`` serves an engine that answers everything with the same tool call, ``... polite`` one
that does so where it is given tools, and else says a sentence.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

NAME = "tiny"
SENTENCE = "It is sunny."
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
)
OPTIONS = (
    "--port 0 --dtype float32 --device cpu --threads 1 --num-pages 1500 --log-level warning "
    "--tool-call-parser hermes"
)


def model(directory: Path) -> None:
    from tests.model import tiny
    from tests.text.tiny import CHATML

    tiny.speaking(directory, length=2048, chat_template=TOOLS + CHATML)
    program = "from radixserve.cli import main; main()"
    files = ["--files-dir", str(directory / "files")]
    arguments = ["serve", str(directory), "--served-model-name", NAME, *files, *OPTIONS.split()]
    os.execv(sys.executable, [sys.executable, "-c", program, *arguments])


def fixed(*, always: bool) -> None:
    from msgspec.structs import replace

    from radixserve.server.app import create_app
    from radixserve.server.service import Settings
    from tests.server.fake import FakeFrontend
    from tests.server.sockets import serving
    from tests.text.parsing.samples import SAMPLES

    sample = SAMPLES["hermes three"]
    frontend = FakeFrontend(sample.text, max_model_len=5000)
    frontend.tokenizer.takes_tools = True
    frontend.card = replace(frontend.card, name=NAME)
    render = frontend.tokenizer.render_chat

    def render_chat(messages: Any, *, tools: Any = None, **settings: Any) -> str:
        # One request at a time is all that such a server is asked.
        frontend.answer = sample.text if tools else SENTENCE
        return render(messages, **settings)

    if not always:
        frontend.tokenizer.render_chat = render_chat  # type: ignore[method-assign]
    with serving(create_app(frontend, settings=Settings(tool_call_parser=sample.tools))) as served:
        print(f"API {served.url}/v1", flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["model", directory]:
            model(Path(directory))
        case [kind]:
            fixed(always=kind == "caller")
