"""``/v1/cache/prefixes``: what chats begin with, computed and kept under a name.

Those of a file are there from the server's start on. Unlike a public prefix a named one is its
tenant's alone; nobody has to say its name to find it cached.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from msgspec.structs import replace
from starlette.datastructures import Headers

from radixserve.errors import ConfigError, RadixServeError, what_is_wrong
from radixserve.server.endpoint import Call
from radixserve.server.errors import AnswerError, ApiError, absent, invalid, invalid_json
from radixserve.server.parameters import check_model, narrowed
from radixserve.server.prewarm import Prewarmed, PrewarmRequest, drafted, warmed
from radixserve.server.service import Service, until_gone
from radixserve.server.tally import Tally
from radixserve.server.tenants.registry import Registry
from radixserve.server.tenants.visit import Visit, forbidden
from radixserve.tenants.file import EVERYBODY, NAME

log = logging.getLogger(__name__)

LARGEST_FILE = 2**26
"""Bytes."""
MOST_OF_A_TENANT = 64
TTL = "24h"
"""Unless the prefix says; each hit begins it anew."""
SESSION = "prefix:"
"""Before its name: what it keeps is let go of as what a session does."""


class FilePrefix(PrewarmRequest, kw_only=True, forbid_unknown_fields=True):
    """One prefix of a file, by its name."""

    tenant: str = EVERYBODY.name
    """Whose it is; nobody's in particular on an open server."""


class PrefixObject(Prewarmed, kw_only=True):
    """As of when it was computed last."""

    object: str = "prefix"
    name: str
    created_at: int


class PrefixList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[PrefixObject]


class Prefixes:
    """Those that have been named, by tenant and name, for as long as the server runs.

    Args:
        declared: Those that are to be there from the start, by name.
    """

    def __init__(self, declared: Mapping[str, FilePrefix] | None = None):
        self._known: dict[tuple[str, str], PrewarmRequest] = {
            (fields.tenant, name): fields for name, fields in (declared or {}).items()
        }
        self._shown: dict[tuple[str, str], PrefixObject] = {}
        """Those of them that have been computed."""
        self._coming: Counter[tuple[str, str, str]] = Counter()
        """Those that are being computed, with what is made of them as a session."""

    def put(
        self, tenant: str, fields: PrewarmRequest, shown: PrefixObject
    ) -> PrewarmRequest | None:
        """In place of the tenant's one of that name. Returns what that was made of."""
        before = self._known.get((tenant, shown.name))
        self._known[tenant, shown.name] = fields
        self._shown[tenant, shown.name] = shown
        return before

    def all(self) -> list[tuple[str, str, PrewarmRequest]]:
        """The tenant, the name, and what each is made of, also of what could not be computed."""
        return [(tenant, name, fields) for (tenant, name), fields in self._known.items()]

    def wants(self, tenant: str, name: str, fields: PrewarmRequest) -> bool:
        """Whether the tenant's one of that name computes the same as ``fields``, or will."""
        coming = (tenant, name, _session(name, fields)) in self._coming
        return coming or self.stands_for(tenant, name, fields)

    def stands_for(self, tenant: str, name: str, fields: PrewarmRequest) -> bool:
        """Whether the tenant's one of that name computes the same as ``fields``."""
        known = self._known.get((tenant, name))
        if known is None or known is fields:
            return known is fields
        return _session(name, known) == _session(name, fields)

    def get(self, tenant: str, name: str) -> PrewarmRequest:
        """What it is made of.

        Raises:
            ApiError: 404, the tenant has no such prefix.
        """
        if (tenant, name) not in self._known:
            raise _not_named(name)
        return self._known[tenant, name]

    def remove(self, tenant: str, name: str) -> None:
        self._known.pop((tenant, name), None)
        self._shown.pop((tenant, name), None)

    def of(self, tenant: str) -> list[PrefixObject]:
        """In the order in which they were computed first."""
        return [shown for (owner, _), shown in self._shown.items() if owner == tenant]

    def forget(self, tenant: str) -> None:
        """Everything of one tenant."""
        for owner, name in list(self._known):
            if owner == tenant:
                self.remove(owner, name)

    @contextmanager
    def room(self, tenant: str, name: str, fields: PrewarmRequest) -> Iterator[None]:
        """Room for the tenant's one of that name, while it is computed of ``fields``.

        Raises:
            ApiError: 400, the tenant has as many as it may.
        """
        mine = {each[1] for each in (*self._known, *self._coming) if each[0] == tenant}
        if name not in mine and len(mine) >= MOST_OF_A_TENANT:
            message = (
                f"A tenant may have {MOST_OF_A_TENANT} named prefixes: let go of one with "
                "DELETE /v1/cache/prefixes/NAME"
            )
            raise invalid(None, message, "too_many_prefixes")
        key = tenant, name, _session(name, fields)
        self._coming[key] += 1
        try:
            yield
        finally:
            self._coming[key] -= 1
            self._coming = +self._coming


def read_prefixes(path: Path, tenants: Registry) -> dict[str, FilePrefix]:
    """The prefixes of a file: a JSON object of requests to prewarm, by their names.

    Args:
        tenants: Whose prefixes they can be.

    Raises:
        ConfigError: it cannot be read, or is wrong; the message says where.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ConfigError(f"{path} is larger than {LARGEST_FILE} bytes.")
        raws = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        twice = _twice(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        why = what_is_wrong(error)
        raise ConfigError(f"{path} is no file of named prefixes: {why}.") from error
    if twice is not None:
        raise ConfigError(f"{path}: {twice[:64]!r} is there twice, so that one of them is lost.")
    found = {}
    for name, raw in raws.items():
        try:
            check_name(name)
            found[name] = msgspec.json.decode(raw, type=FilePrefix)
            drafted(found[name], Headers())
            if not tenants.named(found[name].tenant):
                raise invalid("tenant", _no_tenant(found[name].tenant))
        except (ApiError, msgspec.DecodeError, RecursionError) as error:
            what = error if isinstance(error, ApiError) else invalid_json(error)
            raise ConfigError(f"{path}, {name[:64]}: {what}") from error
    return found


def _no_tenant(name: str) -> str:
    if name == EVERYBODY.name:
        return "tenant is required, since this server has tenants"
    return f"tenant: there is no tenant {name[:64]!r}"


def _twice(data: bytes) -> str | None:
    """A name that an object has twice, of which parsers keep the last. O(bytes)."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.extend(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )

    json.loads(data, object_pairs_hook=note)
    return found[-1] if found else None


def check_name(name: str) -> None:
    """Raises ApiError: 400, no prefix can have this name."""
    if not NAME.fullmatch(name):
        message = "The name must have 1 to 64 letters, digits, or any of _ . - and begin with one "
        raise invalid("prefix", message + "of the first two")


def _not_named(name: str) -> ApiError:
    message = f"You have no prefix {name[:64]!r}: name one with PUT /v1/cache/prefixes/NAME"
    return absent("prefix", message, "prefix_not_found")


async def put_prefix(call: Call, prefix: str, fields: PrewarmRequest) -> PrefixObject:
    """Compute what these chats begin with and keep it under a name, in place of what had it."""
    service, prefixes, tenant = call.service, _prefixes(call), call.tenant
    check_name(prefix)
    card = service.frontend.card
    *_, foreign = drafted(fields, call.headers, prefix_cache=card.prefix_cache)
    call.visit.ignored += foreign
    try:
        with prefixes.room(tenant, prefix, fields):
            work = _computed(service, call.visit, prefix, fields, call.headers)
            shown = await until_gone(call.receive, work)
            if service.tenants.named(tenant) is None:
                raise forbidden("This key may not name prefixes any more.")
            before = prefixes.put(tenant, fields, shown)
    finally:
        _let_go(service, prefixes, tenant, prefix, fields)
    if before is not None:
        _let_go(service, prefixes, tenant, prefix, before)
    return shown


async def warm_prefix(call: Call, prefix: str) -> PrefixObject:
    """Compute it again, as far as it is not cached any more, and keep it anew."""
    work = _again(call.service, _prefixes(call), call.visit, prefix, call.headers)
    return await until_gone(call.receive, work)


async def list_named(call: Call) -> PrefixList:
    """Those of the tenant that asks."""
    return PrefixList(data=_prefixes(call).of(call.tenant))


async def drop_prefix(call: Call, prefix: str) -> dict[str, Any]:
    """Nobody calls it so any more, and what it alone has cached goes before all else."""
    prefixes = _prefixes(call)
    fields = prefixes.get(call.tenant, prefix)
    prefixes.remove(call.tenant, prefix)
    narrow = narrowed(fields.cache_salt, fields.extra_key)
    session = _session(prefix, fields)
    pages = await call.service.end_session(call.tenant, narrow, session) or 0
    return {"name": prefix, "object": "prefix", "deleted": True, "released_pages": pages}


def _prefixes(call: Call) -> Prefixes:
    prefixes: Prefixes = call.app.state.prefixes
    return prefixes


def _let_go(
    service: Service, prefixes: Prefixes, tenant: str, name: str, fields: PrewarmRequest
) -> None:
    """What is made of ``fields`` goes before all else, unless the name stands for it or is to."""
    if not prefixes.wants(tenant, name, fields):
        narrow = narrowed(fields.cache_salt, fields.extra_key)
        service.end_session_soon(tenant, narrow, _session(name, fields))


def _session(name: str, fields: PrewarmRequest) -> str:
    """Whose turn it is to compute ``fields``: another one's once the name stands for others."""
    return f"{SESSION}{name}/{xxhash.xxh3_64_hexdigest(msgspec.json.encode(fields))}"


async def stay_warm(service: Service, prefixes: Prefixes) -> None:
    """Compute those that are to be there from the start, and all that there are once more whenever
    the engine has lost what it had cached. Never ends."""
    losses = 0
    while True:
        await _warm_all(service, prefixes)
        losses = await service.frontend.emptied(losses)
        log.info("the engine has begun anew: named prefixes are computed again")


async def _warm_all(service: Service, prefixes: Prefixes) -> None:
    """One after the other. Each that cannot be computed is logged, and the others go on."""
    for owner, name, fields in prefixes.all():
        if not prefixes.stands_for(owner, name, fields):
            continue  # somebody has changed it meanwhile
        tenant = service.tenants.named(owner)
        if tenant is None:
            log.error("prefix %s: %s", name, _no_tenant(owner))
            continue
        visit = Visit(tenant, service.tenants.meter(tenant), Tally())
        try:
            check_model(fields.model, service.frontend.card)
            shown = await _again(service, prefixes, visit, name, Headers())
        except (ApiError, AnswerError, RadixServeError) as error:
            if prefixes.stands_for(owner, name, fields):
                log.error("prefix %s: %s", name, error)
        else:
            log.info("prefix %s: %d tokens, %s", name, shown.tokens, shown.keep)
        finally:
            visit.leave()


async def _again(
    service: Service, prefixes: Prefixes, visit: Visit, name: str, headers: Headers
) -> PrefixObject:
    """As ``_computed``, of what has that name, and has it still in the end.

    Raises:
        ApiError: 404, nothing has, or nothing any more.
    """
    tenant = visit.tenant.name
    fields = prefixes.get(tenant, name)
    try:
        shown = await _computed(service, visit, name, fields, headers)
        if not prefixes.stands_for(tenant, name, fields):
            raise _not_named(name)
        prefixes.put(tenant, fields, shown)
    finally:
        _let_go(service, prefixes, tenant, name, fields)
    return shown


async def _computed(
    service: Service, visit: Visit, name: str, fields: PrewarmRequest, headers: Headers
) -> PrefixObject:
    """As it is shown from now on."""
    wanted = replace(fields, ttl=TTL if fields.ttl is None else fields.ttl)
    session = _session(name, fields)
    done = await warmed(service, visit, wanted, headers, name=session)
    counts = msgspec.structs.asdict(done)
    del counts["object"]
    return PrefixObject(name=name, created_at=int(time.time()), **counts)
