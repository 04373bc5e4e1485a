"""The form of answers that are kept to one, and that what has it is read as what it is."""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from radixserve.text.grammar import GrammarCompiler, TokenTable
from radixserve.text.parsing.formats import (
    ReasoningFormat,
    ToolFormat,
    reasoning_formats,
    tool_formats,
)
from radixserve.text.parsing.parser import Begins, Formats, schemas_of
from radixserve.text.parsing.required import Wanted, answer_grammar, arguments_schema
from radixserve.text.vocabulary import read_vocabulary
from tests.text.parsing.reading import read
from tests.text.parsing.samples import ROME, TOOLS

SCHEMAS = schemas_of(TOOLS)
STYLES = pytest.mark.parametrize("style", tool_formats(), ids=lambda style: style.names[0])
SPELT = pytest.mark.parametrize("spelt", [True, False], ids=["text", "special tokens"])
LETTERS, END = 256, 300
WEATHER, NOW = ("get_weather", json.loads(ROME)), ("now", {})
FORM = 'start: "<3" | "yes"'


def specials(style: ToolFormat) -> dict[str, int]:
    """Markers that are tokens of their own in such models."""
    written = style.before + style.call + style.argument + style.between + style.after
    found = re.findall(r"<[|｜][^|｜<]*[|｜]>|\[[A-Z_]+\]|</?[a-z_]+>", written)
    if style.form == "channels":
        found.append("<|end|>")
    return {text: LETTERS + place for place, text in enumerate(dict.fromkeys(found))}


def written(style: ToolFormat, name: str, arguments: dict[str, Any]) -> str:
    spelt = json.dumps(arguments)
    if style.form == "tagged":
        spelt = "".join(
            style.argument.replace("$key", key).replace(
                "$value", value if isinstance(value, str) else json.dumps(value)
            )
            for key, value in arguments.items()
        )
    return style.call.replace("$name", name).replace("$arguments", spelt)


def answer(style: ToolFormat, *calls: tuple[str, dict[str, Any]]) -> str:
    return style.before + style.between.join(written(style, *call) for call in calls) + style.after


def tokens_of(text: str, special: dict[str, int]) -> list[int]:
    pieces = re.split("|".join(f"({re.escape(each)})" for each in special) or "(?!)", text)
    found: list[int] = []
    for piece in filter(None, pieces):
        found += [special[piece]] if piece in special else list(piece.encode())
    return found


class Table:
    bos_token_id = None
    eos_token_id = END
    special_token_ids = list(range(LETTERS, END + 1))  # noqa: RUF012
    tokens = [bytes([each]) for each in range(LETTERS)]  # noqa: RUF012
    tokens += [f"<special {each}>".encode() for each in special_token_ids]

    def __call__(self, text: Any) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Table()), eos_token=[END])


def accepts(grammar: str | None, text: str, special: dict[str, int]) -> bool:
    """Whether a byte-level model that is kept to ``grammar`` can answer ``text``."""
    assert grammar is not None
    both = [{"lark_grammar": grammar}, {"name": "form", "lark_grammar": FORM}]
    source = json.dumps({"grammars": both}) if "@form" in grammar else grammar
    matcher = llguidance.LLMatcher(TOKENIZER, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokens_of(text, special)
    return all(matcher.consume_token(each) for each in tokens) and bool(matcher.is_accepting())


@STYLES
def test_what_is_written_in_the_form_is_read_as_calls(style: ToolFormat):
    found = read(Formats(style), [answer(style, WEATHER, NOW)])
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == [WEATHER, NOW]
    assert found.content == ""


@STYLES
@SPELT
def test_the_form_takes_calls_of_the_tools_and_nothing_else(style: ToolFormat, spelt: bool):
    special = {} if spelt else specials(style)

    def takes(text: str, **settings: Any) -> bool:
        wanted = Wanted(schemas=SCHEMAS, **settings)
        return accepts(answer_grammar(Formats(style), special, "answer", wanted), text, special)

    assert takes(answer(style, WEATHER))
    assert takes(answer(style, WEATHER, NOW))
    assert not takes(answer(style, WEATHER, NOW), parallel=False)
    assert takes(answer(style, NOW), parallel=False)
    assert not takes(answer(style, ("other", {})))
    assert not takes(answer(style, ("get_weather", {"days": "x"})))
    assert not takes("Hello!")


@STYLES
@SPELT
def test_where_text_is_free_a_call_that_is_begun_is_kept_to_its_form(
    style: ToolFormat, spelt: bool
):
    special = {} if spelt else specials(style)
    begins: Begins = "either" if style.form == "channels" else "answer"
    head = "<|channel|>final<|message|>" if style.form == "channels" else ""

    def takes(text: str, **settings: Any) -> bool:
        wanted = Wanted(schemas=SCHEMAS, text="free", **settings)
        return accepts(answer_grammar(Formats(style), special, begins, wanted), text, special)

    for parallel in (True, False):
        assert takes(f"{head}Hello, <you>!", parallel=parallel)
        assert takes(answer(style, WEATHER), parallel=parallel)
        assert takes(answer(style, WEATHER, NOW), parallel=parallel) == parallel
        assert not takes(answer(style, ("other", {})), parallel=parallel)
        assert not takes(answer(style, ("get_weather", {"days": "x"})), parallel=parallel)
    if not (style.bare or style.form == "channels"):
        assert takes("I look. " + answer(style, WEATHER))
        assert not takes("I look. " + answer(style, ("other", {})))


@STYLES
@SPELT
def test_an_answer_is_calls_or_of_the_clients_form(style: ToolFormat, spelt: bool):
    special = {} if spelt else specials(style)
    begins: Begins = "either" if style.form == "channels" else "answer"
    head = "<|channel|>final<|message|>" if style.form == "channels" else ""
    grammar = answer_grammar(Formats(style), special, begins, Wanted(schemas=SCHEMAS, text="form"))
    assert (grammar is None) == style.bare
    if grammar is not None:
        assert accepts(grammar, f"{head}yes", special)
        assert accepts(grammar, answer(style, WEATHER, NOW), special)
        assert not accepts(grammar, f"{head}yes" + answer(style, NOW), special)
        assert not accepts(grammar, f"{head}no", special)


@pytest.mark.parametrize(
    "style",
    [each for each in reasoning_formats() if each.form == "block"],
    ids=lambda style: style.names[0],
)
@SPELT
@pytest.mark.parametrize("text", ["form", "none"])
def test_reasoning_is_free_and_goes_first_where_the_model_may_reason(
    style: ReasoningFormat, spelt: bool, text: Any
):
    hermes = next(each for each in tool_formats() if each.names[0] == "hermes")
    special = {} if spelt else {style.open: END - 2, style.close: END - 1}
    said = "yes" if text == "form" else answer(hermes, NOW)
    inside = f"Hm < no,\n{{}}!\n{style.close}\n\n{said}"

    def takes(answer: str, begins: Begins) -> bool:
        wanted = Wanted(schemas=SCHEMAS, text=text)
        grammar = answer_grammar(Formats(hermes, style), special, begins, wanted)
        return accepts(grammar, answer, special)

    assert takes(inside, "reasoning")
    assert takes(style.open + inside, "either")
    assert takes(said, "either")
    assert takes(said, "answer")
    assert not takes(inside, "answer")
    assert not takes(style.open + inside, "answer")
    assert not takes(said, "reasoning")
    assert not takes(f"{inside} so", "reasoning")


def test_analysis_and_preambles_go_before_the_answer_in_channels():
    style = next(each for each in tool_formats() if each.form == "channels")
    reasoning = next(each for each in reasoning_formats() if each.form == "channels")
    formats = Formats(style, reasoning)
    special = specials(style)
    thought = "".join(
        f"<|channel|>{name}<|message|>Hm.<|end|><|start|>assistant"
        for name in ("analysis", "commentary")
    )
    for text, said in (
        ("form", "<|channel|>final<|message|>yes"),
        ("free", "<|channel|>final<|message|>Hello!"),
        ("none", answer(style, NOW)),
    ):
        wanted = Wanted(schemas=SCHEMAS, text=text)  # type: ignore[arg-type]
        grammar = answer_grammar(formats, special, "either", wanted)
        assert accepts(grammar, thought + said, special)
        assert accepts(grammar, said, special)
        assert not accepts(grammar, thought, special)
        found = read(formats, [thought + said])
        assert found.reasoning == "Hm."
        assert [name for name, _ in found.calls] == (["now"] if text == "none" else [])


def trained(texts: list[str]) -> TokenTable:
    """A byte-level tokenizer whose tokens span whatever often stands side by side in ``texts``."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator(texts * 3, trainer)
    backend.add_special_tokens(["<|end of answer|>"])
    end = backend.token_to_id("<|end of answer|>")
    backend.decoder = decoders.ByteLevel()
    vocabulary = read_vocabulary(backend)
    assert vocabulary is not None
    return TokenTable(vocabulary.pieces, [end], [end], backend)


def test_a_model_may_write_each_form_in_the_tokens_that_it_is_used_to():
    think = next(each for each in reasoning_formats() if each.names[0] == "think")
    thought = "Let me see.\n</think>\n\n"
    weather = ("get_weather", {"city": "Rome", "days": 3, "exact": True})
    said = {style: answer(style, weather, NOW) for style in tool_formats()}
    table = trained([thought + each for each in said.values()])
    compiler = GrammarCompiler(table)
    for style, calls in said.items():
        reasoning = None if style.form == "channels" else think
        wanted = Wanted(schemas=SCHEMAS)
        grammar = answer_grammar(Formats(style, reasoning), {}, "reasoning", wanted)
        assert grammar is not None
        text = calls if style.form == "channels" else thought + calls
        tokens = table.backend.encode(text).ids
        assert len(tokens) < len(text) / 2
        matcher = compiler.compile("lark", grammar).deep_copy()
        for token in tokens:
            allowed = matcher.compute_bitmask()
            assert allowed[token // 8] >> token % 8 & 1, (style.names, table.tokens[token])
            matcher.consume_token(token)
        assert matcher.is_accepting()


CITY = {"type": "object", "properties": {"city": {"type": "string", "format": "town"}}}


def test_what_cannot_be_enforced_is_left_out_unless_the_tool_is_strict():
    hermes = next(each for each in tool_formats() if each.names[0] == "hermes")
    wanted = Wanted(schemas={"f": CITY})
    said = answer(hermes, ("f", {"city": "Rome"}))
    assert accepts(answer_grammar(Formats(hermes), {}, "answer", wanted), said, {})
    strict = Wanted(schemas={"f": CITY}, strict={"f"})
    grammar = answer_grammar(Formats(hermes), {}, "answer", strict)
    matcher = llguidance.LLMatcher(TOKENIZER, grammar, log_level=0)
    assert "Unknown format: town" in matcher.get_error()


@STYLES
def test_a_tool_without_parameters_has_no_arguments(style: ToolFormat):
    assert arguments_schema({}, strict=False)["additionalProperties"] is False
    grammar = answer_grammar(Formats(style), {}, "answer", Wanted(schemas={"f": {}}))
    assert accepts(grammar, answer(style, ("f", {})), {})
    assert not accepts(grammar, answer(style, ("f", {"x": 1})), {})


TAGGED = [style for style in tool_formats() if style.form == "tagged"]
MIXED = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "count": {"$ref": "#/$defs/count", "type": "integer"},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "odd": {"anyOf": 7, "oneOf": [5, None]},
    },
    "required": ["text", "extra"],
    "$defs": {"count": {"maximum": 9}},
}


@pytest.mark.parametrize("style", TAGGED, ids=lambda style: style.names[0])
@SPELT
def test_tagged_arguments_come_in_their_order_each_of_its_kind(style: ToolFormat, spelt: bool):
    special = {} if spelt else specials(style)
    grammar = answer_grammar(Formats(style), special, "answer", Wanted(schemas={"f": MIXED}))

    def takes(**arguments: Any) -> bool:
        return accepts(grammar, answer(style, ("f", arguments)), special)

    assert takes(text="a\n<b> \\ c", unit="C", count=9, any="x", odd="y", extra="z")
    assert takes(text="", extra="")
    assert not takes(text="a")
    assert not takes(extra="z", text="a")
    assert not takes(text="a", unit="K", extra="z")
    assert not takes(text="a", count=10, extra="z")
    assert not takes(text="a", count="many", extra="z")
    assert not takes(text="a", extra="z", more=1)
