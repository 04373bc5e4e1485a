from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from tests.server.fake import FakeFrontend


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
def client(frontend: FakeFrontend) -> Iterator[TestClient]:
    with TestClient(create_app(frontend), raise_server_exceptions=False) as client:
        yield client
