"""Requests from logs: JSON lines, as they are or compressed, of which some may be broken.

A line is the body of a request to chat completions, completions, responses or Anthropic's
messages, or holds one in a field of ``WRAPPERS``, as the files of batches and what is exported from
gateways and tracers do. A line may also hold a list of them, and so may all lines together. What is
none is named by its place and passed over.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from radixserve.errors import what_is_wrong
from radixserve.lint.parts import Body, Part, parts
from radixserve.simulation.lines import LONGEST, lines

PROMPTS = ("messages", "prompt", "input")
"""One of these has a request; where it is an object, that has the request in it."""
WRAPPERS = (
    *("body", "request", "params", "kwargs", "inputs", "request_body", "proxy_server_request"),
    *PROMPTS,
)
SETTINGS = ("model_parameters", "modelParameters", "optional_params")
"""Where some keep the tools, beside the messages."""
KEPT = ("model", "tools", "functions")
"""What stands around a request and belongs to its prompt."""
OPENED = re.compile(rb"\s*[\[{](?:.*[\[{,])?\s*", re.DOTALL)
"""The first line of a JSON text over many lines."""
DEPTH = 3
"""Wrappers inside of one another."""
TOLD = 20
"""Faults that are kept to be told; of others, only their number."""


class Request(NamedTuple):
    """One request of a log."""

    place: str
    """The file and the line."""
    body: Body
    parts: list[Part]
    raw: bytes
    """As it stood there."""

    @property
    def tenant(self) -> str:
        """With whom it can share: others that ask the same model, under the same salt."""
        return f"{self.body.get('model', '')}\n{self.body.get('cache_salt', '')}"


@dataclass(slots=True)
class Faults:
    """What could not be read."""

    count: int = 0
    told: list[str] = field(default_factory=list)
    """The place and the reason of the first ones."""

    def add(self, place: str, why: str | Exception) -> None:
        self.count += 1
        why = why if isinstance(why, str) else what_is_wrong(why)
        if len(self.told) < TOLD:
            self.told.append(f"{place}: {' '.join(why.split())[:200]}")


def read(
    path: Path, faults: Faults, progress: Callable[[int], object] = lambda _: None
) -> Iterator[Request]:
    """The requests of a file, one after another; it is never held as a whole.

    Args:
        faults: Takes what is no request, and the file itself if it cannot be read (to its end).
        progress: Called with bytes of the file, as many as were read.
    """

    def refuse(number: int, why: str) -> None:
        faults.add(f"{path}, line {number}", why)

    try:
        before, empty = faults.count, True
        numbered = lines(path, refuse, progress)
        for number, raw in numbered:
            if empty and OPENED.fullmatch(raw):
                yield from _requests(_joined(raw, numbered), str(path), faults)
                return
            if raw.strip():
                empty = False
                yield from _requests(raw, f"{path}, line {number}", faults)
        if empty and faults.count == before:
            faults.add(str(path), "is empty")
    except OSError as error:
        faults.add(str(path), f"cannot be read: {error.strerror or error}")
    except (EOFError, zlib.error) as error:
        faults.add(str(path), f"the compressed data ends or breaks here: {error}")


def again(raw: bytes) -> list[Part]:
    """The parts of a request that was read before."""
    return list(parts(_body(msgspec.json.decode(raw))))


def _joined(first: bytes, rest: Iterator[tuple[int, bytes]]) -> bytes:
    """A file that is one JSON text over many lines; of one that is too long, what fits."""
    found = bytearray(first)
    for _, raw in rest:
        found += raw
        if len(found) > LONGEST:
            break
    return bytes(found)


def _requests(raw: bytes, place: str, faults: Faults) -> Iterator[Request]:
    if not raw.lstrip().startswith(b"["):
        yield from _request(raw, place, faults)
        return
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        faults.add(place, f"{what_is_wrong(error)}; one object a line, as jq -c '.[]' writes")
        return
    for number, item in enumerate(items):
        yield from _request(bytes(item), f"{place}, item {number}", faults)


def _request(raw: bytes, place: str, faults: Faults) -> Iterator[Request]:
    """One, or none."""
    try:
        body = _body(msgspec.json.decode(raw))
        found = list(parts(body))
        if not found:
            raise ValueError("no request: it is empty")
    except (ValueError, RecursionError) as error:
        faults.add(place, error)
        return
    yield Request(place, body, found, raw)


def _body(value: Any) -> Body:
    """The request that ``value`` is or holds, and what around it belongs to its prompt."""
    around: Body = {}
    for _ in range(DEPTH):
        if _is_quoted(value):
            value = msgspec.json.decode(value)
        if not isinstance(value, dict):
            raise ValueError("no request: it is no object")
        if "hash_ids" in value:
            raise ValueError("no request: it looks like a trace, which radixserve simulate reads")
        value |= {name: _unquoted(value[name]) for name in PROMPTS if name in value}
        for each in (*map(value.get, SETTINGS), value):
            if isinstance(each, dict):
                around |= {name: each[name] for name in KEPT if each.get(name)}
        text = value.get("inputs")
        if isinstance(text, str) and not _is_quoted(text) and not value.keys() & {*PROMPTS}:
            value["prompt"] = text  # as text-generation servers take it
        inner = next((value[name] for name in WRAPPERS if _wraps(name, value.get(name))), None)
        if inner is None or any(isinstance(value.get(name), str | list) for name in PROMPTS):
            return around | value
        value = inner
    raise ValueError("no request: it has neither messages nor prompt nor input")


def _wraps(name: str, value: Any) -> bool:
    """Whether a request may be inside."""
    quoted = name not in PROMPTS and _is_quoted(value)
    return quoted or (isinstance(value, dict) and bool(value))


def _is_quoted(value: Any) -> bool:
    """Whether it is an object as text."""
    return isinstance(value, str) and value.lstrip()[:1] == "{"


def _unquoted(value: Any) -> Any:
    """Messages, or an object that holds them, where some write them as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(msgspec.DecodeError, RecursionError):
            found = msgspec.json.decode(value)
            if isinstance(found, dict) and any(name in found for name in PROMPTS):
                return found
            if isinstance(found, list) and all(
                isinstance(each, dict) and "role" in each for each in found
            ):
                return found
    return value
