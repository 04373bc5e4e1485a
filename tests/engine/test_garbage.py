"""What is loaded is left out of collections, and counted again at the end."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, gc
from radixserve.engine.garbage import spare_what_is_loaded

kept = [[n] for n in range(1000)]
atexit.register(lambda: print(gc.get_freeze_count()))
spare_what_is_loaded()
spare_what_is_loaded()
assert gc.get_freeze_count() >= 1000
assert not any(each is kept for each in gc.get_objects())
"""


def test_what_is_loaded_is_not_looked_through_until_the_process_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
