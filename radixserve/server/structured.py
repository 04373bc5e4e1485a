"""The form that a client wants answers to have, under the names that servers have for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.engine.process.grammar_child import TOO_MUCH
from radixserve.scheduling.grammar import Grammar, GrammarKind
from radixserve.server.errors import ApiError, invalid, required, wrong
from radixserve.server.service import Service
from radixserve.server.wire import GenerationFields, ResponseFormat, StructuredOutputs

INVALID = "invalid_json_schema"
ANY_OBJECT = '{"type":"object"}'


class Form(NamedTuple):
    """A grammar and where it comes from."""

    param: str
    label: str
    """What it is called in an error."""
    grammar: Grammar
    parts: tuple[Form, ...] = ()
    """What it is put together from, of which one is at fault where it is not valid."""

    def within(self, path: str) -> Form:
        """The same, where its field stands in another one."""
        param = f"{path}.{self.param}"
        return Form(param, self.label.removesuffix(self.param) + param, self.grammar)


def form_of(fields: GenerationFields) -> Form | None:
    """The form that ``fields`` ask for, None if they leave it open.

    Raises:
        ApiError: 400, two fields ask for one, or a field's value cannot be.
    """
    forms = list(_forms(fields))
    if len(forms) > 1:
        names = f"{forms[0].param} and {forms[1].param}"
        raise invalid(forms[1].param, f"Only one of {names} can say what the answer looks like")
    return forms[0] if forms else None


async def check_form(service: Service, form: Form | None) -> None:
    """Raises ApiError: 400, ``form`` is not a valid one, which is tried in a process of its own."""
    if form is None:
        return
    fault = await service.frontend.grammar_fault(form.grammar)
    if fault is None:
        return
    for part in form.parts if fault != TOO_MUCH else ():
        if (its_fault := await service.frontend.grammar_fault(part.grammar)) is not None:
            raise _not_valid(part, its_fault)
    raise _not_valid(form, fault)


def _forms(fields: GenerationFields) -> Iterator[Form]:
    if fields.response_format is not None:
        yield from _response_format(fields.response_format)
    if fields.structured_outputs is not None:
        yield from _structured_outputs(fields.structured_outputs)
    for name in ("guided_json", "json_schema"):
        yield from _schema(name, getattr(fields, name))
    yield from _choice("guided_choice", fields.guided_choice)
    for name, kind in _TEXTS.items():
        text = getattr(fields, name)
        if text is not None:
            yield _form(name, kind, text)


_TEXTS: dict[str, GrammarKind] = {
    "guided_regex": "regex",
    "regex": "regex",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "grammar": "grammar",
}


def _response_format(wanted: ResponseFormat) -> Iterator[Form]:
    param = "response_format"
    match wanted.type:
        case "text":
            return
        case "json_object":
            given = _data(wanted.schema) is not None
            yield from _schema(param, wanted.schema if given else msgspec.Raw(ANY_OBJECT.encode()))
        case "json_schema":
            inner = wanted.json_schema
            if inner is None or _data(inner.schema) is None:
                path = f"{param}.json_schema" if inner is None else f"{param}.json_schema.schema"
                raise required(path)
            for form in _schema(param, inner.schema):
                named = f"{form.label} {inner.name[:64]!r}" if inner.name else form.label
                yield form._replace(label=named)
        case other:
            raise wrong(
                f"{param}.type",
                f"must be text, json_object or json_schema, not {other[:64]!r}",
                "unsupported_value",
            )


def _structured_outputs(wanted: StructuredOutputs) -> Iterator[Form]:
    path = "structured_outputs"
    if wanted == StructuredOutputs():
        raise wrong(path, "must have json, regex, choice, grammar or json_object")
    yield from _schema(f"{path}.json", wanted.json)
    yield from _choice(f"{path}.choice", wanted.choice)
    if wanted.regex is not None:
        yield _form(f"{path}.regex", "regex", wanted.regex)
    if wanted.grammar is not None:
        yield _form(f"{path}.grammar", "grammar", wanted.grammar)
    if wanted.json_object:
        yield _form(f"{path}.json_object", "json_schema", ANY_OBJECT)
    if _data(wanted.structural_tag) is not None:
        raise wrong(f"{path}.structural_tag", "is not supported here", "unsupported_parameter")


def _schema(param: str, raw: msgspec.Raw | UnsetType) -> Iterator[Form]:
    """A schema, or a string that holds one."""
    data = _data(raw)
    if data is None:
        return
    text = msgspec.json.decode(data, type=str) if data.startswith(b'"') else data.decode()
    yield _form(param, "json_schema", text)


def _data(raw: msgspec.Raw | UnsetType) -> bytes | None:
    """The JSON that was sent; None for null, too."""
    return None if raw is UNSET or bytes(raw) == b"null" else bytes(raw)


def _choice(param: str, choices: list[str] | None) -> Iterator[Form]:
    if choices is not None:
        yield _form(param, "choice", msgspec.json.encode(choices).decode())


def _form(param: str, kind: GrammarKind, text: str) -> Form:
    label = "schema" if kind == "json_schema" else kind
    return Form(param, f"{label} for {param}", Grammar(kind, text))


def _not_valid(form: Form, fault: str) -> ApiError:
    return invalid(form.param, f"Invalid {form.label}: {fault}", INVALID)
