"""Of chats, whether a turn begins the next; of prompts, whether what varies stands last."""

from __future__ import annotations

from time import perf_counter

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.lint.chat_template import is_chat_template, lint_chat_template, prompts_of
from radixserve.lint.prompt_template import lint_prompt_template
from radixserve.lint.report import TemplateReport
from radixserve.text.chat_template import ChatTemplate
from tests.text.tiny import CHATML, HERMES

THINKING = (
    "{% set last = namespace(at=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set last.at = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content and loop.index0 > last.at %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Keeps reasoning since the user's last message, as several families do."""
HANG = 60.0
"""Seconds that nothing here takes unless it is not linear."""
RULES = (
    "Be kind and brief to whoever asks, whatever it may be that they want to know of you.\n" * 10
)


def of_chat(source: str) -> TemplateReport:
    return lint_chat_template("t", source, prompts_of(ChatTemplate(source, {}).render), len)


def of_prompt(source: str) -> TemplateReport:
    return lint_prompt_template("t", source, len, 5000)


def test_a_template_that_keeps_all_is_fine():
    report = of_chat(HERMES + "{% if add_generation_prompt %}<assistant>{% endif %}")
    assert report.share == 1.0
    assert len(report.turns) == 1 + 1 + 2 + 2
    assert all(turn.answer_kept and turn.common == turn.tokens for turn in report.turns)


def test_reasoning_that_goes_with_the_next_question_is_found():
    report = of_chat(THINKING)
    parted = [turn for turn in report.turns if turn.common < turn.tokens]
    assert [turn.conversation for turn in parted] == ["with a tool and reasoning, turn 2"]
    assert "has to be looke" in parted[0].earlier
    assert report.share == parted[0].common / parted[0].tokens < 1
    left = [turn.conversation for turn in report.turns if not turn.answer_kept]
    assert "with reasoning, turn 1" in left


def test_a_template_that_numbers_its_turns_loses_all():
    report = of_chat("{{ messages | length }} turns" + CHATML)
    assert report.share < 0.1


def test_a_template_that_writes_the_date_says_so():
    assert of_chat(
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}" + CHATML
    ).clock
    assert not of_chat(CHATML).clock


def test_a_template_that_refuses_tools_is_checked_without():
    source = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHATML
    labels = {turn.conversation.partition(",")[0] for turn in of_chat(source).turns}
    assert labels == {"questions and answers", "with reasoning"}


def test_chats_are_told_from_prompts():
    assert is_chat_template(CHATML)
    assert not is_chat_template("Answer all messages.\n{{ question }}")


def test_a_clock_in_front_of_the_rules_is_named_and_goes_last():
    report = of_prompt(f"You help.\nIt is {{{{ now }}}}.\n{RULES}Question: {{{{ question }}}}\n")
    [moved] = report.moved
    assert (moved.line, moved.names, moved.changes) == (2, ["now"], "request")
    assert moved.tokens == pytest.approx(len(RULES), abs=20)
    assert moved.milliseconds == pytest.approx(moved.tokens / 5)
    assert report.share < 0.1
    assert report.suggestion is not None
    assert report.suggestion.startswith(f"You help.\n{RULES}")
    assert report.suggestion.rstrip().endswith("It is {{ now }}.\nQuestion: {{ question }}")


LOOP = "{% for doc in documents %}{{ doc }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("clock", "name"),
    [
        ("The time is {{ now }}.", "now"),
        ("Today is {{ current_date() }}.", "current_date"),
        ("Request {{ request_id }}.", "request_id"),
        ("Trace: {{ trace_uuid }}", "trace_uuid"),
    ],
)
def test_what_varies_in_the_first_line_counts_in_front_of_documents(clock: str, name: str):
    report = of_prompt(f"{clock}\n{LOOP}{{{{ question }}}}\n")
    [moved] = report.moved
    assert (moved.line, moved.names, moved.changes) == (1, [name], "request")
    assert moved.values == ["documents"]
    assert report.share == 0.0
    assert report.suggestion is not None
    assert report.suggestion.startswith(LOOP)
    again = of_prompt(report.suggestion)
    assert (again.moved, again.share) == ([], 1.0)


def test_a_sentence_is_not_cut_behind_a_condition_in_it():
    source = "{{ now }}\nDear {% if title %}{{ title }} {% endif %}{{ user_name }}, welcome.\n"
    report = of_prompt(source + RULES)
    assert report.suggestion is not None
    assert source.splitlines()[1] in report.suggestion


def test_what_stands_well_is_left_alone():
    report = of_prompt(
        f"{RULES}{{% for doc in documents %}}\n{{{{ doc.title }}}}\n{{% endfor %}}\n"
        "Question: {{ question }}\nAnswer:\n"
    )
    assert (report.moved, report.suggestion, report.share) == ([], None, 1.0)


def test_the_question_goes_behind_the_documents_and_loops_stay_whole():
    source = (
        "Question: {{ question }}\n"
        "{% for doc in documents %}Document: {{ doc }}, which is a text of some length.\n"
        "{% endfor %}"
        f"{RULES}"
    )
    report = of_prompt(source)
    assert [moved.names for moved in report.moved] == [["question"], ["documents"]]
    assert report.suggestion is not None
    assert report.suggestion.index("Be kind") < report.suggestion.index("{% for")
    assert report.suggestion.index("{% endfor %}") < report.suggestion.index("Question:")
    again = of_prompt(report.suggestion)
    assert (again.moved, again.share) == ([], 1.0)


SENTENCE = "You are kind and brief to whoever asks, whatever it may be that they want to know"


@pytest.mark.parametrize(
    ("source", "share", "values"),
    [
        (f"{{{{ now }}}} {SENTENCE}.", 0.0, []),
        (f"It is {{{{ now }}}}, and {SENTENCE}.", 0.0, []),
        (f"{SENTENCE}, at {{{{ now }}}}, and {SENTENCE}.", 0.5, []),
        ("{{ now }} Be kind.", 0.0, []),
        (f"{{{{ now }}}} {SENTENCE}: {{{{ documents }}}}", 0.0, ["documents"]),
        ("{{ now }}{{ documents }}", 0.0, ["documents"]),
        ("{% for doc in documents %}{{ now }} {{ doc }}{% endfor %}", 0.0, ["documents"]),
        (f"{{% if tools %}}{{{{ now }}}}{{% endif %}} {SENTENCE}.", 0.0, []),
        (f"{{% set at = now %}}{{{{ at }}}} {SENTENCE}.", 0.0, []),
        (f"{{% set at %}}It is {{{{ now }}}}{{% endset %}}{{{{ at }}}} {SENTENCE}.", 0.0, []),
        (f"{{% macro at() %}}{{{{ now }}}}{{% endmacro %}}{{{{ at() }}}} {SENTENCE}.", 0.0, []),
        (f"{{% set n = namespace(x=1) %}}{{% set n.x = now %}}{{{{ n.x }}}} {SENTENCE}.", 0.0, []),
        (f"{{% with at = now %}}{{{{ at }}}} {SENTENCE}.{{% endwith %}}", 0.0, []),
        (f"{{{{ [1, 2] | random }}}} {SENTENCE}.", 0.0, []),
    ],
)
def test_what_varies_within_a_sentence_counts_in_front_of_the_rest(
    source: str, share: float, values: list[str]
):
    report = of_prompt(source)
    [moved] = report.moved
    assert (moved.changes, moved.values) == ("request", values)
    assert report.share == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(
    "source",
    [
        f"{SENTENCE}. {{{{ now }}}}",
        f"{SENTENCE}, and it is {{{{ now }}}}.",
        f'{{% set name = "Anna" %}}Dear {{{{ name }}}}, {SENTENCE}. {{{{ question }}}}',
        f"{{% for n in range(3) %}}{{{{ n }}}}. {SENTENCE}.{{% endfor %}}",
        f"{SENTENCE}:{{% for doc in documents %}}{{{{ doc }}}}, {SENTENCE}.{{% endfor %}}",
        "{{ question }}",
        "{{ question }}.\n",
        "Question: {{ question }}\nAnswer:",
        SENTENCE,
    ],
)
def test_what_varies_behind_the_rest_of_its_sentence_stands_well(source: str):
    report = of_prompt(source)
    assert (report.moved, report.suggestion, report.share) == ([], None, 1.0)


def test_a_value_in_front_of_a_sentence_is_put_behind_it():
    report = of_prompt(f"{{{{ now }}}}: {SENTENCE}. {{{{ question }}}}")
    assert report.suggestion == f"{SENTENCE}. {{{{ now }}}}\n{{{{ question }}}}\n"
    again = of_prompt(report.suggestion)
    assert (again.moved, again.share) == ([], 1.0)
    assert of_prompt(f"It is {{{{ now }}}}, and {SENTENCE}.").suggestion is None


def test_what_defines_names_stays_in_front_of_their_use():
    report = of_prompt(f"{{% set at = now %}}\nIt is {{{{ at }}}}.\n{RULES}")
    assert report.suggestion is not None
    assert report.suggestion.startswith("{% set at = now %}")
    assert report.suggestion.rstrip().endswith("It is {{ at }}.")


@pytest.mark.parametrize(
    "source",
    [
        "{{ x }}a" * 20_000,
        "{{ now }}\n{{ doc }}\n" * 5_000,
        "".join(f"{{{{ now }}}}\n{{{{ doc_{n} }}}}\n" for n in range(5_000)),
        "{{ now }}\n" + "Be kind.\n" * 50_000,
        "{{ now }}\n" + f"{'Be kind ' * 6}\n" * 20_000,
        "{% set n = namespace() %}" + "".join(f"{{% set n.x = a{n} %}}" for n in range(5_000)),
        "{{ 9 ** (9 ** 9) }} {{ 'x' * 10 ** 11 }} {{ 'x' | center(10 ** 11) }}",
    ],
    ids=[
        "one line",
        "many lines",
        "many names",
        "short texts",
        "texts",
        "a name that grows",
        "constants",
    ],
)
def test_hostile_templates_cost_what_their_size_costs(source: str):
    began = perf_counter()
    report = of_prompt(source)
    assert perf_counter() - began < HANG
    assert all(len(moved.names) + len(moved.values) < 50 for moved in report.moved)


def test_whether_it_is_a_chats_is_told_at_once():
    began = perf_counter()
    assert not is_chat_template("{{" * 2**20)
    assert not is_chat_template("{{ }} messages " * 2**18)
    assert perf_counter() - began < HANG


def test_a_template_that_takes_no_conversation_is_not_well():
    source = "{{ raise_exception('Never.') }}{{ messages }}"
    with pytest.raises(InvalidRequestError, match=r"Never\."):
        of_chat(source)


def test_a_mark_for_the_answer_stays_behind_the_question():
    report = of_prompt(f"It is {{{{ now }}}}.\n{RULES}Q: {{{{ question }}}}\nA:")
    assert report.suggestion is not None
    assert report.suggestion.endswith("Q: {{ question }}\nA:\n")


def test_a_short_sentence_does_not_go_with_the_value_before_it():
    report = of_prompt(
        f"Question: {{{{ question }}}}\nYou are a helpful assistant. {SENTENCE}.\nBe brief.\nA:"
    )
    assert report.suggestion == (
        f"You are a helpful assistant. {SENTENCE}.\nBe brief.\nQuestion: {{{{ question }}}}\nA:\n"
    )
    again = of_prompt(report.suggestion)
    assert (again.moved, again.share) == ([], 1.0)


def test_places_are_told_by_their_lines():
    report = of_prompt("Be kind.\n\n{{ now }}\n\n" + RULES + "\n{{ user_name }} asks.\n" + RULES)
    assert [moved.line for moved in report.moved] == [3, 16]


def test_a_user_stands_behind_what_is_for_all_and_before_what_is_asked():
    report = of_prompt(
        f"Hello {{{{ user_name }}}}, you are welcome here and always.\n{RULES}{{{{ query }}}}\n"
    )
    assert [moved.changes for moved in report.moved] == ["user"]
    assert report.suggestion is not None
    assert report.suggestion.index("Be kind") < report.suggestion.index("user_name")
    assert report.suggestion.index("user_name") < report.suggestion.index("query")
