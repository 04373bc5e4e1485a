"""Grammars over the tokens of a model, by llguidance (Moskal et al., 2025).

A grammar is compiled lazily there: what a step needs of its automaton is made in that step, and
kept. The limits below bound what that may cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llguidance
import msgspec
import tokenizers

MAX_GRAMMAR = 2**18
"""UTF-8 bytes."""
MAX_COUNT = 2**16
"""Of a repetition in a regular expression."""
MAX_REASON = 300
"""Characters of what is said about a grammar that does not compile."""
WHITE_SPACE = r"\x20|\x0A[\x20\x09]{0,7}"
"""Between the tokens of JSON, so that no answer runs on in it for ever: at most 8 characters."""
LIMITS = llguidance.LLParserLimits(
    max_items_in_row=500,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)
"""Some milliseconds of a step, and about 40 MB of a grammar's automaton at most."""
_COUNT = re.compile(r"\{(?:\d+,)?(\d+),?\}")
_PATTERN = re.compile(r'"pattern"\s*:\s*"((?:[^"\\]|\\.)*)"')
_REGEX_ERROR = re.compile(r"^error: (.*)$", re.MULTILINE)

Matcher = llguidance.LLMatcher
_EMPTY = Matcher.grammar_from_regex("")


class GrammarError(ValueError):
    """A grammar that does not compile; the message is a reason without a full stop."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What grammars need of a tokenizer."""

    tokens: Sequence[bytes]
    """The bytes of each token, by its id."""
    special_token_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    backend: tokenizers.Tokenizer


class _Tokens:
    """A table as llguidance asks for it.

    It is called with text that alone can follow in an answer, of which only the model's usual
    tokens are then allowed.
    """

    bos_token_id = None

    def __init__(self, table: TokenTable):
        self._backend = table.backend
        self._special = frozenset(table.special_token_ids)
        self.tokens = table.tokens
        self.special_token_ids = table.special_token_ids
        self.eos_token_ids = list(table.eos_token_ids) or [len(table.tokens) - 1]
        """Where the tokenizer has no end of an answer, any token stands for it that will not do."""
        self.eos_token_id = self.eos_token_ids[0]
        self.greedy: Callable[[str], list[int]] | None = None

    def __call__(self, data: str | bytes) -> list[int]:
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
        ids = list(self._backend.encode(text, add_special_tokens=False).ids)
        # Some put a space in front of every text, and all know special tokens that are spelt out.
        spelt = b"".join(self.tokens[each] for each in ids)
        if self.greedy is None or (spelt == text.encode() and self._special.isdisjoint(ids)):
            return ids
        return self.greedy(text)


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Any number of threads may share it.

    Making it takes 0.3 s for 50,000 tokens, and lets no other thread of Python run meanwhile.
    """

    def __init__(self, table: TokenTable):
        tokens = _Tokens(table)
        wrapper = llguidance.TokenizerWrapper(tokens)
        self._tokenizer = llguidance.LLTokenizer(wrapper, eos_token=tokens.eos_token_ids)
        tokens.greedy = self._tokenizer.greedy_tokenize

    def compile(self, kind: str, text: str, frame: str = "") -> Matcher:
        """A matcher at the beginning of the grammar that ``text`` is, one of ``GrammarKind``'s
        ``kind``, within ``frame`` if there is one. Lets other threads run.

        Raises:
            GrammarError: it is not valid, or too large, or no text has this form.
        """
        if len((text + frame).encode("utf-8", "replace")) > MAX_GRAMMAR:
            raise GrammarError(f"it is larger than {MAX_GRAMMAR} bytes")
        try:
            source = _source(kind, text)
            if frame:
                source = _framed(source, frame)
        except GrammarError:
            raise
        except RecursionError as error:
            raise GrammarError("it is nested too deeply") from error
        except Exception as error:  # a converter of llguidance raises bare ones
            raise GrammarError(_reason(str(error))) from error
        matcher = Matcher(self._tokenizer, source, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            reason = matcher.get_error()
            if "NoExtension" in reason:
                raise GrammarError("no text has this form")
            raise GrammarError(_reason(reason))
        return matcher


def _source(kind: str, text: str) -> str:
    """The grammar in the form in which llguidance takes it."""
    match kind:
        case "json_schema":
            return _json_schema(text)
        case "regex":
            _check_counts(text)
            # As in JSON Schema and JavaScript, \\d and \\w are of ASCII alone.
            ascii_only = llguidance.regex_to_lark(text, "dw")
            return Matcher.grammar_from_lark(f"start: /{ascii_only}/") if text else _EMPTY
        case "choice":
            choices = msgspec.json.decode(text, type=list[str])
            if not choices:
                raise GrammarError("it must not be empty")
            return Matcher.grammar_from_regex("|".join(map(re.escape, choices)))
        case "grammar":
            return llguidance.grammar_from("grammar", text)
        case "lark":
            _check_patterns(text)
            return text
    raise GrammarError(f"{kind} is no kind of grammar")


def _json_schema(text: str) -> str:
    try:
        schema = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise GrammarError(f"it is not valid JSON: {error}") from error
    if schema is True:
        text = "{}"
    elif not isinstance(schema, dict):
        raise GrammarError("it must be an object")
    _check_patterns(text)
    return Matcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": WHITE_SPACE})


def _framed(source: str, frame: str) -> str:
    """``frame`` with ``source`` for its ``@form``: grammars that stand beside each other."""
    _check_patterns(frame)
    inner = (
        json.loads(source)["grammars"][0] if source.startswith("{") else {"lark_grammar": source}
    )
    return json.dumps({"grammars": [{"lark_grammar": frame}, {**inner, "name": "form"}]})


def _check_patterns(text: str) -> None:
    """Those of the JSON schemas in ``text``."""
    for pattern in _PATTERN.findall(text):
        _check_counts(pattern)


def _check_counts(regex: str) -> None:
    """They are compiled as they are reached, so that nothing else would find them too high."""
    for count in _COUNT.findall(regex):
        if len(count) > 9 or int(count) > MAX_COUNT:
            raise GrammarError(f"{count[:20]} repetitions; at most {MAX_COUNT} are taken")


def _reason(text: str) -> str:
    """The one line of an error that is about the grammar."""
    text = text.split("<state>")[0].split("<non-verbose/>")[0]
    found = _REGEX_ERROR.search(text)
    if found is not None:
        text = found[1]
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
