"""The pages at ``/``, a chat that shows what was reused, and at ``/cache``, the live tree.

Plain files, which need no build and no network."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

WEB = Path(__file__).parent / "web"
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


async def page(request: Request) -> Response:
    return FileResponse(WEB / "index.html", headers=HEADERS)


async def cache_page(request: Request) -> Response:
    return FileResponse(WEB / "cache.html", headers=HEADERS)


def files() -> StaticFiles:
    """What the pages load, under ``/web``."""
    return StaticFiles(directory=WEB)
