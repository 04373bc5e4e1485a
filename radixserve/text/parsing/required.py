"""The form of answers that are kept to one: reasoning, then calls, text, or what a client wants.

Grammars are in Lark, in the dialect of llguidance: https://github.com/guidance-ai/llguidance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from radixserve.text.parsing.channels import CHANNEL, MESSAGE, START
from radixserve.text.parsing.formats import ReasoningFormat, ToolFormat
from radixserve.text.parsing.parser import Begins, Formats
from radixserve.text.parsing.tagged_call import Schemas, types_of

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""That of the JSON which models learn; a free choice could go on in white space for ever."""
ANY = "/(?s:.*)/"
"""Any text, in which there is no special token."""
FORM = "@form"
"""What a client says of the text; the grammar is a frame around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What may stand behind the reasoning."""

    schemas: Schemas
    """The schema of the arguments of each tool that may be called."""
    strict: Set[str] = frozenset()
    """Names of those whose schema must hold to the letter; of the others what cannot be enforced is
    left out."""
    parallel: bool = True
    """Whether there may be more than one call."""
    text: Literal["none", "free", "form"] = "none"
    """What an answer is that calls nothing: none is, any text, or what ``FORM`` stands for."""


def answer_grammar(
    formats: Formats, special: Mapping[str, int], begins: Begins, wanted: Wanted
) -> str | None:
    """The grammar of a whole answer.

    Args:
        formats: How the model writes calls and reasoning.
        special: Ids of the model's special tokens by their texts: a grammar of characters has none.
        begins: What an answer begins with.

    Returns:
        None if calls and text could not be told apart in this format.
    """
    rules = _Rules(special)
    channels = formats.channels and begins != "answer"
    front = rules.messages() if channels else _reasoning(rules, formats.reasoning, begins)
    header = rules.spelled(f"{CHANNEL}final{MESSAGE}") if channels else ""
    said = {"none": "", "free": f"{header} {ANY}", "form": f"{header} {FORM}"}[wanted.text]
    style = formats.tools
    if style is None or not wanted.schemas:
        answer: str | None = said
    elif wanted.text == "none":
        answer = rules.calls(style, wanted)
    elif channels:
        answer = f"({rules.calls(style, wanted)} | {said})"
    elif wanted.text == "free":
        answer = _calls_in_text(rules, style, wanted)
    else:  # where a call is an object like any other, so may be what the client wants
        answer = None if style.bare else f"({rules.calls(style, wanted)} | {FORM})"
    return None if answer is None else rules.grammar(f"{front} {answer}")


def arguments_schema(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """``schema`` of a tool's arguments as it is enforced; a tool without one has none."""
    told = {"type": "object", **schema} if schema else NO_ARGUMENTS
    return {**told, "x-guidance": {**SPACING, "lenient": not strict}}


NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def _reasoning(rules: _Rules, style: ReasoningFormat | None, begins: Begins) -> str:
    if style is None or begins == "answer":
        return ""
    rest = rf"{rules.until(style.close)} /\n*/"
    return rest if begins == "reasoning" else f"({rules.spelled(style.open)} {rest})?"


def _calls_in_text(rules: _Rules, style: ToolFormat, wanted: Wanted) -> str | None:
    """Any text, in which each marker of a call begins one."""
    if style.bare:
        return rf"({rules.calls(style, wanted)} | /(\s*[^\s{{](?s:.*))?/)"
    lead = style.before + style.call.partition("$name")[0]
    marker = min((each for each in style.open if each in lead), key=len, default=None)
    if marker is None:
        return None
    text = rules.text(style)
    call = f"{rules.until(marker, text)} {rules.calls(style, wanted, behind=marker)}"
    if wanted.parallel:
        return f"({call})* {text}"
    end = f"({rules.spelled(style.after)})?" if style.after and marker not in style.before else ""
    return f"({call} {end} | {text})"


class _Rules:
    """The rules of a grammar as they are written."""

    def __init__(self, special: Mapping[str, int]):
        self._special = special
        longest_first = sorted(special, key=lambda each: (-len(each), each))
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._rules: list[str] = []

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules])

    def spelled(self, text: str) -> str:
        """``text`` as terms: literals, and special tokens by their ids."""
        pieces = filter(None, self._split.split(text))
        return " ".join(self._token(each) or _literal(each) for each in pieces)

    def until(self, end: str, text: str = ANY) -> str:
        """Terms of ``text`` up to the first ``end``, and of that."""
        _, *rest = self._split.split(end, maxsplit=1)
        if rest:  # what stands in front of the special token is text like any other
            return f"{text} {self.spelled(''.join(rest))}"
        last = self._rule(ANY, f"[suffix={_literal(end)}]")
        return last if text == ANY else f"{text} {last}"

    def text(self, style: ToolFormat) -> str:
        """Any text, and around calls the special tokens that say nothing more."""
        around = [self._token(each) for each in (*style.noise, *style.close)]
        tokens = " | ".join(filter(None, around))
        return f"({ANY} | {tokens})*" if tokens else ANY

    def messages(self) -> str:
        """Those in front of the answer in channels."""
        channel = f"({_literal('analysis')} | {_literal('commentary')})"
        parts = [self.spelled(CHANNEL), channel, self.spelled(MESSAGE), self.until("<|end|>")]
        return f"({' '.join(parts)} {self.spelled(START + 'assistant')})*"

    def calls(self, style: ToolFormat, wanted: Wanted, behind: str = "") -> str:
        """Calls as they are written; or what follows ``behind``, the marker of a call: up to the
        end of that call, or of the list that the marker begins."""
        before, cut = style.before, ""
        if behind:
            lone = behind not in before
            before, cut = ("", behind) if lone else (before.partition(behind)[2], "")
        call = self._rule(
            " | ".join(self._call(style, wanted, name, cut) for name in wanted.schemas)
        )
        if cut:
            return call
        more = f"({self.spelled(style.between)} {call})*" if wanted.parallel else ""
        parts = [self.spelled(before), call, more, self.spelled(style.after)]
        return " ".join(filter(None, parts))

    def _call(self, style: ToolFormat, wanted: Wanted, name: str, cut: str) -> str:
        head, _, tail = style.call.partition("$arguments")
        head = head.partition(cut)[2] if cut else head
        schema = arguments_schema(wanted.schemas[name], strict=name in wanted.strict)
        if style.form == "tagged":
            arguments = self._tagged(style, schema)
        else:
            arguments = f"%json {_json(schema)}"
        head = self.spelled(head.replace("$name", name))
        return self._rule(f"{head} {arguments} {self.spelled(tail)}")

    def _tagged(self, style: ToolFormat, schema: Mapping[str, Any]) -> str:
        """The arguments in their order, those that need not be there left out or not."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        head, _, tail = style.argument.partition("$value")
        terms = []
        for key in dict.fromkeys([*properties, *required]):
            value = self._value(properties.get(key), schema, tail)
            rule = self._rule(f"{self.spelled(head.replace('$key', key))} {value}")
            terms.append(rule if key in required else f"{rule}?")
        return " ".join(terms)

    def _value(self, value: object, schema: Mapping[str, Any], tail: str) -> str:
        """A value and its end: a text as it is, anything else in JSON."""
        types = types_of(value)
        choices = value.get("enum") if isinstance(value, dict) else None
        if types == {"string"} and isinstance(choices, list):
            texts = " | ".join(self.spelled(each) for each in choices if isinstance(each, str))
            return f"({texts}) {self.spelled(tail)}"
        if not types or "string" in types:
            return self.until(tail)
        assert isinstance(value, dict), "it has a type"
        defined = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        whole = {**defined, **value, "x-guidance": schema["x-guidance"]}
        return f"%json {_json(whole)} {self.spelled(tail)}"

    def _rule(self, body: str, attributes: str = "") -> str:
        """The name of a new rule."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _token(self, text: str) -> str:
        return f"<[{self._special[text]}]>" if text in self._special else ""


def _literal(text: str) -> str:
    return _json(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
