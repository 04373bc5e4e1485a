"""What an answer in a conversation is kept to: its calls, and the form of its text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from radixserve.scheduling.grammar import Grammar
from radixserve.server.dialect import Reading
from radixserve.server.errors import ApiError, invalid
from radixserve.server.structured import Form
from radixserve.text.parsing.required import Wanted, answer_grammar, arguments_schema

NO_CALLS = Wanted(schemas={}, text="form")
STRICT = "tools.function.strict"


def kept_to(
    reading: Reading, form: Form | None, special: Mapping[str, int]
) -> tuple[Form | None, list[str]]:
    """The form of whole answers, with reasoning in front of it; and the fields without effect.

    Args:
        reading: How answers to the prompt at hand are read.
        form: What the client says of the answer's text.
        special: Ids of the model's special tokens by their texts.

    Raises:
        ApiError: 400, calls and text cannot be told apart in the model's format.
    """
    strict = {tool["function"]["name"] for tool in reading.tools if tool["function"].get("strict")}
    wanted = _wanted(reading, form, strict)
    calls = reading.formats.tools is not None
    ignored = [STRICT] if strict and not calls and reading.choice.mode == "auto" else []
    if wanted is None or (wanted is NO_CALLS and reading.begins == "answer"):
        return form, ignored
    frame = answer_grammar(reading.formats, special, reading.begins, wanted)
    if frame is None:
        if form is not None:
            raise _apart(form.param)
        if reading.choice.constrained:
            raise _apart("tool_choice")
        return None, [STRICT]
    parts = _arguments(reading, wanted)
    if wanted.text != "form":
        param = "tool_choice" if reading.choice.constrained else "tools"
        return Form(param, f"form of calls for {param}", Grammar("lark", frame), parts), ignored
    assert form is not None, "the text is to have one"
    grammar = Grammar(form.grammar.kind, form.grammar.text, frame)
    return form._replace(grammar=grammar, parts=(form, *parts)), ignored


def _wanted(reading: Reading, form: Form | None, strict: set[str]) -> Wanted | None:
    """None where the model may say and call what it likes."""
    choice = reading.choice
    if reading.formats.tools is None:
        return None if form is None else NO_CALLS
    schemas = {
        name: schema
        for name, schema in reading.schemas.items()
        if choice.names is None or name in choice.names
    }
    if form is None and not (choice.constrained or strict & schemas.keys()):
        return None
    return Wanted(
        schemas=schemas,
        strict=strict,
        parallel=reading.parallel and choice.mode != "named",
        text="none" if choice.must_call else "free" if form is None else "form",
    )


def _arguments(reading: Reading, wanted: Wanted) -> tuple[Form, ...]:
    """Each schema of a tool that may be called, at its place."""
    forms = []
    for place, tool in enumerate(reading.tools):
        name = tool["function"]["name"]
        if name in wanted.schemas:
            schema = arguments_schema(wanted.schemas[name], strict=name in wanted.strict)
            param = f"tools.{place}.function.parameters"
            grammar = Grammar("json_schema", msgspec.json.encode(schema).decode())
            forms.append(Form(param, f"schema for {param}", grammar))
    return tuple(forms)


def _apart(param: str) -> ApiError:
    return invalid(
        param,
        f"{param}: calls of this model are JSON like any other, so that they could not be "
        "told from such an answer. Send tool_choice none or required with it",
        "unsupported_value",
    )
