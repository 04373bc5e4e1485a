"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A machine that others use too may take any time for an example; the timeout is there for hangs.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
