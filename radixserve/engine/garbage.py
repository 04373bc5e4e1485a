"""What the garbage collector has to look through."""

from __future__ import annotations

import atexit
import gc


def spare_what_is_loaded() -> None:
    """Leave all objects that there are out of collections, until the process ends.

    Libraries and a model are hundreds of thousands of them, which stay: looking through them takes
    the time of two steps. At the end they are counted again, since some libraries complain of what
    is never given back.
    """
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)
