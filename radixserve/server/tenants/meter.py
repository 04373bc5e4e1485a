"""What a tenant has used, and what it may use now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from radixserve.server.errors import MAX_RETRY_AFTER, ApiError
from radixserve.server.tenants.buckets import Bucket
from radixserve.tenants.file import Limits

Kind = Literal["requests", "tokens", "concurrent"]
CONCURRENT_WAIT = 1.0
"""Seconds after which one of the tenant's own requests may have ended; nobody knows better."""
Clock = Callable[[], float]


@dataclass(slots=True)
class Totals:
    """Of one tenant since the server's start."""

    requests: int = 0
    """Those that count against limits, refused ones included."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    refused: dict[Kind, int] = field(default_factory=dict)
    """Requests over a limit, by the limit."""


@dataclass(kw_only=True, eq=False)
class OverLimitError(ApiError):
    """429: a tenant is over a limit of its own."""

    kind: Kind


class Meter:
    """Belongs to one event loop. It outlives changes of the tenant's limits."""

    def __init__(self, name: str, limits: Limits, clock: Clock = time.monotonic):
        self.name = name
        self.totals = Totals()
        self.running = 0
        """Requests that have been let in and have not ended."""
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """These limits hold from now on; what was used in the last minute stays used."""
        self.limits = limits
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)

    def enter(self) -> None:
        """Let one request in; ``leave`` follows when it has ended.

        Raises:
            OverLimitError: there are too many at once or in this minute.
        """
        self.totals.requests += 1
        most = self.limits.concurrent_requests
        if most is not None and self.running >= most:
            says = f"{most} of its requests are under way, which is its limit"
            raise self._over("concurrent", says, CONCURRENT_WAIT)
        now = self._clock()
        if self._requests is not None and not self._requests.take(1, now):
            says = f"it may send {self.limits.requests_per_minute} requests a minute"
            raise self._over("requests", says, self._requests.wait(1, now))
        self.running += 1

    def leave(self) -> None:
        self.running -= 1

    def reserve(self, tokens: int) -> float:
        """Set ``tokens`` aside; returns how many were.

        Raises:
            OverLimitError: so many are not left in this minute.
        """
        if self._tokens is None:
            return 0.0
        now = self._clock()
        if taken := self._tokens.take(tokens, now):
            return taken
        says = (
            f"it may use {self.limits.tokens_per_minute} tokens a minute, of which "
            f"{self._tokens.remaining(now)} are left now, and this request may need {tokens}"
        )
        raise self._over("tokens", says, self._tokens.wait(tokens, now))

    def settle(self, reserved: float, prompt: int, cached: int, completion: int) -> None:
        """Charge what was used in place of what ``reserve`` had set aside. In tokens."""
        self.totals.prompt_tokens += prompt
        self.totals.cached_tokens += cached
        self.totals.completion_tokens += completion
        if self._tokens is not None:
            cost = prompt - cached + cached * self.limits.cached_token_weight + completion
            self._tokens.give(reserved - cost, self._clock())

    def headers(self) -> dict[str, str]:
        """The limits and what is left of them, under OpenAI's names and Anthropic's."""
        now = self._clock()
        headers: dict[str, str] = {}
        for kind, bucket in self._buckets().items():
            wait = bucket.wait(math.inf, now)
            remaining = str(bucket.remaining(now))
            # What refills by the moment has no whole second at which it is full: round up.
            at = datetime.now(UTC) + timedelta(seconds=math.ceil(wait))
            headers |= {
                f"x-ratelimit-limit-{kind}": f"{bucket.per_minute:.0f}",
                f"x-ratelimit-remaining-{kind}": remaining,
                f"x-ratelimit-reset-{kind}": duration(wait),
                f"anthropic-ratelimit-{kind}-limit": f"{bucket.per_minute:.0f}",
                f"anthropic-ratelimit-{kind}-remaining": remaining,
                f"anthropic-ratelimit-{kind}-reset": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            }
        return headers

    def remaining(self) -> dict[str, int]:
        """What is left of each limit that the tenant has."""
        now = self._clock()
        return {kind: bucket.remaining(now) for kind, bucket in self._buckets().items()}

    def _buckets(self) -> dict[str, Bucket]:
        both = {"requests": self._requests, "tokens": self._tokens}
        return {kind: bucket for kind, bucket in both.items() if bucket is not None}

    def _resized(self, bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return Bucket.full(per_minute, self._clock())
        bucket.resize(per_minute, self._clock())
        return bucket

    def _over(self, kind: Kind, says: str, wait: float) -> OverLimitError:
        self.totals.refused[kind] = self.totals.refused.get(kind, 0) + 1
        wait = min(max(wait, 0.001), float(MAX_RETRY_AFTER))
        return OverLimitError(
            kind=kind,
            status=429,
            message=f"Rate limit reached for {self.name}: {says}. Try again in {wait:.3g} seconds.",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            headers={
                "retry-after": str(math.ceil(wait)),
                "retry-after-ms": str(math.ceil(wait * 1000)),
            },
        )


def duration(seconds: float) -> str:
    """``seconds`` as OpenAI writes them: ``20ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.4g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
