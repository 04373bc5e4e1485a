"""OpenAI's own client, of a server whose model says a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pydantic

from radixserve.server.app import create_app
from radixserve.server.service import Settings
from tests.server.asking import HANG
from tests.server.fake import FakeFrontend
from tests.server.sockets import serving


@contextmanager
def sdk(text: str, tools: str, style: str = "none") -> Iterator[tuple[openai.OpenAI, FakeFrontend]]:
    frontend = FakeFrontend(text, max_model_len=5000)
    frontend.tokenizer.takes_tools = True
    app = create_app(frontend, settings=Settings(tool_call_parser=tools, reasoning_parser=style))
    with (
        serving(app) as served,
        openai.OpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=HANG
        ) as client,
    ):
        yield client, frontend


class Weather(pydantic.BaseModel):
    city: str
    days: int
