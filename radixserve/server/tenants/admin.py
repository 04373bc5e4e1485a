"""``/v1/admin``: the tenants and what they use, for administrators.

Keys are made by ``radixserve tenants``, on the machine that has the file: here only their hashes
travel, so that no key stands in anybody's log of requests and answers.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import ConfigError
from radixserve.server.errors import ApiError
from radixserve.server.limits import read_json
from radixserve.server.service import Service
from radixserve.server.tenants.meter import Meter
from radixserve.server.wire import Json
from radixserve.tenants.file import Tenant

LARGEST_BODY = 2**20


async def list_tenants(request: Request) -> Response:
    """``GET /v1/admin/tenants``: all settings, and what the keys are called."""
    service: Service = request.app.state.service
    return Json({"data": [_shown(each) for each in service.tenants.tenants.values()]})


async def put_tenant(request: Request) -> Response:
    """``PUT /v1/admin/tenants/{tenant}``: settings as the file has them, as JSON. Its keys stay,
    unless hashes of others are among them."""
    service: Service = request.app.state.service
    settings, _ = await read_json(request, dict[str, Any], LARGEST_BODY)
    name = request.path_params["tenant"]
    try:
        tenant = await service.tenants.put(name, _without_nulls(settings))
    except ConfigError as error:
        raise _refused(error) from error
    return Json(_shown(tenant))


async def reload_tenants(request: Request) -> Response:
    """``POST /v1/admin/reload``: the file as it is now is in force, or nothing has changed."""
    service: Service = request.app.state.service
    try:
        await service.tenants.reload()
    except ConfigError as error:
        raise _refused(error) from error
    return Json({"success": True, "tenants": len(service.tenants.tenants)})


async def usage(request: Request) -> Response:
    """``GET /v1/admin/usage``: what each tenant has used since the server's start."""
    service: Service = request.app.state.service
    return Json({"data": [_used(tenant, meter) for tenant, meter in service.tenants.meters()]})


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


def _refused(error: ConfigError) -> ApiError:
    return ApiError(status=400, message=str(error), code="invalid_tenants")
