"""Prompts that are f-strings or format strings."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixserve.lint.check import Checker
from radixserve.lint.format_string import NAMED, of_format_string, of_program
from radixserve.lint.report import Report

RULES = "Be kind and brief to whoever asks, whatever it may be that they want to know.\n" * 10


class Silent:
    def read(self, size: int) -> None: ...

    def replayed(self, number: int) -> None: ...


def checked(file: Path, text: str) -> Report:
    file.write_text(text)
    return Checker(None, "", 16, 5000).check([file], Silent())


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Hi {name}", {"name": "{name}"}),
        ("{now:%H:%M} {user.name!r:>4}", {"now": "{now:%H:%M}", "user_name": "{user.name!r:>4}"}),
        ("{} {docs[0]}", {"field": "{}", "docs": "{docs[0]}"}),
        ("{a.b} {a_b}", {"a_b": "{a.b}", "a_b_2": "{a_b}"}),
        ('{{"answer": 1}} {question}', {"question": "{question}"}),
    ],
)
def test_fields_have_names_and_are_written_as_they_were(text: str, fields: dict[str, str]):
    found = of_format_string(text)
    assert found is not None
    assert found.fields == fields


@pytest.mark.parametrize(
    "text",
    ["no field", "{{ now }}", "{% if a %}{{ a }}{% endif %}", '{"a": {"b": 1}}', "{open", "}"],
)
def test_jinja_json_and_plain_text_are_no_format_strings(text: str):
    assert of_format_string(text) is None


@pytest.mark.parametrize("name", ["prompt.txt", "prompt.md", "prompt.prompt"])
def test_a_clock_in_front_of_the_rules_goes_last(tmp_path: Path, name: str):
    text = f'It is {{now:%H:%M}}.\n{RULES}Write {{{{"answer": ...}}}}.\n{{docs}}\n{{question}}\n'
    [template] = checked(tmp_path / name, text).templates
    [moved] = template.moved
    assert (moved.line, moved.names, moved.values) == (1, ["now"], ["docs"])
    assert template.suggestion == (
        f'{RULES}Write {{{{"answer": ...}}}}.\n{{docs}}\nIt is {{now:%H:%M}}.\n{{question}}\n'
    )


def test_a_text_with_two_braces_is_jinja(tmp_path: Path):
    text = f"It is {{{{ now }}}}.\n{RULES}{{{{ question }}}}\n"
    [template] = checked(tmp_path / "prompt.txt", text).templates
    assert template.suggestion == f"{RULES}It is {{{{ now }}}}.\n{{{{ question }}}}\n"


def test_a_text_without_fields_is_told(tmp_path: Path):
    report = checked(tmp_path / "prompt.txt", RULES)
    assert report.templates == []
    assert "it has no field such as {question}" in report.faults[0]


def test_a_log_is_a_log_whatever_its_name(tmp_path: Path):
    report = checked(tmp_path / "log.txt", '{"prompt": "Is it {now}?"}\n' * 2)
    assert report.logs is not None
    assert report.logs.requests == 2


PROGRAM = f'''
"""A program, with {{words}} in braces."""
from datetime import datetime

def ask(user, docs, question):
    print(f"asked by {{user.name}}")
    return f"""It is {{datetime.now():%H:%M}}.
{RULES}{{chr(10).join(docs)!r}}
{{question}}
"""

TEMPLATE = """You help {{user}}.
{RULES}{{question}}
"""
'''


def test_the_long_strings_of_a_program_are_templates(tmp_path: Path):
    report = checked(tmp_path / "prompts.py", PROGRAM)
    file = tmp_path / "prompts.py"
    assert sorted(each.template for each in report.templates) == sorted(
        [f"{file}:7", f"{file}:{PROGRAM[: PROGRAM.index('TEMPLATE')].count(chr(10)) + 1}"]
    )
    [clock] = [each for each in report.templates if each.template.endswith(":7")]
    assert [(moved.line, moved.names) for moved in clock.moved] == [(7, ["datetime.now()"])]
    assert clock.suggestion is not None
    assert clock.suggestion.startswith(RULES)
    assert "It is {datetime.now():%H:%M}.\n{question}" in clock.suggestion
    assert "{chr(10).join(docs)!r}" in clock.suggestion


def test_formats_of_fields_may_have_fields():
    [found] = of_program(f"f'{{a:>{{width}}}} {'x' * 300}'")
    assert found.fields == {"a": "{a:>{width}}"}


def test_fields_with_the_same_words_have_names_of_their_own():
    fields = [f"{{a!{kind}}}" for kind in "rsa"] + ["{a_2}", "{a}", "{a!s}"]
    found = of_format_string(" ".join(fields))
    assert found is not None
    assert list(found.fields.values()) == fields[:5]
    assert NAMED.sub(lambda each: found.fields[each[1]], found.jinja) == " ".join(fields)


def test_many_fields_cost_what_their_number_costs():
    found = of_format_string("".join(f"{{a:{width}}}" for width in range(50_000)))
    assert found is not None
    assert len(found.fields) == 50_000


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("def broken(:\n", "line 1: "),
        ("x = " + "-" * 100_000 + "1", "nested too deeply"),
        ("print(1)\n", "no string of 200 characters in it has fields"),
    ],
)
def test_a_program_without_templates_is_told(tmp_path: Path, program: str, why: str):
    report = checked(tmp_path / "prompts.py", program)
    assert report.templates == []
    assert why in report.faults[0]
