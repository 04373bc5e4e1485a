from __future__ import annotations

import copy
import json
from time import thread_time
from typing import Any

import pytest

from radixserve.common import common_length
from radixserve.explain.divergence import Seam, diverge, pointer, snippet
from tests.explain.bodies import turn

Message = dict[str, Any]
HANG = 20.0
"""Seconds that nothing here takes unless it is not linear."""


def tool(name: str, **properties: str) -> dict[str, Any]:
    fields = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": sorted(fields)}
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("get_weather", city="string"), tool("search", query="string", limit="integer")]
DOCUMENTS = [
    "The first document tells of otters, which hold hands while they sleep.",
    "The second document tells of 12 lighthouses along the northern coast.",
    "The third document tells of bread, and why the crust is brown.",
]


def body(
    system: str = "You are a careful assistant.", user: str = "Hello there", **fields: Any
) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": messages, **copy.deepcopy(fields)}


def rendered(body: dict[str, Any], *, tools_last: bool = False) -> str:
    lines = [f"<|{each['role']}|>\n{each.get('content')}<|end|>\n" for each in body["messages"]]
    listed = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in body.get("tools", ()))
    if listed:
        lines.insert(1 if tools_last else 0, f"# Tools\n{listed}")
    return "".join(lines) + "<|assistant|>\n"


@pytest.mark.parametrize(
    ("guess", "earlier", "later"),
    [
        ("timestamp", "It is 2026-11-30 12:04:17.", "It is 2026-11-30 12:05:01."),
        ("timestamp", "It is 9:59 am.", "It is 10:02 am."),
        ("timestamp", "Date: Monday, 30 November", "Date: Tuesday, 1 December"),
        ("timestamp", "Stand: 30.11.2026", "Stand: 01.12.2026"),
        ("timestamp", "Call me at 9 PM.", "Call me at 10 PM."),
        ("timestamp", "今天是2026年11月30日。", "今天是2026年12月1日。"),
        ("timestamp", "현재 시각: 오후 3시 20분", "현재 시각: 오후 3시 21분"),
        ("timestamp", "epoch=1764504257.25", "epoch=1764504299.5"),
        ("timestamp", "at 20261130T120417", "at 20261130T120501"),
        (
            "uuid",
            "Session 1b4e28ba-2fa1-11d2-883f-0016d3cca427 begins.",
            "Session 6fa459ea-ee8a-3ca4-894e-db77e160355e begins.",
        ),
        ("random_id", "Trace call_a8Fk29xQz1 of it", "Trace call_b7Tq81mWe4 of it"),
        ("number", "This is request 9 of yours.", "This is request 10 of yours."),
        ("number", "You have 1,204 points", "You have 1,377 points"),
        ("whitespace", "Be brief.\n\nBe kind.", "Be brief.\nBe kind. "),
        ("key_order", 'State: {"a": 1, "b": [2]} ok', 'State: {"b": [2], "a": 1} ok'),
        ("key_order", '{"x": {"a": 1, "b": 2}, "y": 0}', '{"x": {"b": 2, "a": 1}, "y": 0}'),
        ("key_order", '{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}'),
        ("json_format", '{"a": "caf\u00e9"} is all', '{"a": "caf\\u00e9"} is more'),
        ("json_format", '{"days": 3, "at": 1} is all', '{"days": 3.0, "at": 1} is more'),
        ("text", 'Say {"a": 1, "b": 2}', 'Say {"a": true, "b": 2}'),
        (
            "unicode_form",
            "The caf\u00e9 opens at nine, at 12:04.",
            "The cafe\u0301 opens at nine, today.",
        ),
        ("unicode_form", "An o\ufb03ce of many rooms.", "An office of many rooms."),
        ("unicode_form", "Say it to all.", "\ufeffSay it to all."),
        ("unicode_form", "Say it to all.", "Say it to all\u200b."),
        ("whitespace", "At 9:30\u202fPM", "At 9:30 PM"),
        (
            "whitespace",
            "Be brief.\n\nBe kind to all, 9 of us.",
            "Be brief.\nBe kind to all, 8 of us.",
        ),
        ("text_inserted", "Be brief.", "Be brief. Be kind."),
        ("text_inserted", "Be brief to all.", "Be very brief to all."),
        ("text_removed", "Be very brief to all.", "Be brief to all."),
        ("text", "[1] Otters sleep.\nWho?", "[2] Bread is brown.\nWho?"),
        ("text_inserted", "Be brief, be kind.", "It is 12:04. Be brief, be kind."),
        ("text", "who?", "Tell me who? And why?"),
        ("text_removed", "Be brief. Be kind.", "Be brief."),
        ("unwrapped", "Use this: ...\n\nQuestion: who?", "who?"),
        ("reasoning_omitted", "<think>So it is.</think>\n\nYes.", "Yes."),
        ("text", "Translate into French", "Translate into German"),
        ("text", "The market was open", "The money was gone"),
        ("text", "python 3.11 on version v2alpha", "python 3.11 on version v2beta"),
    ],
)
def test_a_text_that_differs_is_guessed_at(guess: str, earlier: str, later: str):
    found = diverge(body(earlier), body(later))
    assert found is not None
    assert found.guess == guess
    assert (found.message, found.role, found.pointer) == (0, "system", "/messages/0/content")
    assert earlier[: found.character] == later[: found.character]
    assert earlier[found.character :][:1] != later[found.character :][:1]


def test_documents_in_another_order_are_known_though_they_are_numbered():
    earlier, later = (
        "\n\n".join(f"[{place}] {text}" for place, text in enumerate(texts, 1)) + "\n\nWho?"
        for texts in (DOCUMENTS, [DOCUMENTS[2], DOCUMENTS[0], DOCUMENTS[1]])
    )
    found = diverge(body(user=earlier), body(user=later))
    assert found is not None
    assert (found.guess, found.message, found.role) == ("document_order", 1, "user")
    assert found.character == earlier.index("[1] The ") + len("[1] The ")


def test_documents_between_tags_are_known_whatever_their_tags_say():
    texts = ["Trees have one root.", "Pages hold sixteen tokens.", "A lease pins what it reads."]

    def user(order: list[int]) -> str:
        documents = (f'<doc id="{place}">{texts[each]}</doc>' for place, each in enumerate(order))
        return f"Read these: {''.join(documents)} Which one?"

    for later in ([2, 0, 1], [0, 2, 1]):
        found = diverge(body(user=user([0, 1, 2])), body(user=user(later)))
        assert found is not None
        assert (found.guess, found.message) == ("document_order", 1)


def test_documents_in_parts_or_a_field_of_their_own_are_known_too():
    parts = [{"type": "text", "text": each} for each in DOCUMENTS]
    found = diverge(
        {"messages": [{"role": "user", "content": parts}]},
        {"messages": [{"role": "user", "content": parts[::-1]}]},
    )
    assert found is not None
    assert (found.guess, found.pointer) == ("document_order", "/messages/0/content/0")
    found = diverge(body(documents=parts), body(documents=parts[::-1]))
    assert found is not None
    assert (found.guess, found.pointer) == ("document_order", "/documents/0")


def test_one_clock_among_the_documents_is_a_clock():
    texts = [*DOCUMENTS, "Now it is 12:04:17 here, far from the sea."]
    found = diverge(
        body(user="\n\n".join(texts)), body(user="\n\n".join(texts).replace("12:04", "12:05"))
    )
    assert found is not None
    assert found.guess == "timestamp"


def test_tools_in_another_order():
    found = diverge(body(tools=TOOLS), body(tools=TOOLS[::-1]))
    assert found is not None
    assert (found.guess, found.pointer, found.message) == ("tool_order", "/tools/0", None)
    assert "get_weather" not in found.later


def test_another_tool():
    found = diverge(body(tools=TOOLS), body(tools=[TOOLS[0], tool("fly", to="string")]))
    assert found is not None
    assert (found.guess, found.pointer) == ("tools_changed", "/tools/1")
    found = diverge(body(tools=TOOLS), body())
    assert found is not None
    assert (found.guess, found.pointer) == ("tools_changed", "/tools")


def test_keys_of_a_tool_in_another_order():
    other = copy.deepcopy(TOOLS)
    function = other[1]["function"]
    function["parameters"]["properties"] = dict(
        reversed(function["parameters"]["properties"].items())
    )
    found = diverge(body(tools=TOOLS), body(tools=other))
    assert found is not None
    assert found.guess == "key_order"
    assert found.pointer == "/tools/1/function/parameters/properties"
    assert found.earlier.startswith('{"query"')
    assert found.later.startswith('{"limit"')


def test_keys_of_arguments_in_another_order_as_text_and_as_an_object():
    for arguments in (
        ('{"city": "Bern", "days": 3}', '{"days": 3, "city": "Bern"}'),
        ({"city": "Bern", "days": 3}, {"days": 3, "city": "Bern"}),
    ):
        bodies = []
        for each in arguments:
            call = {"id": "call_1", "function": {"name": "get_weather", "arguments": each}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            bodies.append({"messages": [message]})
        found = diverge(*bodies)
        assert found is not None
        assert found.guess == "key_order"
        assert found.pointer == "/messages/0/tool_calls/0/function/arguments"


def test_keys_that_a_template_picks_by_name_may_stand_anywhere():
    message = {"role": "user", "content": "Hi"}
    turned = {"content": "Hi", "role": "user"}
    assert diverge({"messages": [message]}, {"messages": [turned]}) is None


def test_ids_made_anew():
    def called(id: str) -> dict[str, Any]:
        call = {"id": id, "function": {"name": "f", "arguments": "{}"}}
        return {
            "messages": [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "3", "tool_call_id": id},
            ]
        }

    found = diverge(called("call_a8Fk29xQz1"), called("call_b7Tq81mWe4"))
    assert found is not None
    assert (found.guess, found.pointer) == ("random_id", "/messages/0/tool_calls/0/id")
    assert diverge(called("call_a8Fk29xQz1"), called("call_a8Fk29xQz1")) is None


def test_arguments_are_found_though_the_template_writes_them_in_its_own_way():
    bodies, prompts = [], []
    for arguments in (
        '{"city":"Bern","days":3,"at":[1,2]}',
        '{"city":"Bern","days":3.0,"at":[1,2]}',
    ):
        call = {"id": "c", "function": {"name": "get_weather", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        bodies.append({"messages": [message, {"role": "tool", "content": "Rain, until ten."}]})
        prompts.append(f"[get_weather {json.dumps(json.loads(arguments))}]<|end|>Rain, until ten.")
    found = diverge(*bodies, Seam.of(*prompts))
    assert found is not None
    assert (found.guess, found.message) == ("json_format", 0)
    assert found.pointer == "/messages/0/tool_calls/0/function/arguments"


def test_entries_of_a_schema_in_another_order():
    other = copy.deepcopy(TOOLS)
    other[1]["function"]["parameters"]["required"].reverse()
    found = diverge(body(tools=TOOLS), body(tools=other))
    assert found is not None
    assert (found.guess, found.pointer) == (
        "list_order",
        "/tools/1/function/parameters/required/0",
    )
    rendered_now = Seam('"required": ["query", "limit"]', 14)
    assert diverge(body(tools=TOOLS), body(tools=other), rendered_now) == found
    other[1]["function"]["parameters"]["required"] = ["limit", "where"]
    found = diverge(body(tools=TOOLS), body(tools=other))
    assert found is not None
    assert found.guess == "text"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (body(), body()),
        (turn(("user", "One")), turn(("user", "One"), ("assistant", "Two"))),
        (turn(("user", "One"), ("assistant", "Two")), turn(("user", "One"))),
        ({"prompt": "Once upon"}, {"prompt": "Once upon a time"}),
        ({"prompt": [1, 2, 3]}, {"prompt": [1, 2, 3, 4]}),
        ({}, {}),
        (
            {"messages": [{"role": "user", "content": "Hi"}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        ),
        (
            {"messages": [{"role": "user", "content": "Hi", "cache_control": {"type": "x"}}]},
            {"messages": [{"role": "user", "content": "Hi"}]},
        ),
    ],
)
def test_what_extends_the_other_does_not_part(earlier: Message, later: Message):
    assert diverge(earlier, later) is None


def test_prompts_of_completions():
    found = diverge({"prompt": "Once upon a time"}, {"prompt": "Once upon a hill"})
    assert found is not None
    assert (found.pointer, found.character, found.message) == ("/prompt", 12, None)
    found = diverge({"prompt": [5, 6, 7]}, {"prompt": [5, 9, 7]})
    assert found is not None
    assert (found.pointer, found.guess) == ("/prompt/1", "text")
    found = diverge({"prompt": ["It is 12:01. Go."]}, {"prompt": ["It is 12:02. Go."]})
    assert found is not None
    assert (found.pointer, found.character, found.guess) == ("/prompt/0", 10, "timestamp")


@pytest.mark.parametrize("tools_last", [False, True])
def test_the_template_says_which_of_several_differences_comes_first(tools_last: bool):
    earlier = body("It is 12:04:17 now.", tools=TOOLS)
    later = body("It is 12:05:01 now.", tools=TOOLS[::-1])
    texts = [rendered(each, tools_last=tools_last) for each in (earlier, later)]
    found = diverge(earlier, later, Seam.of(*texts))
    assert found is not None
    assert found.guess == ("timestamp" if tools_last else "tool_order")


def test_what_a_template_leaves_out_is_not_to_blame():
    earlier, later = body(user="What is a fjord?"), body(user="What is a delta?")
    earlier["messages"][0]["name"], later["messages"][0]["name"] = "alfa", "bravo"
    found = diverge(earlier, later, Seam.of(rendered(earlier), rendered(later)))
    assert found is not None
    assert found.pointer == "/messages/1/content"


def test_a_template_that_rewrites_history_is_found_out():
    earlier = turn(("user", "Why is it so?"), ("assistant", "<think>Hm.</think>Because."))
    later = turn(
        ("user", "Why is it so?"),
        ("assistant", "<think>Hm.</think>Because."),
        ("user", "Really?"),
    )
    before = rendered(earlier)
    found = diverge(
        earlier, later, Seam.of(before, rendered(later).replace("<think>Hm.</think>", ""))
    )
    assert found is not None
    assert (found.guess, found.message, found.role) == ("template", 1, "assistant")
    assert found.pointer == "/messages/1"


def test_a_setting_of_the_template_is_named():
    earlier, later = body(), body(chat_template_kwargs={"enable_thinking": False})
    text = rendered(earlier)
    found = diverge(earlier, later, Seam.of(text, "No thoughts. " + text))
    assert found is not None
    assert (found.guess, found.pointer) == ("template", "/chat_template_kwargs")


def test_texts_that_extend_each_other_have_no_seam():
    assert Seam.of("One two", "One two three") is None
    assert Seam.of("One two", "One") is None


def test_snippets_and_pointers_are_short_and_can_be_sent():
    found = diverge(body("a" * 10_000 + "x" * 99), body("a" * 10_000 + "\ud800" + "y" * 99))
    assert found is not None
    assert found.character == 10_000
    assert max(len(found.earlier), len(found.later)) < 50
    found.later.encode()
    assert snippet("abc", 1) == "abc"
    assert pointer(("a/b", "c~d", 3)) == "/a~1b/c~0d/3"
    assert len(pointer(("k" * 100_000,))) <= 512


def nested(depth: int, leaf: int) -> Any:
    value: Any = leaf
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (body("<think>" * 200_000 + "a"), body("<think>" * 200_000 + "b")),
        (body("{" * 500_000 + "a"), body("{" * 500_000 + "b")),
        (body('{"a":' * 100_000 + "1"), body('{"a":' * 100_000 + "2")),
        (body("\n\n" * 500_000 + "a"), body("\n\n" * 500_000 + "b")),
        (body("1" * 2_000_000 + "2"), body("1" * 2_000_000 + "3")),
        (body("ab" * 500_000 + "x"), body("ab" * 400_000 + "x")),
        (turn(*[("user", "x")] * 50_000), turn(*[("user", "y")] * 50_000)),
        (body(user=list(range(300_000))), body(user=list(range(300_000, 0, -1)))),
        (body(user=nested(500, 1)), body(user=nested(500, 2))),
        (
            body(user={f"k{i}": i for i in range(200_000)}),
            body(user={f"k{i}": -i for i in range(200_000)}),
        ),
        (body(tools=[{}] * 100_000), body(tools=[None] * 100_000)),
        (body(tools="x", documents=7), body(tools=[3], documents={"a": [1]})),
        ({"messages": [1, None, "x"]}, {"messages": [2, {}, []]}),
    ],
    ids=range(13),
)
def test_hostile_bodies_cost_what_their_size_costs(earlier: Message, later: Message):
    began = thread_time()
    assert diverge(earlier, later) is not None
    diverge(earlier, later, Seam("a" * 512, 256))
    assert thread_time() - began < HANG


def test_the_common_head_of_two_sequences():
    for one, other, length in (
        ("", "", 0),
        ("abc", "", 0),
        ("abc", "abd", 2),
        ("abc", "abc", 3),
        ("abc", "abcd", 3),
        ("abcd", "abc", 3),
        ("xbc", "abc", 0),
    ):
        assert common_length(one, other) == length
        assert common_length(one.encode(), other.encode()) == length
