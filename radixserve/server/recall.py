"""Earlier answers as the model wrote them, with the reasoning that chat templates strip.

Templates of reasoning models leave the reasoning of earlier turns out, and write calls of tools in
their own way. So the next prompt parts from what is cached where the last answer began. Whoever
wants it otherwise (``keep_reasoning``) gets the answers of this server back as they were generated,
wherever the conversation up to them is the very prompt that they answered.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import xxhash
from msgspec import UNSET

from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.errors import InvalidRequestError
from radixserve.server.parsed import Heard
from radixserve.server.text_memory import Owner, Place, Remembered, TextMemory, utf8
from radixserve.server.wire import Message
from radixserve.text.canonical import Own

Messages = list[dict[str, Any]]
Render = Callable[[Messages], str]

REASONING = ("reasoning_content", "reasoning", "thinking")
ATTEMPTS = 2
"""Renderings in which answers are looked for, before the template has its way."""


def identity_of(content: str | None, calls: Iterable[tuple[str, object]]) -> bytes | None:
    """What tells an answer from others by what clients send back of it: its text, and the names and
    arguments of its calls, which are JSON, or what it stands for. None where that is too deep."""
    try:
        said = [content or "", *([name, _plain(arguments)] for name, arguments in calls)]
        return xxhash.xxh3_128_digest(utf8(json.dumps(said, sort_keys=True)))
    except RecursionError:
        return None


def owner_of(tenant: str, request: TextRequest) -> Owner | None:
    """For whom the prompt of ``request`` is tokenized; None where nothing is to be reused."""
    if request.cache == "off":
        return None
    return Owner(tenant, request.namespace, leaves=request.cache == "on")


def remembering(memory: TextMemory, place: Place, request: TextRequest) -> Heard:
    """Takes the answers to ``request``, whose prompt ends at ``place``."""
    whole = request.beams is None and not request.include_stop_str_in_output

    def heard(message: Message, tokens: list[int], last: TextDelta) -> None:
        if last.finish not in ("stop", "length"):
            return
        identity = None
        calls = [] if message.tool_calls is UNSET else message.tool_calls
        functions = [call.function for call in calls]
        if whole and not isinstance(last.stop, str):
            identity = identity_of(
                message.content, [(str(each.name), each.arguments) for each in functions]
            )
        reasoning = None if message.reasoning is UNSET else message.reasoning
        memory.remember(
            place,
            tokens,
            end=last.end,
            identity=identity,
            reasoning=reasoning,
            arguments=tuple(each.arguments for each in functions),
        )

    return heard


def own_calls(memory: TextMemory, owner: Owner | None) -> Own:
    """Finds messages with calls that were generated for ``owner``, and has these to the letter:
    a client may send their arguments in another order, or with other white space."""

    def found(message: dict[str, Any]) -> dict[str, Any] | None:
        calls, content = _calls(message), _content(message)
        if owner is None or message.get("role") != "assistant" or not calls or content is None:
            return None
        identity = identity_of(content, calls)
        answers = () if identity is None else memory.answers(owner, identity)
        given = tuple(arguments for _, arguments in calls)
        meant = [_plain(each) for each in given]
        told = [each.arguments for each in answers if [*map(_plain, each.arguments)] == meant]
        if not told or given in told:
            return message if told else None
        written = [
            {**call, "function": {**call["function"], "arguments": arguments}}
            for call, arguments in zip(message["tool_calls"], told[0], strict=True)
        ]
        return {**message, "tool_calls": written}

    return found


class Recalled(NamedTuple):
    """A prompt."""

    text: str
    said: Mapping[int, int]
    """Characters up to the end of each answer that is as it was generated, by its message."""


NOTHING = Recalled("", {})


def recalled(
    messages: Messages, render: Render, memory: TextMemory, owner: Owner | None
) -> Recalled:
    """The prompt of ``messages``, with answers in it as they were generated for ``owner``; None is
    nobody.

    Each is put where the template has the text of an assistant's message, if all before it is, to
    the letter, the prompt that it answered. From the first one on that is not there, the
    template's own rendering stands. O(prompt) for each of at most three renderings.

    Raises:
        InvalidRequestError: ``render`` refuses the messages.
    """
    answers = {} if owner is None else _answers(messages, memory, owner)
    for _ in range(ATTEMPTS):
        if not answers:
            break
        marks = {index: f"radixserve-{secrets.token_hex(12)}-{index}" for index in answers}
        try:
            shown = render(
                [
                    {"role": message["role"], "content": marks[index]}
                    if index in marks
                    else message
                    for index, message in enumerate(messages)
                ]
            )
        except InvalidRequestError:
            break
        found, failed = _filled(shown, marks, answers, memory)
        if failed is None:
            return found
        answers = {index: found for index, found in answers.items() if index < failed}
    return Recalled(render(messages), {})


def _answers(
    messages: Messages, memory: TextMemory, owner: Owner
) -> dict[int, tuple[Remembered, ...]]:
    """What each message may be that the assistant has ended, by its index."""
    found = {}
    for index, message in enumerate(messages[:-1]):
        if message.get("role") != "assistant":
            continue
        calls, content = _calls(message), _content(message)
        if calls is None or content is None:
            continue
        identity = identity_of(content, calls)
        told = next((message[name] for name in REASONING if message.get(name)), None)
        answers = [
            each
            for each in (memory.answers(owner, identity) if identity is not None else ())
            if told is None or told == each.reasoning
        ]
        if answers:
            found[index] = tuple(answers)
    return found


def _filled(
    shown: str,
    marks: Mapping[int, str],
    answers: Mapping[int, tuple[Remembered, ...]],
    memory: TextMemory,
) -> tuple[Recalled, int | None]:
    """``shown`` with answers in place of ``marks``; and the first one for which there is none."""
    ends: dict[int, int] = {}
    pieces: list[str] = []
    length = 0
    hasher = xxhash.xxh3_128()
    rest = shown
    for index, mark in marks.items():
        before, found, rest = rest.partition(mark)
        if not found or mark in rest:
            return NOTHING, index
        hasher.update(utf8(before))
        length += len(before)
        said = None
        for answer in answers[index]:
            said = _said(answer, length, hasher, rest, memory)
            if said is not None:
                break
        if said is None:
            return NOTHING, index
        pieces += before, said
        hasher.update(utf8(said))
        length += len(said)
        ends[index] = length
    return Recalled("".join(pieces) + rest, ends), None


def _said(
    answer: Remembered, length: int, hasher: xxhash.xxh3_128, rest: str, memory: TextMemory
) -> str | None:
    """What the model has seen and written behind ``length`` characters of the prompt, if these and
    what the template opened its answer with (``<think>``) are the prompt that it answered."""
    place, tokenizer = answer.place, memory.tokenizer
    size = place.length - length
    if not 0 <= size <= len(place.tail):
        return None
    opening = place.tail[len(place.tail) - size :]
    whole = hasher.copy()
    whole.update(utf8(opening))
    if whole.digest() != place.digest:
        return None
    if answer.end is not None and not rest.startswith(tokenizer.spelling([answer.end]) or "\0"):
        return None
    said = answer.said(tokenizer)
    return None if said is None else opening + said


def _content(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return None
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    said = [text for text in texts if isinstance(text, str)]
    return "".join(said) if len(said) == len(texts) else None


def _calls(message: Mapping[str, Any]) -> list[tuple[str, object]] | None:
    """Name and arguments of each call; None where the message has something else there."""
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        calls.append((function["name"], function.get("arguments")))
    return calls


def _plain(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
