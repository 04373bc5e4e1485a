"""Layouts as data: whatever two requests have in common stands in front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixserve.prompts.layout import Layout, LayoutError, layout, names

TOOLS = [
    {"type": "function", "function": {"name": "write"}},
    {"type": "function", "function": {"name": "read"}},
]


def test_there_are_layouts_for_retrieval_agents_examples_and_tenants():
    assert names() == ["agent", "few_shot", "multi_tenant", "rag"]
    assert all(layout(name).about for name in names())


def test_a_step_of_an_agent_begins_with_all_of_the_step_before():
    agent = layout("agent")
    first = agent.body(tools=TOOLS, system="You write code.", newest="Fix it.")
    history = [*first["messages"][1:], {"role": "assistant", "content": "Done."}]
    second = agent.body(
        tools=TOOLS[::-1], system="You write code.", history=history, newest="Test it."
    )
    assert second["tools"] == first["tools"] == TOOLS[::-1]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-1] == {"role": "user", "content": "Test it."}


def test_tools_of_anthropics_form_are_sorted_as_well():
    tools = [{"name": "b", "input_schema": {}}, {"name": "a", "input_schema": {}}]
    body = layout("agent").body(tools=tools, system="s", newest="n")
    assert body["tools"] == tools[::-1]


def test_an_agent_without_tools_sends_none():
    assert layout("agent").body(tools=[], system="s", newest="n").keys() == {"messages"}


@pytest.mark.parametrize("example", [{"q": "one", "a": "un"}, ("one",), ("a", "b", "c"), "ab"])
def test_an_example_that_is_no_pair_is_named(example: Any):
    with pytest.raises(LayoutError, match=r"examples\[1\] must be a pair"):
        layout("few_shot").body(instructions="i", examples=[("one", "un"), example], input="two")


def test_examples_are_turns_of_the_chat():
    messages = layout("few_shot").messages(
        instructions="Translate.", examples=[("one", "un"), ("two", "deux")], input="three"
    )
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "user", "assistant", "user"),
    ]
    assert messages[-1]["content"] == "three"


def test_what_all_tenants_share_stands_before_what_one_has():
    shared = layout("multi_tenant")
    [one, other] = [
        shared.messages(instructions="All.", tenant=tenant, user="Ada", question="?")
        for tenant in ("Shop A", "Shop B")
    ]
    assert one[0]["content"] == "All.\n\nShop A\n\nAda"
    assert other[0]["content"].startswith("All.\n\nShop B")
    assert one[1:] == other[1:]


def test_documents_may_be_plain_texts_where_the_layout_needs_no_more():
    plain = Layout.parse("plain", 'about = ""\n[[parts]]\nname = "texts"\nchanges = "never"')
    assert plain.messages(texts=["a", "b"]) == [{"role": "user", "content": "a\n\nb"}]


def test_a_layout_of_ones_own_is_read_from_a_file(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('about = "Mine."\n[[parts]]\nname = "question"\nchanges = "request"\n')
    for path in (file, str(file)):
        mine = Layout.read(path)
        assert mine.name == "mine"
        assert mine.messages(question="Why?") == [{"role": "user", "content": "Why?"}]
    with pytest.raises(LayoutError, match=r"none\.toml cannot be read"):
        Layout.read(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            'about = ""\n[[parts]]\nname = "clock"\nchanges = "request"\n'
            '[[parts]]\nname = "rules"\nchanges = "never"\n',
            r"rules changes less often \(never\) than the part before it \(request\)",
        ),
        ('about = ""\n[[parts]]\nname = "a"\nchanges = "daily"\n', "changes must be one of"),
        ('about = ""\n[[parts]]\nname = "a"\nsize = 3\n', "is no layout"),
        ('about = ""', "is no layout"),
        ("= 3", "is no layout"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, text: str, why: str):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(LayoutError, match=why):
        Layout.read(file)


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("rag", {"documents": 5}, "documents must be a text or a list, not int"),
        ("rag", {"documents": {"title": "t"}}, "documents must be a text or a list, not dict"),
        ("rag", {"documents": [5]}, r"documents\[0\] cannot be int"),
        ("agent", {"tools": "f"}, "tools must be a list, not str"),
        ("agent", {"tools": [{"name": "f"}, None]}, r"tools\[1\] cannot be NoneType"),
        ("agent", {"tools": [], "system": "s", "history": "Hi"}, "history must be a list, not str"),
        ("few_shot", {"instructions": "i", "examples": 1}, "examples must be a list, not int"),
    ],
)
def test_what_cannot_be_written_is_named(name: str, given: dict[str, Any], why: str):
    with pytest.raises(LayoutError, match=why):
        layout(name).body(**given)


def test_a_tool_without_a_name_is_the_first():
    tools = [{"function": {"name": "f"}}, {"function": None}]
    assert layout("agent").body(tools=tools, system="s", newest="n")["tools"] == tools[::-1]


def test_what_is_missing_or_unknown_is_named():
    with pytest.raises(LayoutError, match="rag needs documents"):
        layout("rag").messages(question="?")
    with pytest.raises(LayoutError, match="no part 'query'; it has instructions"):
        layout("rag").messages(documents=[], query="?")
    with pytest.raises(LayoutError, match="documents: 'title' is missing"):
        layout("rag").messages(documents=["text"], question="?")
    with pytest.raises(LayoutError, match="no layout 'chat'; there are agent"):
        layout("chat")
