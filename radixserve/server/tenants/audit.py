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
        entry = {
            # When the request had ended.
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": state["request_id"],
            # None if it brought no valid key.
            "tenant": None if visit is None else visit.tenant.name,
            # The path as the API's documentation has it.
            "route": f"{scope['method']} {_path(scope)}",
            # The tenant or the public prefix that the path names.
            "target": _target(scope.get("path_params", {})),
            "model": None if visit is None else visit.model,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            # 499: the client hung up.
            "status": state["tally"].status,
            # Seconds.
            "duration": round(seconds, 6),
        }
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
