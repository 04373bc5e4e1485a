"""Whether a chat template keeps what it has said: each turn's prompt should begin the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from radixserve.common import common_length
from radixserve.errors import InvalidRequestError
from radixserve.explain.divergence import snippet
from radixserve.lint.report import TemplateReport, Turn

MESSAGES = re.compile(r"\bmessages\b")
NEAR = 512
"""Characters before that name in which its statement or value may begin."""
CLOCKS = ("strftime_now",)
"""What templates call the function that tells the date."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find_booking",
        "description": "Find a booking by its number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "string", "description": "Six letters or digits."}},
            "required": ["number"],
        },
    },
}
CALL: dict[str, Any] = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "find_booking", "arguments": {"number": "K4X2QD"}},
}
ASKED = {"role": "user", "content": "Is the booking K4X2QD for a seat at the window?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "find_booking", "content": "12F"}
TOLD = {"role": "assistant", "content": "Yes, 12F is a seat at the window."}
THANKED = {"role": "user", "content": "Thank you. And is there a meal?"}
CLOSING = {"role": "assistant", "content": "There is none on this flight."}
WHY = "The row and the letter tell where the seat is."
LOOK = "The booking has to be looked up first."


def _thought(message: dict[str, Any], thought: str) -> dict[str, Any]:
    return {**message, "reasoning_content": thought}


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "questions and answers": ([ASKED, TOLD, THANKED, CLOSING], []),
    "with reasoning": ([ASKED, _thought(TOLD, WHY), THANKED, CLOSING], []),
    "with a tool": ([ASKED, CALLED, RESULT, TOLD, THANKED, CLOSING], [TOOL]),
    "with a tool and reasoning": (
        [ASKED, _thought(CALLED, LOOK), RESULT, _thought(TOLD, WHY), THANKED, CLOSING],
        [TOOL],
    ),
}
"""Messages, and the tools they may call."""

Render = Callable[..., str]
"""``ChatTemplate.render`` or ``Tokenizer.render_chat``."""
Prompts = dict[str, list[str]]
"""Of the turns of the conversations, by what these are called."""


def is_chat_template(source: str) -> bool:
    """Whether a template takes a chat's messages."""
    for found in MESSAGES.finditer(source):
        before = source[max(0, found.start() - NEAR) : found.start()]
        begun = max(before.rfind("{{"), before.rfind("{%"))
        if begun >= 0 and "}" not in before[begun:]:
            return True
    return False


def prompts_of(render: Render) -> Prompts:
    """The prompts of the turns of each sample conversation that a template takes.

    Raises:
        InvalidRequestError: it takes none.
    """
    found: Prompts = {}
    refused = None
    for label, (messages, tools) in CONVERSATIONS.items():
        try:
            found[label] = [
                render(messages[:place], tools=tools or None) for place in _answers(messages)
            ]
        except InvalidRequestError as error:
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def lint_chat_template(
    name: str, source: str, prompts: Prompts, count: Callable[[str], int]
) -> TemplateReport:
    """Compare each turn of sample conversations with the next.

    Args:
        prompts: Of the turns, rendered by the template.
        count: Tokens of a text.
    """
    turns = [turn for label, each in prompts.items() for turn in _turns(label, each, count)]
    return TemplateReport(
        template=name,
        kind="chat",
        share=min((turn.common / max(turn.tokens, 1) for turn in turns), default=1.0),
        turns=turns,
        clock=any(clock in source for clock in CLOCKS),
    )


def _answers(messages: list[dict[str, Any]]) -> list[int]:
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def _turns(label: str, prompts: list[str], count: Callable[[str], int]) -> Iterator[Turn]:
    """Each turn with the next."""
    messages, _ = CONVERSATIONS[label]
    answers = _answers(messages)
    for number, (earlier, later) in enumerate(pairwise(prompts)):
        at = common_length(earlier, later)
        written = messages[answers[number]]
        texts = (written.get("reasoning_content"), written["content"])
        yield Turn(
            conversation=f"{label}, turn {number + 1}",
            tokens=count(earlier),
            common=count(earlier[:at]),
            answer_kept=all(text in later for text in texts if text),
            earlier=snippet(earlier, at) if at < len(earlier) else "",
            later=snippet(later, at) if at < len(earlier) else "",
        )
