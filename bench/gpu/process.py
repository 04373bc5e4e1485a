"""What is measured runs in a process of its own: if it crashes or hangs, only its case is lost."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from tqdm import tqdm

from bench.gpu.errors import CaseError, reason
from radixserve.engine.garbage import spare_what_is_loaded

Numbers = dict[str, Any]

END_SECONDS = 10.0


class Subject(Protocol):
    """Something that can be measured, loaded: ``Process``, or ``Here`` in tests."""

    about: Numbers
    """How it runs."""

    def ask(self, method: str, arguments: tuple[int, ...], seconds: float) -> Numbers:
        """Call a method of it, and wait so long at most.

        Raises:
            CaseError: it failed, ended, or gave no answer in time; it is of no use any more.
        """

    def close(self) -> None:
        """End it."""


class Process:
    """``make()`` in a new process, which imports the module of ``make`` again.

    Raises:
        CaseError: it failed, or took longer than ``seconds``; the process is gone.
    """

    def __init__(self, make: Callable[[], Any], seconds: float):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.about = self._answer(seconds)
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, arguments: tuple[int, ...], seconds: float) -> Numbers:
        """See ``Subject``."""
        try:
            self._pipe.send((method, arguments))
        except OSError as error:
            raise self._ended() from error
        return self._answer(seconds)

    def close(self) -> None:
        """See ``Subject``. Nothing that it might still do is worth waiting for."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _answer(self, seconds: float) -> Numbers:
        if not self._pipe.poll(max(0.0, seconds)):
            raise CaseError(f"no answer in {seconds:.3g} s")
        try:
            numbers, failure = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if failure is not None:
            raise CaseError(failure)
        return dict(numbers)

    def _ended(self) -> CaseError:
        self._process.join(END_SECONDS)
        return CaseError(f"its process has ended with status {self._process.exitcode}")


def _serve(make: Callable[[], Any], pipe: Connection) -> None:
    """Answer until the other side is closed, or something fails: its state is not trusted then."""
    tqdm.set_lock(threading.RLock())  # its usual one, for many processes, would outlive this one
    try:
        subject = make()
        spare_what_is_loaded()
        pipe.send((subject.about(), None))
        while True:
            method, arguments = pipe.recv()
            pipe.send((getattr(subject, method)(*arguments), None))
    except EOFError:
        pass
    except BaseException as error:
        traceback.print_exc()
        pipe.send((None, reason(error)))
    # Without ado: threads and a broken device can hang a plain exit.
    os._exit(0)
