"""What OpenAI's Responses and Anthropic's Messages say of a prompt beside an earlier one's."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.server.step import Step

MissReason = Literal[
    "tools_changed", "text_format_changed", "reasoning_effort_changed", "input_changed"
]
BY_SETTING: dict[str, MissReason] = {
    "tools": "tools_changed",
    "tool_choice": "tools_changed",
    "text": "text_format_changed",
    "chat_template_kwargs": "reasoning_effort_changed",
    "reasoning": "reasoning_effort_changed",
    "reasoning_effort": "reasoning_effort_changed",
}
"""OpenAI's reasons by the field that differs; of others it is the input."""


class CacheMiss(msgspec.Struct, frozen=True, tag_field="type", tag="cache_miss"):
    reason: MissReason
    cache_missed_tokens: int
    """From the place on."""
    comparison_reusable_tokens: int
    """Up to there."""


class CacheHit(msgspec.Struct, frozen=True, tag_field="type", tag="cache_hit"):
    pass


class ResponseNotFound(
    msgspec.Struct, frozen=True, tag_field="type", tag="comparison_response_not_found"
):
    pass


class Unavailable(msgspec.Struct, frozen=True, tag_field="type", tag="unavailable"):
    pass


PromptCacheDiagnostics = CacheMiss | CacheHit | ResponseNotFound | Unavailable


class CacheMissReason(msgspec.Struct, frozen=True):
    type: Literal[
        "system_changed",
        "tools_changed",
        "messages_changed",
        "previous_message_not_found",
        "unavailable",
    ]
    cache_missed_input_tokens: int | UnsetType = UNSET
    """That would have been read from the cache if that had not changed."""


class Diagnostics(msgspec.Struct, frozen=True):
    cache_miss_reason: CacheMissReason


def of_response(step: Step | None) -> PromptCacheDiagnostics:
    """Of a response beside the one of ``prompt_cache_options.comparison_response_id``.

    What has not changed and is not there any more, because it was evicted, is told elsewhere.
    """
    if step is None or step.comparison is None or step.explanation is None:
        return Unavailable()
    compared, told = step.comparison, step.explanation
    if not compared.found:
        return ResponseNotFound()
    if compared.place is not None:
        field = compared.place.pointer.split("/")[1:2]
        reason: MissReason = BY_SETTING.get(field[0] if field else "", "input_changed")
        return CacheMiss(reason, told.prompt_tokens - compared.common, compared.common)
    lost = any(part.start < compared.common for part in told.parts)
    return Unavailable() if lost else CacheHit()


def of_message(step: Step | None) -> Diagnostics | None:
    """Of a message beside the one of ``diagnostics.previous_message_id``; None where it begins as
    that one did."""
    if step is None or step.comparison is None:
        return Diagnostics(CacheMissReason("unavailable"))
    compared = step.comparison
    if not compared.found:
        return Diagnostics(CacheMissReason("previous_message_not_found"))
    if compared.place is None:
        return None
    missed = compared.reusable - compared.common
    match compared.place.pointer.split("/")[1:2]:
        case ["tools"]:
            return Diagnostics(CacheMissReason("tools_changed", missed))
        case ["system"]:
            return Diagnostics(CacheMissReason("system_changed", missed))
        case ["messages"]:
            return Diagnostics(CacheMissReason("messages_changed", missed))
    return Diagnostics(CacheMissReason("unavailable"))
