"""Conversations with a model that gives answers in tokens that their text would not have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from radixserve.scheduling.plan import Sampled
from radixserve.server.service import Settings
from radixserve.text.tokenizer import Tokenizer
from tests.server.asking import CHAT
from tests.server.stack import Stack, stack

END = 2
BYTE = 3
STRIPPING = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}"
    "{{ (message.content or '').split('</think>')[-1] | trim }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}"
    "{% else %}{{ message.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}OPENING{% endif %}"
)
"""Leaves reasoning out of history, and writes calls in its own way."""
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"arguments":{"at":[1,2]},"name":"look"}\n</tool_call>'

SAID = ["hello the", "the é hello", "hello", " the  hello"]
THOUGHTS = ["<think>\nOne, two.\n</think>\n\nhello the", "<think>\nThree.\n</think>\n\nhello", "x"]


def letters(text: str) -> list[int]:
    """Each byte as a token of its own, whatever would merge."""
    return [BYTE + byte for byte in text.encode()]


@asynccontextmanager
async def saying(
    directory: Path,
    answers: Sequence[str],
    *,
    template: str | None = None,
    server: Settings | None = None,
    **settings: object,
) -> AsyncIterator[Stack]:
    """A server whose model gives these answers, one after the other, byte by byte."""
    async with stack(directory, server=server, **settings) as served:
        if template is not None:
            file = directory / "template.jinja"
            file.write_text(template, encoding="utf-8")
            served.engine.tokenizer = Tokenizer.load(directory, chat_template=file)
        scripts = [[*letters(answer), END] for answer in answers]
        begun: list[int] = []

        def say(index: int) -> Sampled:
            if index == 0:
                begun.append(len(begun))
            return Sampled(scripts[begun[-1]][index])

        served.model._say = say  # type: ignore[method-assign]
        yield served
        await served.settle()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def turn(server: Stack, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Ask, and put the answer behind ``messages`` as clients do, without its reasoning."""
    response = await server.ask(CHAT, messages=messages, return_token_ids=True, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    message = body["choices"][0]["message"]
    kept = ("role", "content", "tool_calls")
    messages.append({name: message[name] for name in kept if name in message})
    return body


def cached(body: dict[str, Any]) -> int:
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


def whole(body: dict[str, Any]) -> list[int]:
    """The tokens of the prompt and of the answer, with its end."""
    return [*body["prompt_token_ids"], *body["choices"][0]["token_ids"]]


def extends(body: dict[str, Any], last: dict[str, Any]) -> bool:
    """Whether the prompt begins with all of the last turn, and all that was computed is reused."""
    before = whole(last)
    assert (body["prompt_token_ids"][: len(before)] == before) == (cached(body) >= len(before) - 1)
    return cached(body) >= len(before) - 1
