"""Tenants for tests: their keys, and the files that they stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.tenants.registry import Registry
from radixserve.tenants.file import parse_tenants
from radixserve.tenants.keys import hash_of
from tests.server.fake import FakeFrontend

KEYS = {name: f"rsk_{name}" for name in ("alice", "bob", "boss", "mute")}
FILE = "\n".join(
    [
        "# who may come in",
        *(f'[tenants.{name}]\nkeys = ["{hash_of(KEYS[name])}"]' for name in ("alice", "bob")),
        f'[tenants.boss]\nkeys = ["{hash_of(KEYS["boss"])}"]\nadmin = true',
        f'[tenants.mute]\nkeys = ["{hash_of(KEYS["mute"])}"]\nendpoints = []',
    ]
)


class Hands:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def registry(text: str = FILE, **settings: Any) -> Registry:
    return Registry(parse_tenants(text, "the file"), **settings)


def limited(limits: str, more: str = "") -> str:
    """A file in which alice has ``limits``, and bob has none."""
    return "\n".join(
        [
            f'[tenants.alice]\nkeys = ["{hash_of(KEYS["alice"])}"]\n{more}',
            f"limits = {{ {limits} }}",
            f'[tenants.bob]\nkeys = ["{hash_of(KEYS["bob"])}"]',
        ]
    )


def client_of(
    frontend: FakeFrontend, tenants: Registry | None = None, **settings: Any
) -> TestClient:
    app = create_app(frontend, tenants=registry() if tenants is None else tenants, **settings)
    return TestClient(app, raise_server_exceptions=False)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def write(directory: Path, text: str = FILE) -> Path:
    path = directory / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    return path
