"""``/v1/admin``: the tenants and what they use, for administrators.

Keys are made by ``radixserve tenants``, on the machine that has the file: here only their hashes
travel, so that no key stands in anybody's log of requests and answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from radixserve.errors import ConfigError
from radixserve.server.endpoint import Call
from radixserve.server.errors import ApiError
from radixserve.server.limits import decode, read_body
from radixserve.server.tenants.meter import Meter
from radixserve.tenants.file import Tenant

LARGEST_BODY = 2**20


async def list_tenants(call: Call) -> dict[str, Any]:
    """All settings, and what the keys are called."""
    return {"data": [_shown(each) for each in call.service.tenants.tenants.values()]}


async def put_tenant(call: Call, tenant: str) -> dict[str, Any]:
    """Settings as the file has them, as JSON. Its keys stay, unless hashes of others are among
    them."""
    body = await read_body(call, LARGEST_BODY)
    settings, _ = await decode(body, dict[str, Any], call.service.large_bodies)
    with _refused():
        return _shown(await call.service.tenants.put(tenant, _without_nulls(settings)))


async def reload_tenants(call: Call) -> dict[str, Any]:
    """The file as it is now is in force, or nothing has changed."""
    with _refused():
        await call.service.tenants.reload()
    return {"success": True, "tenants": len(call.service.tenants.tenants)}


async def usage(call: Call) -> dict[str, Any]:
    """What each tenant has used since the server's start."""
    return {"data": [_used(tenant, meter) for tenant, meter in call.service.tenants.meters()]}


def _shown(tenant: Tenant) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(tenant)
    return {**shown, "keys": tenant.key_ids}


def _used(tenant: Tenant, meter: Meter) -> dict[str, Any]:
    totals: dict[str, Any] = msgspec.to_builtins(meter.totals)
    return {
        "name": tenant.name,
        "running": meter.running,
        **totals,
        "remaining": meter.remaining(),
    }


def _without_nulls(value: Any) -> Any:
    """TOML has none; null is the same as leaving a field out."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return value


@contextmanager
def _refused() -> Iterator[None]:
    """Within, settings that cannot be are the client's fault."""
    try:
        yield
    except ConfigError as error:
        raise ApiError(status=400, message=str(error), code="invalid_tenants") from error
