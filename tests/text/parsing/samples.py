"""What models of each family write, and what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from radixserve.text.parsing.formats import choose, reasoning_formats, tool_formats
from radixserve.text.parsing.parser import Formats

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "code": {"type": "string"},
                },
            },
        },
    }
    for name in ("get_weather", "run", "now")
]

ROME = '{"city": "Rome", "days": 3}'
RUN = '{"code": "if a[\\"b\\"] == {\\n}:\\n\\tpass \\\\", "exact": true}'
Calls = list[tuple[str, dict[str, Any]]]

WEATHER: Calls = [("get_weather", json.loads(ROME))]
BOTH: Calls = [*WEATHER, ("run", json.loads(RUN))]
THREE: Calls = [*BOTH, ("now", {})]


@dataclass(frozen=True)
class Sample:
    tools: str
    text: str
    calls: Calls
    content: str = ""
    reasoning: str = ""
    style: str = "none"
    opened: bool = False
    strings: bool = field(default=True)

    @property
    def formats(self) -> Formats:
        return Formats(
            choose(self.tools, tool_formats(), "", "--tool-call-parser"),
            choose(self.style, reasoning_formats(), "", "--reasoning-parser"),
        )


def _json(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def _hermes(name: str, arguments: str) -> str:
    return f"<tool_call>\n{_json(name, arguments)}\n</tool_call>"


def _deepseek(name: str, arguments: str) -> str:
    head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}"
    return f"{head}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def _v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def _kimi(number: int, name: str, arguments: str) -> str:
    head = f"<|tool_call_begin|>functions.{name}:{number}"
    return f"{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def _harmony(name: str, arguments: str) -> str:
    head = f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
    return f"{head}<|message|>{arguments}<|call|>"


CODE = json.loads(RUN)["code"]
QWEN_WEATHER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
QWEN_RUN = (
    f"<tool_call>\n<function=run>\n<parameter=code>\n{CODE}\n</parameter>\n"
    "<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>"
)
QWEN_NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
GLM_WEATHER = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
GLM_RUN = (
    f"<tool_call>run<arg_key>code</arg_key><arg_value>{CODE}</arg_value>"
    "<arg_key>exact</arg_key><arg_value>true</arg_value></tool_call>"
)
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="run">\n'
    f'<parameter name="code">{CODE}</parameter>\n<parameter name="exact">true</parameter>\n'
    '</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>'
)
HERMES_THREE = "\n".join([_hermes("get_weather", ROME), _hermes("run", RUN), _hermes("now", "{}")])

SAMPLES = {
    "hermes": Sample("hermes", _hermes("get_weather", ROME), WEATHER),
    "hermes three": Sample("hermes", HERMES_THREE, THREE),
    "hermes with text": Sample(
        "hermes", f"Let me see.\n{HERMES_THREE}\nDone.", THREE, "Let me see.\n\n\n\nDone."
    ),
    "hermes backwards": Sample(
        "hermes",
        f'<tool_call>{{"arguments": {ROME}, "name": "get_weather"}}</tool_call>',
        WEATHER,
    ),
    "hermes without arguments": Sample(
        "hermes", '<tool_call>{"name": "now"}</tool_call>', [("now", {})]
    ),
    "hermes spelled": Sample("hermes", _hermes("get_weather", json.dumps(ROME)), WEATHER),
    "hermes without ends": Sample(
        "hermes", f"<tool_call>{_json('get_weather', ROME)}\n<tool_call>{_json('run', RUN)}", BOTH
    ),
    "hermes with one brace too many": Sample(
        "hermes", f"<tool_call>{_json('get_weather', ROME)}}}\n</tool_call>", WEATHER
    ),
    "hermes two in one": Sample(
        "hermes",
        f"<tool_call>\n{_json('get_weather', ROME)}\n{_json('run', RUN)}\n</tool_call>",
        BOTH,
    ),
    "no call": Sample("hermes", "A <tool_call> is\n\na tag.  ", [], "A <tool_call> is\n\na tag.  "),
    "no call either": Sample(
        "hermes",
        '<tool_call>{"nme": 1}</tool_call>!',
        [],
        '<tool_call>{"nme": 1}</tool_call>!',
    ),
    "qwen3 coder": Sample(
        "qwen3_coder", f"Hm.\n{QWEN_WEATHER}\n{QWEN_RUN}\n{QWEN_NOW}", THREE, "Hm."
    ),
    "glm": Sample("glm45", f"{GLM_WEATHER}\n{GLM_RUN}\n<tool_call>now\n</tool_call>", THREE),
    "minimax": Sample("minimax_m2", MINIMAX, THREE),
    "llama": Sample("llama3_json", _json("get_weather", ROME, "parameters"), WEATHER),
    "llama two": Sample(
        "llama3_json",
        f"{_json('get_weather', ROME, 'parameters')}; {_json('run', RUN, 'parameters')}",
        BOTH,
    ),
    "llama tagged": Sample(
        "llama3_json", f"<|python_tag|>{_json('run', RUN, 'parameters')}", BOTH[1:]
    ),
    "llama JSON that is no call": Sample(
        "llama3_json", '{"name": "Bob", "age": 3}', [], '{"name": "Bob", "age": 3}'
    ),
    "mistral list": Sample(
        "mistral", f"[TOOL_CALLS] [{_json('get_weather', ROME)}, {_json('run', RUN)}]", BOTH
    ),
    "mistral named": Sample(
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]run[CALL_ID]abc123xyz[ARGS]{RUN}"
        "[TOOL_CALLS]now{}",
        THREE,
    ),
    "deepseek v3": Sample(
        "deepseek_v3",
        f"Ok.<｜tool▁calls▁begin｜>{_deepseek('get_weather', ROME)}\n{_deepseek('run', RUN)}"
        "<｜tool▁calls▁end｜>",
        BOTH,
        "Ok.",
    ),
    "deepseek v3.1": Sample(
        "deepseek_v31",
        f"<｜tool▁calls▁begin｜>{_v31('get_weather', ROME)}{_v31('run', RUN)}{_v31('now', '{}')}"
        "<｜tool▁calls▁end｜>",
        THREE,
    ),
    "kimi": Sample(
        "kimi_k2",
        f"<|tool_calls_section_begin|>{_kimi(0, 'get_weather', ROME)}{_kimi(1, 'run', RUN)}"
        "<|tool_calls_section_end|>",
        BOTH,
    ),
    "granite": Sample("granite", f"<|tool_call|>[{_json('get_weather', ROME)}]", WEATHER),
    "harmony": Sample(
        "gpt_oss",
        f"<|channel|>analysis<|message|>Hm.<|end|>{_harmony('get_weather', ROME)}"
        f"{_harmony('run', RUN)}",
        BOTH,
        reasoning="Hm.",
        style="gpt_oss",
    ),
    "harmony text": Sample(
        "gpt_oss",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "Two.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>",
        [],
        "Hello!",
        "One.\nTwo.",
        "gpt_oss",
    ),
    "thought and called": Sample(
        "hermes",
        f"<think>\nOne.\n\nTwo <tool_call>.\n</think>\n\nOk.\n{_hermes('run', RUN)}",
        BOTH[1:],
        "Ok.",
        "One.\n\nTwo <tool_call>.",
        "think",
    ),
    "thought from the start": Sample(
        "none", "One.\n</think>\n\nTwo.", [], "Two.", "One.", "think", opened=True
    ),
    "no thought": Sample("none", "One <think> two.\n", [], "One <think> two.\n", "", "think"),
    "magistral": Sample(
        "mistral",
        f"[THINK]Hm.[TOOL_CALLS]get_weather[ARGS]{ROME}",
        WEATHER,
        "",
        "Hm.",
        "mistral",
    ),
}
