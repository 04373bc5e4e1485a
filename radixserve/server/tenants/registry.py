"""The tenants that are in force, and how others come into force."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from radixserve.engine.frontend import Frontend
from radixserve.errors import ConfigError
from radixserve.server.tenants.declared import Declarations, PublicPrefix
from radixserve.server.tenants.meter import Clock, Meter
from radixserve.server.tenants.visit import forbidden
from radixserve.tenants.edit import put_tenant
from radixserve.tenants.file import EVERYBODY, Roster, Tenant, read_tenants

log = logging.getLogger(__name__)


class Registry:
    """Belongs to one event loop.

    Args:
        roster: the tenants; None is an open server, where everybody is the same tenant.
        path: the file that they come from, if they come from one.
    """

    def __init__(
        self,
        roster: Roster | None = None,
        *,
        path: Path | None = None,
        clock: Clock = time.monotonic,
    ):
        self.roster = roster
        self.path = path
        self._clock = clock
        self._meters: dict[str, Meter] = {}
        self._changing = asyncio.Lock()
        self.declarations = Declarations()
        self.frontend: Frontend | None = None
        """The engine that is told of the tenants' terms."""
        self.forgetting: list[Callable[[str], None]] = []
        """Who else keeps something for tenants, to be told by name when it is to be forgotten."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The tenants of a file.

        Raises:
            ConfigError: it cannot be read, or is wrong.
        """
        roster = read_tenants(path)
        if not roster.by_key:
            log.warning("%s has no key: nobody can use this server.", path)
        return cls(roster, path=path)

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """By name; nobody on an open server."""
        return {} if self.roster is None else self.roster.tenants

    def holder(self, key: str) -> Tenant | None:
        """Whose key it is."""
        return None if self.roster is None else self.roster.holder(key)

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name; on an open server the only one has none."""
        if self.roster is None:
            return EVERYBODY if name == EVERYBODY.name else None
        return self.tenants.get(name)

    def meter(self, tenant: Tenant) -> Meter:
        """What ``tenant`` has used."""
        meter = self._meters.get(tenant.name)
        if meter is None:
            meter = self._meters[tenant.name] = Meter(tenant.name, tenant.limits, self._clock)
        return meter

    def meters(self) -> list[tuple[Tenant, Meter]]:
        """All of them, in the order of the file."""
        tenants = [EVERYBODY] if self.roster is None else self.roster.tenants.values()
        return [(tenant, self.meter(tenant)) for tenant in tenants]

    def serve(self, frontend: Frontend) -> None:
        """Tell ``frontend``, which has started, of the tenants' terms, now and at each change."""
        self.frontend = frontend
        self._tell()

    def declare(self, prefix: PublicPrefix) -> None:
        """All tenants share ``prefix`` from now on, also in an engine that is started again.

        Raises:
            ApiError: 403, its tenant may not declare any, by now; 400, it has too many.
        """
        if not self._may_publish(prefix.tenant):
            raise forbidden("This key may not declare public prefixes any more.")
        self.declarations.put(prefix)
        self._publish()

    def withdraw(self, tenant: str, name: str) -> bool:
        """Share it no more; returns whether ``tenant`` had declared a prefix of this name."""
        found = self.declarations.remove(tenant, name)
        if found:
            self._publish()
        return found

    async def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: it cannot be read or is wrong, or there is none; nothing has changed.
        """
        await self._change(read_tenants)

    async def put(self, name: str, settings: Mapping[str, Any]) -> Tenant:
        """Give a tenant, or a new one, these settings, in the file too.

        Raises:
            ConfigError: they are wrong, or the file cannot be written; nothing has changed.
        """
        own = self.roster is not None and self.roster.administrated
        await self._change(lambda path: put_tenant(path, name, settings, administrated=own))
        return self.tenants[name]

    async def _change(self, read: Callable[[Path], Roster]) -> None:
        if self.path is None:
            raise ConfigError("This server was started without --tenants FILE.")
        async with self._changing:
            roster = await asyncio.to_thread(read, self.path)
            if not roster.by_key:
                raise ConfigError(f"{self.path} has no key: nobody could use this server any more.")
            await self._take(roster)

    async def _take(self, roster: Roster) -> None:
        before, self.roster = self.tenants, roster
        self._meters = {
            name: meter for name, meter in self._meters.items() if name in roster.tenants
        }
        for name, meter in self._meters.items():
            meter.set_limits(roster.tenants[name].limits)
        self._tell()
        self.declarations.keep_of(self._may_publish)
        self._publish()
        # Whoever gets a name that somebody had before gets nothing that was kept for them.
        changed = before.keys() ^ roster.tenants.keys()
        for name in changed:
            for forget in self.forgetting:
                forget(name)
        if self.frontend is not None and changed:
            await self.frontend.reset_prefix_cache(changed)
        log.info("%d tenants of %s are in force", len(roster.tenants), self.path)
        if not roster.administrated:
            log.warning("no tenant of %s that has a key may administrate", self.path)

    def _tell(self) -> None:
        if self.roster is not None and self.frontend is not None:
            terms = {name: tenant.terms for name, tenant in self.roster.tenants.items()}
            self.frontend.set_tenants(terms)

    def _may_publish(self, name: str) -> bool:
        tenant = EVERYBODY if self.roster is None else self.tenants.get(name)
        return tenant is not None and tenant.may_publish

    def _publish(self) -> None:
        if self.frontend is not None:
            self.frontend.set_public([each.tokens for each in self.declarations.of()])
