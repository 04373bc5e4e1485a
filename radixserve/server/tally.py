"""What one HTTP request has cost so far, for usage, metrics and the access log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from radixserve.cache.terms import Kept
from radixserve.engine.messages import Usage
from radixserve.server.wire import (
    CompletionTokensDetails,
    PromptTokensDetails,
    Reuse,
    UsageObject,
)

if TYPE_CHECKING:
    from radixserve.server.step import Step

CLIENT_GONE = 499


@dataclass(slots=True)
class Tally:
    counts: dict[tuple[int, int], Usage] = field(default_factory=dict)
    """The latest ones of each answer, by prompt and index."""
    reasoning: int = 0
    """Tokens of all answers that were reasoning."""
    steps: dict[int, Step] = field(default_factory=dict)
    """What is known of each prompt's reuse."""
    explain: bool = False
    """Whether usage says why tokens were computed."""
    status: int = CLIENT_GONE
    """Of the answer, once all of it has been sent."""

    def take(self, prompt: int, index: int, usage: Usage) -> None:
        self.counts[prompt, index] = usage

    def usage(self, *, reuse: bool = False) -> UsageObject:
        """The sum. What the answers to one prompt share, the prompt, counts once. O(answers).

        With ``reuse`` it says where the prompts' tokens came from.
        """
        prompts: dict[int, Usage] = {}
        completion = 0
        for (prompt, index), usage in self.counts.items():
            completion += usage.completion_tokens
            # The first answer computes the prompt, the others fork off it.
            if index == 0 or prompt not in prompts:
                prompts[prompt] = usage
        tokens = sum(usage.prompt_tokens for usage in prompts.values())
        cached = sum(usage.cached_tokens for usage in prompts.values())
        written = sum(usage.written_tokens for usage in prompts.values())
        copied = sum(usage.copied_tokens for usage in prompts.values())
        shared = [each.shared_pages for each in prompts.values() if each.shared_pages is not None]
        parts: Reuse | UnsetType = UNSET
        if reuse or shared or self.explain:
            pages = sum(shared) if shared else UNSET
            parts = Reuse(cached - copied, copied, tokens - cached, pages, *self._reasons(cached))
        details = PromptTokensDetails(cached, written)
        if (kept := self.kept()) is not None:
            details = PromptTokensDetails(cached, written, kept.tokens, kept.status)
        return UsageObject(
            tokens,
            completion,
            tokens + completion,
            details,
            CompletionTokensDetails(min(self.reasoning, completion)),
            parts,
        )

    def _reasons(self, cached: int) -> tuple[float | UnsetType | None, dict[str, int] | UnsetType]:
        """The time saved by ``cached`` tokens, and what the computed ones were computed for."""
        if not self.explain:
            return UNSET, UNSET
        saved = [step.saved_ms(cached) for step in self.steps.values()]
        reasons: Counter[str] = Counter()
        for step in self.steps.values():
            for part in step.explanation.parts if step.explanation is not None else ():
                reasons[part.reason] += part.tokens
        return saved[0] if saved else None, dict(reasons)

    def kept(self) -> Kept | None:
        """What became of what was to be kept, of all prompts together; None before that is known,
        and where nothing was. O(answers)."""
        every = [usage.kept for usage in self.counts.values() if usage.kept is not None]
        if not every:
            return None
        statuses = {each.status for each in every}
        status = every[0].status if len(statuses) == 1 else "partial"
        return Kept(status, sum(each.tokens for each in every))
