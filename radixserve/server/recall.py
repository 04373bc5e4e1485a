"""Earlier answers as the model wrote them, where chat templates would write them anew.

Templates write calls of tools in their own spelling, and those of reasoning models leave the
reasoning of earlier turns out. So the next prompt parts from what is cached within the last answer.
Wherever the conversation up to an answer of this server is the very prompt that it answered, the
next prompt has it as it was generated: if that is only another spelling of what the template has,
always, and with its reasoning for whoever wants that (``keep_reasoning``).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
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
"""Renderings in which places for answers are looked for, before the template has its way."""


def identity_of(content: str | None, calls: Iterable[tuple[str, object]]) -> bytes | None:
    """What tells an answer from others by what clients send back of it: its text, and the names and
    arguments of its calls, which are JSON, or what it stands for. None where that is too deep."""
    try:
        said = [content or "", *([name, _plain(arguments)] for name, arguments in calls)]
        return xxhash.xxh3_128_digest(utf8(json.dumps(said, sort_keys=True)))
    except RecursionError:
        return None


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, object]] | None:
    """Name and arguments of each call; None where the message has something else there."""
    calls: list[tuple[str, object]] = []
    sent = message.get("tool_calls")
    if not isinstance(sent, list | None):
        return None
    for call in sent or []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        calls.append((function["name"], function.get("arguments")))
    return calls


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
        calls, content = calls_of(message), _content(message)
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


def recalled(
    messages: Messages,
    render: Render,
    memory: TextMemory,
    owner: Owner | None,
    *,
    keeps_reasoning: bool,
) -> Recalled:
    """The prompt of ``messages``, with answers in it as they were generated for ``owner``; None is
    nobody.

    Each is put where the template has an assistant's message that says the same, if all before it
    is, to the letter, the prompt that it answered: always where the template only spells it
    otherwise, and with ``keeps_reasoning`` also where it leaves something out. O(prompt) for each
    of at most three renderings, and for one where no template spells an answer otherwise.

    Raises:
        InvalidRequestError: ``render`` refuses the messages.
    """
    plain = render(messages)
    answers = {} if owner is None else _answers(messages, memory, owner, keeps_reasoning)
    for _ in range(ATTEMPTS):
        if not answers:
            break
        nonce = f"radixserve-{secrets.token_hex(12)}"
        marked = [
            {"role": message["role"], "content": f"{nonce}-{index}-"}
            if index in answers
            else message
            for index, message in enumerate(messages)
        ]
        try:
            parts = re.split(f"{nonce}-([0-9]+)-", render(marked))
        except InvalidRequestError:
            break
        shown = [int(index) for index in parts[1::2]]
        if shown == [*answers]:
            return _filled(plain, parts[::2], answers, memory, keeps_reasoning)
        # Some templates leave messages out, or show one twice.
        answers = {index: each for index, each in answers.items() if shown.count(index) == 1}
    return Recalled(plain, {})


def _answers(
    messages: Messages, memory: TextMemory, owner: Owner, keeps_reasoning: bool
) -> dict[int, tuple[Remembered, ...]]:
    """What each message may be that the assistant has ended, by its index, as far as a template
    could write it otherwise."""
    found = {}
    for index, message in enumerate(messages[:-1]):
        if message.get("role") != "assistant":
            continue
        calls, content = calls_of(message), _content(message)
        if calls is None or content is None:
            continue
        identity = identity_of(content, calls)
        told = [message[name] for name in REASONING if message.get(name)]
        answers = [
            each
            for each in (memory.answers(owner, identity) if identity is not None else ())
            if all(one == each.reasoning for one in told)
            and (keeps_reasoning or not each.is_just(content, memory.tokenizer))
        ]
        if answers:
            found[index] = tuple(answers)
    return found


def _filled(
    plain: str,
    parts: Sequence[str],
    answers: Mapping[int, tuple[Remembered, ...]],
    memory: TextMemory,
    keeps_reasoning: bool,
) -> Recalled:
    """``plain`` with answers in the gaps between ``parts``, as far as they were given there."""
    gaps = gaps_in(plain, parts)
    if gaps is None:
        return Recalled(plain, {})
    ends: dict[int, int] = {}
    pieces = [parts[0]]
    hasher = xxhash.xxh3_128(utf8(parts[0]))
    length = len(parts[0])
    for (index, options), own, behind in zip(answers.items(), gaps, parts[1:], strict=True):
        piece = own
        for answer in options:
            said = _said(answer, length, hasher, behind, memory)
            if said is not None and (keeps_reasoning or _same(said, own)):
                piece = said
                ends[index] = length + len(said)
                break
        pieces += piece, behind
        hasher.update(utf8(piece + behind))
        length += len(piece) + len(behind)
    return Recalled("".join(pieces), ends)


def gaps_in(text: str, parts: Sequence[str]) -> list[str] | None:
    """What stands between ``parts`` in ``text``, which begins with the first and ends with the last
    of them. None where it does not have them, since what a template writes of one message may hang
    on another, or has them in more ways than one. O(len(text))."""
    first, *middle, last = parts
    begin, end = len(first), len(text) - len(last)
    if begin > end or not (text.startswith(first) and text.endswith(last)) or "" in middle:
        return None
    places, at = [], begin
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return None
        places.append(at)
        at += len(part)
    at = end
    for part, place in zip(reversed(middle), reversed(places), strict=True):
        if text.rfind(part, begin, at) != place:
            return None
        at = place
    behind = (place + len(part) for place, part in zip(places, middle, strict=True))
    bounds = zip([begin, *behind], [*places, end], strict=True)
    return [text[start:stop] for start, stop in bounds]


def _same(one: str, other: str) -> bool:
    """Whether two texts have the same characters, white space aside, in whatever order. Where they
    stand for the same text and calls, JSON may be spelt otherwise, but nothing, such as reasoning,
    is in one of them alone."""
    one, other = ("".join(each.split()) for each in (one, other))
    return one == other or sorted(one) == sorted(other)


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


def _plain(arguments: object) -> tuple[bool, object]:
    """Whether it is JSON, and then what it stands for."""
    if not isinstance(arguments, str):
        return True, arguments
    try:
        return True, json.loads(arguments or "{}", parse_float=_number)
    except (ValueError, RecursionError):
        return False, arguments


def _number(digits: str) -> float | tuple[str, str]:
    """The number; one that no float is, is told from others by its digits."""
    number = float(digits)
    try:
        exact = Decimal(repr(number)) == Decimal(digits)
    except ArithmeticError:  # an exponent beyond all measure
        exact = False
    return number if exact else ("number", digits)
