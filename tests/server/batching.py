"""Files of requests, and how their batches end."""

from __future__ import annotations

import json
import time
from typing import Any

from starlette.testclient import TestClient

from tests.server.asking import CHAT, HANG, USER


def line(identity: str, url: str = CHAT, method: str = "POST", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": identity,
        "method": method,
        "url": url,
        "body": {"messages": USER, **body},
    }


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def ended(client: TestClient, identity: str) -> dict[str, Any]:
    """The batch, once it has ended."""
    until = time.monotonic() + HANG
    while time.monotonic() < until:
        batch = client.get(f"/v1/batches/{identity}").json()
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            return dict(batch)
        time.sleep(0.01)
    raise AssertionError(f"the batch has not ended: {batch}")
