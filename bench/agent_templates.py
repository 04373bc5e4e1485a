"""Chat templates and ways to write of several kinds of models, for ``bench.agents``."""

from __future__ import annotations

from dataclasses import dataclass

TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\n# Tools\\n\\n<tools>' }}"
    "{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}"
    '{{ \'\\n</tools>\\n\\nA call is <tool_call>\\n{"name": ..., "arguments": ...}\\n'
    "</tool_call><|im_end|>\\n' }}{% endif %}"
)
CALLS = (
    '{% for call in message.tool_calls or [] %}{{ \'\\n<tool_call>\\n{"name": "\' + '
    'call.function.name + \'", "arguments": \' + call.function.arguments | tojson + '
    "'}\\n</tool_call>' }}{% endfor %}"
)
RESULT = "{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"

PLAIN = (
    TOOLS + "{% for message in messages %}{% if message.role == 'tool' %}" + RESULT + "{% else %}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}" + CALLS + "{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Shows all that was said, and there is no reasoning."""

UNTIL_ASKED = (
    TOOLS + "{% set seen = namespace(last=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set seen.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% if message.role == 'tool' %}" + RESULT + "{% else %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' and message.reasoning_content and loop.index0 > seen.last %}"
    "{{ '<think>\\n' + message.reasoning_content | trim + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ (message.content or '') | trim }}" + CALLS + "{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Reasoning stays until the user speaks again, as with Qwen3."""

NEVER = (
    TOOLS + "{% for message in messages %}{% if message.role == 'tool' %}" + RESULT + "{% else %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{{ (message.content or '').split('</think>')[-1] | trim }}" + CALLS + "{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
"""Reasoning is opened by the template and never shown again, as with DeepSeek-R1."""


OFF = PLAIN.replace(
    "assistant\\n' }}{% endif %}", "assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
"""Reasoning is switched off by an empty one, which is not shown again, as with Qwen3."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    template: str | None
    """None: the demo model's own."""
    reasons: bool = False
    opened: bool = False
    """Whether the template begins the reasoning."""
    returned: bool = False
    """Whether the client sends the reasoning back."""

    @property
    def tools(self) -> bool:
        return self.template is not None

    @property
    def hides(self) -> bool:
        """Whether the template leaves out what the model has said or seen."""
        return self.reasons or self.opened

    def written(self, content: str, calls: list[tuple[str, str]], thought: str) -> str:
        """An answer as such a model writes it; ``calls`` are names, and arguments as JSON."""
        told = "".join(
            f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in calls
        )
        reasoning = f"<think>\n{thought}\n</think>\n\n" if self.reasons else ""
        return (reasoning.removeprefix("<think>\n") if self.opened else reasoning) + content + told


KINDS = (
    Kind("demo model", None),
    Kind("tools, no reasoning", PLAIN),
    Kind("reasoning until asked", UNTIL_ASKED, reasons=True),
    Kind("the same, sent back", UNTIL_ASKED, reasons=True, returned=True),
    Kind("reasoning never shown", NEVER, reasons=True, opened=True),
    Kind("reasoning switched off", OFF, opened=True),
)
