"""One request is another one but for something, or has nothing to do with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from radixserve.explain.beside import Beside
from radixserve.explain.bodies import Bodies
from radixserve.explain.trail import Record
from radixserve.tokens import pack

NAMES = ("read", "write", "find", "list", "move", "drop")


def record(body: dict[str, Any], answer: Sequence[int] = ()) -> Record:
    return Record(
        id="a",
        tenant="",
        namespace=b"",
        mode="on",
        epoch=0,
        began=0.0,
        length=8,
        body=Bodies().keep(json.dumps(body).encode()),
        tokens=pack(range(8)),
        answer=pack(answer),
    )


def like(later: dict[str, Any], earlier: dict[str, Any], **of_earlier: Any) -> bool:
    return Beside(record(later), decode).like(record(earlier, **of_earlier), 0)


def decode(tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    return "".join(map(str, tokens))


def asks(question: str, *names: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in names
    ]
    return {"messages": [{"role": "user", "content": question}], "tools": tools}


def test_tools_that_say_little_are_known_in_another_order():
    assert like(asks("Where?", *NAMES[::-1]), asks("Why not?", *NAMES))


@pytest.mark.parametrize("question", ["Why not?", "Where?"])
def test_other_tools_are_others(question: str):
    others = [f"{name}_mail" for name in NAMES]
    assert not like(asks("Where?", *others), asks(question, *NAMES))


def test_tools_that_are_no_list_are_none():
    assert not like({**asks("Where?"), "tools": "read"}, {**asks("Why not?"), "tools": "read"})


def test_an_answer_is_found_where_nothing_that_was_asked_is():
    later = {"messages": [{"role": "user", "content": each} for each in ("0123", "4567", "So?")]}
    earlier = {"messages": [{"role": "user", "content": "0123 and more"}]}
    assert not like(later, earlier)
    assert like(later, earlier, answer=range(2, 8))


def test_nothing_is_like_what_has_no_body():
    assert not like(asks("Why?"), {})
    assert not like({}, asks("Why?"))
