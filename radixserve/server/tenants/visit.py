"""One HTTP request of a tenant: what it may do, what was set aside for it, what it has cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from radixserve.cache.namespace import of_tenant
from radixserve.engine.frontend import ModelCard, TextRequest
from radixserve.server.errors import ApiError
from radixserve.server.parameters import PRIORITY_HEADER
from radixserve.server.tally import CLIENT_GONE, Tally
from radixserve.server.tenants.meter import Kind, Meter, OverLimitError
from radixserve.tenants.file import Endpoint, Tenant
from radixserve.tokens import count

Need = Endpoint | Literal["admin", "public_prefixes"]
"""What a route asks of a tenant: an endpoint that it may use, or a right that it has."""
OF_EVERYBODY: tuple[Need, ...] = ("admin", "metrics")
"""What concerns all tenants: an administrator may have it, whatever else the file gives it."""
RIGHTS: dict[Need, str] = {
    "admin": "administrate",
    "public_prefixes": "declare public prefixes",
}
ASSUMED_ANSWER = 512
"""Tokens set aside for an answer whose ``max_tokens`` was not said."""


@dataclass(slots=True)
class Visit:
    tenant: Tenant
    meter: Meter
    tally: Tally
    model: str | None = None
    """That was asked to generate."""
    told_by: str = ""
    """The request's id, if nobody can guess it."""
    body: bytes = b""
    """Of the request, JSON."""
    compare: str | None = None
    """Id of an earlier request that its prompt is to be compared with."""
    prompts: list[int] = field(default_factory=list)
    """Tokens of each prompt that was let in."""
    ignored: list[str] = field(default_factory=list)
    """Fields of it that have no effect."""
    canonical: list[str] = field(default_factory=list)
    """Canonical forms that changed its prompt."""
    limited: bool = False
    """Whether it counts against the tenant's limits."""
    over: Kind | None = None
    """The limit for which it was refused."""
    _entered: bool = False
    _reserved: float = 0.0
    _headers: dict[str, str] = field(default_factory=dict)

    def may(self, need: Need) -> bool:
        """Whether the tenant has ``need``."""
        if need == "public_prefixes":
            return self.tenant.may_publish
        return need in self.tenant.endpoints or (self.tenant.admin and need in OF_EVERYBODY)

    def enter(self, need: Need, *, limited: bool) -> None:
        """See that the tenant may ask this route; a limited one counts against its limits.

        Raises:
            ApiError: 403, it may not.
            OverLimitError: not now.
        """
        if not self.may(need):
            raise forbidden(f"This key may not {RIGHTS.get(need, f'use {need}')}.")
        if limited:
            self.limited = True
            with self._noted():
                self.meter.enter()
            self._entered = True

    def admit(self, requests: Sequence[TextRequest], card: ModelCard) -> list[TextRequest]:
        """``requests`` as the tenant's own: in its namespace, no better than its best priority.

        For each prompt and the longest answers to it tokens are set aside.

        Raises:
            ApiError: 403, the model is not for this tenant.
            OverLimitError: its tokens are used up.
        """
        owned = [self.own(request, card) for request in requests]
        self.model = card.name
        prompts = [count(request.prompt) for request in requests]
        wanted = sum(
            prompt + request.n * _answer(request, card.max_model_len - prompt)
            for prompt, request in zip(prompts, requests, strict=True)
        )
        with self._noted():
            self._reserved = self.meter.reserve(wanted)
        self.prompts = prompts
        return owned

    def own(self, request: TextRequest, card: ModelCard) -> TextRequest:
        """``request`` as the tenant's own.

        Raises:
            ApiError: 403, the model is not for this tenant.
        """
        if not self.tenant.may_use(card.name):
            raise forbidden(f"This key may not use the model {card.name!r}.")
        priority = max(request.priority, self.tenant.ceiling)
        if priority != request.priority:
            self._headers[PRIORITY_HEADER] = str(priority)
        return replace(
            request,
            tenant=self.tenant.name,
            namespace=of_tenant(self.tenant.name or None, request.namespace),
            priority=priority,
        )

    def headers(self) -> dict[str, str]:
        """What the answer says of limits."""
        return {**self._headers, **self.meter.headers()} if self.limited else {}

    def leave(self) -> None:
        """It has ended: charge what it has used, and make room for others.

        Whoever hangs up before anything is known of a prompt pays for the prompt: it may have been
        computed.
        """
        usage = self.tally.usage()
        prompt = usage.prompt_tokens
        if self.tally.status == CLIENT_GONE:
            known = {index for index, _ in self.tally.counts}
            prompt += sum(each for index, each in enumerate(self.prompts) if index not in known)
        if self.prompts:
            cached = usage.prompt_tokens_details.cached_tokens
            self.meter.settle(self._reserved, prompt, cached, usage.completion_tokens)
        if self._entered:
            self.meter.leave()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OverLimitError as error:
            self.over = error.kind
            raise


def _answer(request: TextRequest, room: int) -> int:
    most = request.sampling.max_tokens
    return max(0, min(ASSUMED_ANSWER if most is None else most, room))


def forbidden(message: str) -> ApiError:
    return ApiError(status=403, message=message, type="permission_error", code="permission_denied")
