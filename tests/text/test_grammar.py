"""Which tokens a grammar lets follow, over small vocabularies."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest

from radixserve.text.grammar import MAX_GRAMMAR, GrammarCompiler, GrammarError, Matcher
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack
from tests.text import tiny

END = 2
PIECES = [b"", b"", b"", *(bytes([byte]) for byte in range(256))]
PIECES += [b"he", b"ll", b"hell", b" t", b" the", b"\xc3\xa9", b"\xec\x95"]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny.tiny_tokenizer_dir(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    table = tokenizer.table()
    assert table is not None
    return GrammarCompiler(table)


def allowed(matcher: Matcher) -> set[int]:
    mask = matcher.compute_bitmask()
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def texts(tokenizer: Tokenizer, matcher: Matcher) -> set[str]:
    return {tokenizer.token_text(token) for token in allowed(matcher) - {END}}


def follow(compiler: GrammarCompiler, kind: str, source: Any, text: str) -> Matcher:
    """Where a matcher stands after ``text``, in the longest tokens that are allowed.

    Where only one text can follow, only the tokens that the tokenizer makes of it are.
    """
    source = source if isinstance(source, str) else json.dumps(source)
    matcher = compiler.compile(kind, source).deep_copy()
    rest = text.encode()
    while rest:
        open_ = [
            token for token in allowed(matcher) if PIECES[token] and rest.startswith(PIECES[token])
        ]
        assert open_, f"{rest!r} of {text!r} is not allowed"
        token = max(open_, key=lambda each: len(PIECES[each]))
        assert matcher.consume_token(token)
        rest = rest[len(PIECES[token]) :]
    return matcher


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("json_schema", PERSON, '{"name":"Ann é","age":7}'),
        ("json_schema", PERSON, '{\n  "name": "Ann",\n  "age": 7\n}'),
        ("json_schema", True, "[1, null]"),
        ("regex", r"\d{3}-(a|b)/", "123-b/"),
        ("regex", "^yes$", "yes"),
        ("choice", ["a.b", 'c"d', "é\n"], 'c"d'),
        ("choice", ["a.b", 'c"d', "é\n"], "é\n"),
        ("choice", ["yes, please", string.printable, "🌳"], string.printable),
        ("choice", ["yes, please", string.printable, "🌳"], "🌳"),
        ("grammar", 'root ::= "a" rest\nrest ::= "b" | "c"', "ac"),
        ("grammar", 'start: "a" rest\nrest: "b" | "c"', "ab"),
    ],
)
def test_a_text_of_the_form_is_followed_to_its_end_and_no_further(
    compiler: GrammarCompiler, kind: str, source: Any, text: str
):
    matcher = follow(compiler, kind, source, text)
    assert matcher.is_accepting()
    assert matcher.is_stopped()
    assert not follow(
        compiler, kind, source, text.encode()[:-1].decode(errors="ignore")
    ).is_stopped()


def test_the_end_of_the_answer_is_allowed_where_it_is_whole(compiler: GrammarCompiler):
    assert END not in allowed(follow(compiler, "regex", "(ab)+", "a"))
    assert END in allowed(follow(compiler, "regex", "(ab)+", "ab"))
    assert not follow(compiler, "regex", "(ab)+", "ab").is_stopped()


def test_tokens_of_several_bytes_are_allowed_where_all_of_them_are(
    tokenizer: Tokenizer, compiler: GrammarCompiler
):
    begun = texts(tokenizer, follow(compiler, "choice", ["hello", "help", "yes"], ""))
    assert begun == {"h", "he", "hell", "y"}
    assert texts(tokenizer, follow(compiler, "choice", ["help", "held", "yes"], "")) == {
        "h",
        "he",
        "y",
    }
    assert texts(tokenizer, follow(compiler, "choice", ["help", "hello"], "he")) == {"l", "ll"}


def test_special_tokens_are_never_a_part_of_the_text(compiler: GrammarCompiler):
    anything = allowed(follow(compiler, "regex", r"(.|\n)*", ""))
    assert anything & {0, 1, 2} == {END}
    spelt = follow(compiler, "choice", ["<|im_start|>"], "")
    assert 1 not in allowed(spelt)


def test_digits_and_letters_of_a_regex_are_those_of_ascii(
    tokenizer: Tokenizer, compiler: GrammarCompiler
):
    assert texts(tokenizer, follow(compiler, "regex", r"\d", "")) == set("0123456789")
    assert "é" not in texts(tokenizer, follow(compiler, "regex", r"\w+", ""))


def test_white_space_between_the_tokens_of_json_ends(compiler: GrammarCompiler):
    spaces = {3 + byte for byte in b" \n\t\r"}
    for space in spaces:
        matcher = follow(compiler, "json_schema", PERSON, "{")
        count = 0
        while allowed(matcher) & spaces:
            token = space if space in allowed(matcher) else max(allowed(matcher) & spaces)
            assert matcher.consume_token(token)
            count += 1
        assert 1 <= count <= 8
        assert matcher.consume_token(3 + ord('"'))


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("regex", "*a", "missing expression"),
        ("regex", "(" * 5000 + "a" + ")" * 5000, "nested"),
        ("regex", "a{1,1000000}", "1000000 repetitions"),
        ("regex", "a{99999999999999999999}", "repetitions"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "(?=a)b", "look-around"),
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[1]", "must be an object"),
        ("json_schema", "false", "must be an object"),
        ("json_schema", {"type": "person"}, "person"),
        ("json_schema", {"$ref": "#"}, "no text"),
        ("json_schema", {"type": "string", "pattern": "a{1,1000000}"}, "1000000 repetitions"),
        ("json_schema", {"not": {"type": "string"}}, "not"),
        ("json_schema", '{"items":' * 500 + "{}" + "}" * 500, "limit"),
        ("json_schema", '{"items":' * 9000 + "{}" + "}" * 9000, "nested"),
        ("json_schema", {"enum": ["x" * 100] * (MAX_GRAMMAR // 100)}, "larger than"),
        ("choice", [], "empty"),
        ("grammar", "root ::= (", "Expected"),
        ("grammar", 'start: "a', "1"),
        ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "recursion"),
        ("poem", "", "no kind"),
    ],
)
def test_what_is_no_valid_form_is_refused_with_a_short_reason(
    compiler: GrammarCompiler, kind: str, source: Any, reason: str
):
    with pytest.raises(GrammarError, match=reason) as raised:
        compiler.compile(kind, source if isinstance(source, str) else json.dumps(source))
    assert len(str(raised.value)) <= 300
    assert "\n" not in str(raised.value)


def test_a_pattern_is_only_read_where_it_is_one(compiler: GrammarCompiler):
    assert compiler.compile("json_schema", json.dumps({"const": "a{1,1000000}"}))


def test_a_sentencepiece_vocabulary_has_its_bytes_and_spaces(tmp_path: Path):
    tiny.tiny_tokenizer_dir(tmp_path, backend=tiny.sentencepiece(), eos_token="</s>")
    tokenizer = Tokenizer.load(tmp_path)
    table = tokenizer.table()
    assert table is not None
    matcher = GrammarCompiler(table).compile("regex", "(the| )+안€|x+")
    tokens = unpack(tokenizer.encode("the the안€", add_special_tokens=False))
    assert tokenizer.decode(tokens) == "the the안€"
    for token in tokens:
        assert token in allowed(matcher)
        assert matcher.consume_token(token)
    assert matcher.is_stopped()


def test_where_tokens_do_not_stand_for_bytes_there_is_no_table(tmp_path: Path):
    tiny.tiny_tokenizer_dir(tmp_path, backend=tiny.wordpiece(), eos_token="[SEP]")
    assert Tokenizer.load(tmp_path).table() is None


def test_a_tokenizer_without_an_end_has_grammars_too(tokenizer: Tokenizer):
    table = tokenizer.table()
    assert table is not None
    compiler = GrammarCompiler(
        type(table)(table.tokens, table.special_token_ids, (), table.backend)
    )
    assert follow(compiler, "choice", ["yes"], "yes").is_stopped()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", '{"enum": ["yes"]}'),
        ("regex", '"y[e]s"'),
        ("choice", json.dumps(['"yes"'])),
        ("grammar", r'root ::= "\"yes\""'),
        ("grammar", r'start: "\"yes\""'),
        ("lark", r'start: "\"yes\""'),
    ],
)
def test_a_frame_goes_around_every_kind(compiler: GrammarCompiler, kind: str, source: str):
    frame = 'start: "<" @form? ">"'
    for text, whole in (('<"yes">', True), ("<>", True), ('"yes"', False), ('<"no">', False)):
        matcher = compiler.compile(kind, source, frame).deep_copy()
        accepted = all(matcher.consume_token(3 + byte) for byte in text.encode())
        assert (accepted and matcher.is_accepting()) == whole


def test_frames_and_grammars_have_the_bounds_of_schemas(compiler: GrammarCompiler):
    schema = json.dumps({"type": "string", "pattern": "a{1,100000}"})
    for kind, source, frame in (
        ("lark", f"start: %json {schema}", ""),
        ("regex", "a", f"start: @form %json {schema}"),
    ):
        with pytest.raises(GrammarError, match="100000 repetitions"):
            compiler.compile(kind, source, frame)
    with pytest.raises(GrammarError, match="larger than"):
        compiler.compile("regex", "a", f'start: @form "{"x" * MAX_GRAMMAR}"')
