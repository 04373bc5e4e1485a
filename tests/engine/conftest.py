from __future__ import annotations

import pytest

from tests.engine.saying import SayingModel
from tests.engine.simulated import launch


@pytest.fixture(params=["one by one", "overlapped"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the engine computes them, which nobody outside may notice."""
    if request.param == "overlapped":
        monkeypatch.setattr(SayingModel, "launch", launch)
