"""What is reported of logs and templates: the form of ``--json``."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.explain.divergence import Divergence


class Shared(msgspec.Struct, kw_only=True):
    """Tokens that an earlier prompt begins with too."""

    tokens: int
    share: float
    """Of all tokens, 0 to 1: what a cache without a limit would reuse."""
    page_size: int
    whole_pages: int
    """Of them, those in whole pages."""
    at_boundaries: int
    """The others: a cache that shares whole pages alone computes them again."""


class Spot(msgspec.Struct, kw_only=True):
    """A place that varies, in all requests where it does."""

    guess: str
    pointer: str
    """RFC 6901, into the body; ``*`` stands for any message but the first."""
    role: str | None
    ids_only: bool
    requests: int
    tokens: int
    """Computed again behind it, though an earlier prompt had them."""
    milliseconds: float
    advice: str
    example: Divergence
    later: str
    """The place of the request of the example, and"""
    earlier: str
    """of the one before."""


class Head(msgspec.Struct, kw_only=True):
    """Tools and system prompt, as some requests have them."""

    hash: str
    model: str
    tokens: int
    requests: int
    first: str
    """The place of the first of them."""
    parts_from_last: Divergence | None = None
    """Where it parts from the one seen before it."""


class HitRates(msgspec.Struct, kw_only=True):
    """Predicted for caches of several sizes, 0 to 1."""

    tokens: list[int]
    least_recently_used: list[float]
    optimum: list[float]


class Suggestion(msgspec.Struct, kw_only=True):
    """A template to try: what varies is named in it and stands last."""

    messages: list[dict[str, Any]]
    tools: str | None
    """What to do with them."""
    varying: dict[str, str]
    """Examples of what stands in the places that are named."""


class LogReport(msgspec.Struct, kw_only=True):
    """What was found in logs."""

    requests: int
    tokens: int
    counted: str
    """How."""
    prefill_rate: float
    """Tokens a second."""
    shared: Shared
    spots: list[Spot]
    hit_rates: HitRates
    beginnings: int
    """Different ones; more than 256 are not told apart."""
    heads: list[Head]
    """Those of most requests."""
    suggestion: Suggestion | None


class Turn(msgspec.Struct, kw_only=True):
    """One turn of a conversation and the next, rendered by a chat template."""

    conversation: str
    tokens: int
    """Of the turn's prompt."""
    common: int
    """Tokens that the next prompt begins with too."""
    answer_kept: bool
    """Whether the next prompt has all that the model has written in between."""
    earlier: str
    """Where the next one parts from it: a snippet of each."""
    later: str


class Moved(msgspec.Struct, kw_only=True):
    """Something that varies in front of what does not."""

    line: int
    names: list[str]
    """Variables in it."""
    changes: str
    """How often."""
    tokens: int
    """Of the template's own text behind it that changes less often."""
    values: list[str]
    """Variables behind it that change less often; what these hold is not in ``tokens``."""
    milliseconds: float


class TemplateReport(msgspec.Struct, kw_only=True):
    """What was found in one template."""

    template: str
    kind: str
    """``chat`` or ``prompt``."""
    share: float
    """Of a chat template: the least that the next turn keeps of one; of a prompt template: the text
    in front of all that varies more often than the text behind it. 0 to 1."""
    turns: list[Turn] = []
    moved: list[Moved] = []
    clock: bool = False
    """Whether it writes the date."""
    suggestion: str | None = None
    """The template, reordered."""


class Report(msgspec.Struct, kw_only=True):
    """All that was found."""

    logs: LogReport | None
    templates: list[TemplateReport]
    left_out: int
    """Lines and files that could not be read."""
    faults: list[str]
    """The first of them, with their places."""
