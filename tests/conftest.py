"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# What a test computes is small, and others may run beside it: threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of a terminal, or made up by readline where there is none: tests say how wide theirs is.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# A machine that others use too may take any time for an example; the timeout is there for hangs.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
