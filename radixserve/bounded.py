"""Work for strangers, which may not end or may take all memory: in a fork of this process."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import warnings
from collections.abc import Callable


def bounded(work: Callable[[], bytes], *, seconds: float, memory: int) -> bytes | None:
    """What ``work`` returns; None if it takes more than that, or fails.

    It runs in a fork, in which no other thread of this process goes on: nothing in it may wait for
    one.

    Args:
        seconds: Of a processor.
        memory: Bytes, beside what this process has.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are other threads
        child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _bound(seconds, memory)
            with open(writing, "wb") as pipe:
                # With one more byte in front, so that it is never nothing.
                pipe.write(b"+" + work())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result[1:] if result else None


def _bound(seconds: float, memory: int) -> None:
    """From now on this process ends when it has taken too much."""
    # Without a handler, so that it ends in the middle of whatever library it is in.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where there is no /proc, time alone is bounded
        with open("/proc/self/statm", encoding="ascii") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        most, (_, hard) = size + memory, resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)  # which nobody may raise
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
