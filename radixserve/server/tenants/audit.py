"""The audit log: who asked for what, and what it cost. No prompt, no answer, no salt, no key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec
from starlette.routing import Match, Route
from starlette.types import Scope

from radixserve.server.lines import LineFile
from radixserve.server.tenants.visit import Visit

LONGEST_TARGET = 64
"""Characters: no name that exists is longer."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A line."""

    time: str
    """When the request had ended, in UTC."""
    request_id: str
    tenant: str | None
    """None if it brought no valid key."""
    route: str
    """The method, and the path as the API's documentation has it."""
    target: str | None
    """The tenant or the public prefix that the path names."""
    model: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    status: int
    """499: the client hung up."""
    duration: float
    """Seconds."""


class Audit:
    """Appends to a file, if there is one."""

    def __init__(self, path: Path | None = None):
        """
        Raises:
            ConfigError: the file cannot be written.
        """
        self._lines = None if path is None else LineFile(path)

    def note(self, scope: Scope, visit: Visit | None, seconds: float) -> None:
        """A request has ended."""
        if self._lines is None:
            return
        state = scope["state"]
        usage = state["tally"].usage()
        entry = Entry(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            request_id=state["request_id"],
            tenant=None if visit is None else visit.tenant.name,
            route=f"{scope['method']} {_path(scope)}",
            target=_target(scope.get("path_params", {})),
            model=None if visit is None else visit.model,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens,
            completion_tokens=usage.completion_tokens,
            status=state["tally"].status,
            duration=round(seconds, 6),
        )
        self._lines.append(msgspec.json.encode(entry).decode())

    def close(self) -> None:
        """Write what waits, and close the file."""
        if self._lines is not None:
            self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _target(parameters: Mapping[str, str]) -> str | None:
    name = parameters.get("tenant", parameters.get("prefix"))
    return None if name is None else name[:LONGEST_TARGET]


def _path(scope: Scope) -> str:
    """The path with names in place of what varies; clients choose what varies."""
    for route in scope["app"].routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            return route.path
    return "unknown"
