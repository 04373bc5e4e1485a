"""The form of answers that have to be calls, and that what has it is read as calls."""

from __future__ import annotations

import re
from typing import Any

import pytest

from radixserve.text.parsing.formats import ToolFormat, tool_formats
from radixserve.text.parsing.parser import Formats, schemas_of
from radixserve.text.parsing.required import calls_grammar
from tests.text.parsing.samples import ROME, TOOLS
from tests.text.parsing.test_parser import read

SCHEMAS = schemas_of(TOOLS)
WRITTEN = [style for style in tool_formats() if style.call]
STYLES = pytest.mark.parametrize("style", WRITTEN, ids=lambda style: style.names[0])
LETTERS, END = 256, 300


def specials(style: ToolFormat) -> dict[str, int]:
    """Markers that are tokens of their own in such models."""
    found = re.findall(r"<[|｜][^|｜<]*[|｜]>|\[[A-Z_]+\]", style.before + style.call + style.after)
    return {text: LETTERS + place for place, text in enumerate(dict.fromkeys(found))}


def answer(style: ToolFormat, *calls: tuple[str, str]) -> str:
    written = [
        style.call.replace("$name", name).replace("$arguments", arguments)
        for name, arguments in calls
    ]
    return style.before + style.between.join(written) + style.after


def tokens_of(text: str, special: dict[str, int]) -> list[int]:
    pieces = re.split("|".join(f"({re.escape(each)})" for each in special) or "(?!)", text)
    found: list[int] = []
    for piece in filter(None, pieces):
        found += [special[piece]] if piece in special else list(piece.encode())
    return found


def accepts(grammar: str, tokens: list[int], special: dict[str, int]) -> bool:
    """Whether a byte-level model that is kept to ``grammar`` can answer ``tokens``."""
    llguidance = pytest.importorskip("llguidance", reason="it comes with structured output")

    class Table:
        bos_token_id = None
        eos_token_id = END
        special_token_ids = list(range(LETTERS, END + 1))  # noqa: RUF012
        tokens = [bytes([each]) for each in range(LETTERS)]  # noqa: RUF012
        tokens += [f"<special {each}>".encode() for each in special_token_ids]

        def __call__(self, text: Any) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Table()), eos_token=[END])
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(each) for each in tokens) and bool(matcher.is_accepting())


@STYLES
def test_what_is_written_in_the_form_is_read_as_calls(style: ToolFormat):
    found = read(Formats(style), [answer(style, ("get_weather", ROME), ("now", "{}"))])
    assert found.calls == [["get_weather", ROME], ["now", "{}"]]
    assert found.content == ""


@STYLES
@pytest.mark.parametrize("spelt", [True, False], ids=["text", "special tokens"])
def test_the_form_takes_calls_of_the_tools_and_nothing_else(style: ToolFormat, spelt: bool):
    special = {} if spelt else specials(style)

    def takes(text: str, **settings: Any) -> bool:
        grammar = calls_grammar(style, SCHEMAS, special, **settings)
        assert grammar is not None
        return accepts(grammar, tokens_of(text, special), special)

    one, two = ("get_weather", ROME), ("now", "{}")
    assert takes(answer(style, one))
    assert takes(answer(style, one, two))
    assert not takes(answer(style, one, two), parallel=False)
    assert not takes(answer(style, ("other", "{}")))
    assert not takes(answer(style, ("get_weather", '{"city": 7}')))
    assert not takes("Hello!")


@STYLES
def test_reasoning_that_the_prompt_has_begun_may_go_on_first(style: ToolFormat):
    special = {**specials(style), "</think>": END - 1}
    text = "Hm.\n</think>\n\n" + answer(style, ("now", "{}"))
    grammar = calls_grammar(style, SCHEMAS, special, reasoning_end="</think>")
    assert grammar is not None
    assert accepts(grammar, tokens_of(text, special), special)


def test_there_is_none_where_arguments_are_not_json():
    for style in tool_formats():
        assert (calls_grammar(style, SCHEMAS, {}) is None) == (style.form == "tagged")
