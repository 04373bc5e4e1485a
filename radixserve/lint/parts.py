"""What a request's prompt is made of, in the order in which templates put it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from radixserve.explain.walk import SECTIONS, TOOLS, UNSEEN, text_of

MESSAGES = ("messages", "input")
MEDIA = ("image", "image_url", "input_image", "input_audio", "document", "file", "video_url")
FORMS: dict[str, tuple[type, ...]] = {
    "messages": (list,),
    "input": (str, list),
    "prompt": (str, list),
    "system": (str, list),
    "instructions": (str, list),
    "documents": (list,),
}
"""What the value of a field may be, and"""
NAMES: dict[type, str] = {str: "a text", list: "a list"}
"""how that is called."""
OWN = ("role", "content")
"""Fields of messages that stand elsewhere in their text."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Tools, a system prompt, a message, or a bare prompt."""

    section: str
    """The body's field."""
    index: int | None
    """Of a message."""
    role: str | None
    value: Any
    """As it was sent."""
    text: str
    """Of it, about as a template writes it."""
    key: int
    """Of the text: equal if and, but for accidents, only if it is."""

    @property
    def pointer(self) -> str:
        """RFC 6901, into the body."""
        return f"/{self.section}" if self.index is None else f"/{self.section}/{self.index}"

    @property
    def body(self) -> Body:
        """A body with nothing but this part."""
        return {self.section: self.value if self.index is None else [self.value]}


def parts(body: Body) -> Iterator[Part]:
    """The parts of a prompt. O(size of the body).

    Raises:
        ValueError: it is no request; the message says why.
    """
    if not any(name in body for name in (*MESSAGES, "prompt")):
        raise ValueError("no request: it has neither messages nor prompt nor input")
    for section in SECTIONS:
        value = body.get(section)
        if value is None or value in ([], ""):
            continue
        if section in FORMS and not isinstance(value, FORMS[section]):
            known = " or ".join(NAMES[form] for form in FORMS[section])
            raise ValueError(f"no request: {section} must be {known}")
        if section in TOOLS:
            yield _part(section, None, None, value, _tools(value))
        elif section in MESSAGES and isinstance(value, list):
            for index, message in enumerate(value):
                role, text = _message(section, index, message)
                yield _part(section, index, role, message, text)
        elif section == "system":
            yield _part(section, None, "system", value, text_of(value))
        elif isinstance(value, str):
            yield _part(section, None, None, value, value)
        else:
            yield _part(section, None, None, value, _json(value))


def _part(section: str, index: int | None, role: str | None, value: Any, text: str) -> Part:
    hashed = xxhash.xxh3_64_intdigest(f"{section} {role}\n{text}".encode(errors="replace"))
    return Part(section, index, role, value, text, hashed)


def _tools(value: Any) -> str:
    """A line for each, in their order."""
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("tools must be a list of objects")
    return "".join(_json(tool) + "\n" for tool in value)


def _message(section: str, index: int, message: Any) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise ValueError(f"{section}.{index} must be an object")
    role = message.get("role") or message.get("type")
    if not isinstance(role, str):
        raise ValueError(f"{section}.{index}.role must be a string")
    rest = {
        name: value
        for name, value in message.items()
        if name not in OWN and name not in UNSEEN and value not in (None, [], "")
    }
    lines = [role, *_content(message.get("content"))]
    if rest:
        lines.append(_json(rest))
    return role, "\n".join(lines) + "\n"


def _content(content: Any) -> Iterator[str]:
    """The texts of a message; what is no text is there as JSON, or as the name of its bytes."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield part["text"]
            elif isinstance(part, Mapping) and part.get("type") in MEDIA:
                yield f"[{part['type']} {xxhash.xxh3_64_hexdigest(_json(part).encode())}]"
            else:
                yield _json(part)
    elif content is not None:
        yield _json(content)


def _json(value: Any) -> str:
    """JSON with keys in the order in which they were sent, without marks for caches."""
    if isinstance(value, dict) and UNSEEN & value.keys():
        value = {name: each for name, each in value.items() if name not in UNSEEN}
    return msgspec.json.encode(value).decode()
