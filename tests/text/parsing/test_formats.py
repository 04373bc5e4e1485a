"""Which table a model is read by."""

from __future__ import annotations

import pytest

from radixserve.errors import ConfigError
from radixserve.text.parsing.formats import choose, reasoning_formats, tool_formats

TEMPLATES = {
    "hermes": "return a json object within <tool_call></tool_call> XML tags",
    "qwen3_coder": "<tool_call>\n<function=example>\n<parameter=key>\n</tool_call>",
    "glm45": "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>",
    "llama3_json": '{"name": function name, "parameters": dictionary of argument name and value}.',
    "mistral": "[AVAILABLE_TOOLS]...[TOOL_CALLS]",
    "deepseek_v3": "<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json\\n",
    "deepseek_v31": "<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>",
    "kimi_k2": "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="key">',
    "phi4_mini_json": "<|tool_call|>",
    "gpt_oss": "<|start|>assistant<|channel|>analysis<|message|>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=key>",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items(), ids=TEMPLATES.keys())
def test_the_chat_template_tells_how_calls_are_written(name: str, template: str):
    found = choose("auto", tool_formats(), template, "--tool-call-parser")
    assert found is not None
    assert found.names[0] == name


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("think", "{{ content.split('</think>')[-1] }}"),
        ("mistral", "[THINK]"),
        ("gpt_oss", "<|channel|>"),
        ("cohere", "<|START_THINKING|>"),
        ("seed_oss", "<seed:think>"),
    ],
)
def test_the_chat_template_tells_how_reasoning_is_marked(name: str, template: str):
    found = choose("auto", reasoning_formats(), template, "--reasoning-parser")
    assert found is not None
    assert found.names[0] == name


def test_a_template_that_marks_nothing_has_no_format():
    assert choose("auto", tool_formats(), "<|im_start|>", "--tool-call-parser") is None
    assert choose("auto", reasoning_formats(), "", "--reasoning-parser") is None
    assert choose("none", tool_formats(), TEMPLATES["hermes"], "--tool-call-parser") is None


def test_every_name_stands_for_one_format():
    for formats in (tool_formats(), reasoning_formats()):
        names = [name for each in formats for name in each.names]
        assert len(set(names)) == len(names)
        for each in formats:
            for name in each.names:
                assert choose(name, formats, "", "--option") is each  # type: ignore[type-var]


def test_an_unknown_name_is_told_with_all_that_are_known():
    with pytest.raises(ConfigError, match=r"--tool-call-parser 'vicuna' is not known.*hermes"):
        choose("vicuna", tool_formats(), "", "--tool-call-parser")
