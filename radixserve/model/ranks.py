"""One model on several GPUs: a process for each rank, every step's plan sent to all of them.

Rank 0 is the engine's own process. It makes the arrays of a step, sends them down a pipe to each
other rank, computes its share like them, and alone samples. A rank that ends takes the others with
it: what they compute together is worth nothing without it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radixserve.attention.arrays import PagedBatch
from radixserve.cache.pages import PageCopy
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, EngineDeadError
from radixserve.model import parallel
from radixserve.model.loader import ModelFiles, pick_device, read_config
from radixserve.model.runner import ModelRunner
from radixserve.scheduling.plan import Sampled, StepPlan

log = logging.getLogger(__name__)

READY = b"ready"
FAILED, LOST_PEER = 1, 3
"""How a rank ends that failed itself, and one that only missed another."""
GRACE = 5.0
"""Seconds that a process has to end when it is asked to."""


def load(
    files: ModelFiles,
    config: EngineConfig,
    *,
    eos_token_ids: Iterable[int] = (),
    lost: Callable[[str], None] = lambda reason: None,
) -> ModelRunner:
    """The model on as many ranks as ``config`` says.

    Args:
        lost: told, from another thread, as soon as no step can be computed any more since a rank
            has ended by itself.

    Raises:
        ModelError, ConfigError: as ``ModelRunner``.
        EngineDeadError: a rank has ended while it loaded.
    """
    if config.tensor_parallel_size == 1:
        return ModelRunner(files, config, eos_token_ids=eos_token_ids)
    return ParallelRunner(files, config, eos_token_ids=eos_token_ids, lost=lost)


class ParallelRunner(ModelRunner):
    """A ``ModelRunner`` that is rank 0 of ``config.tensor_parallel_size``; see ``load``.

    Raises:
        ModelError: the model cannot be read or served.
        ConfigError: it cannot be split so, there are fewer GPUs, or it does not fit on them.
        EngineDeadError: a rank has ended while it loaded.
    """

    def __init__(
        self,
        files: ModelFiles,
        config: EngineConfig,
        *,
        eos_token_ids: Iterable[int] = (),
        lost: Callable[[str], None] = lambda reason: None,
    ):
        size = config.tensor_parallel_size
        device = _device(config.device, size, rank=0)
        parallel.check_process()
        parallel.check_size(read_config(files.model), size)
        self._ranks = Ranks(files, config, lost)
        self._end = weakref.finalize(self, self._ranks.end)
        try:
            self._ranks.await_ready()
            joined = parallel.join(0, size, self._ranks.store, device)
            super().__init__(files, config, eos_token_ids=eos_token_ids, parallel=joined)
        except parallel.LostPeerError as error:
            raise self._ranks.dead(error) from error
        except BaseException:
            self._ranks.end()
            raise

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        """See ``ModelRunner.execute``.

        Raises:
            EngineDeadError: a rank has ended, or failed: no further step can be computed.
        """
        try:
            return super().execute(plan)
        finally:
            # On a GPU a sum without one rank goes wrong in silence: its tokens mean nothing.
            self._ranks.check()

    def compute(self, copies: Sequence[PageCopy], batch: PagedBatch | None) -> torch.Tensor | None:
        """See ``ModelRunner.compute``; the other ranks do the same."""
        try:
            self._ranks.send(_packed(copies, batch))
            return super().compute(copies, batch)
        except Exception as error:  # whatever it was, the ranks are out of step now
            raise self._ranks.dead(error) from error

    def close(self) -> None:
        """End the other ranks."""
        self._end()


class Ranks:
    """The processes of all ranks but 0, watched: when one ends, so do the others, and ``check``
    says why, as ``lost`` is told at once."""

    def __init__(
        self,
        files: ModelFiles,
        config: EngineConfig,
        lost: Callable[[str], None] = lambda reason: None,
    ):
        self._lost = lost
        self._folder = Path(tempfile.mkdtemp(prefix="radixserve-"))
        self.store = self._folder / "store"
        """Where the ranks find each other."""
        self._lock = threading.Lock()
        self._ending = False
        self._cause: str | None = None
        self._seen = threading.Event()
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(1, config.tensor_parallel_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, self.store, files, config, theirs),
                name=f"radixserve rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    def await_ready(self) -> None:
        """Wait until all can meet.

        Raises:
            EngineDeadError: one has ended.
        """
        for rank, pipe in enumerate(self._pipes, 1):
            try:
                pipe.poll(None)  # so that nothing is waited for under the lock
                with self._lock:
                    said = pipe.recv_bytes()
                    if said != READY:
                        self._cause = self._cause or _failed(rank, said)
                        raise EOFError
            except (EOFError, OSError) as error:
                raise self.dead(error) from error

    def send(self, message: bytes) -> None:
        """Tell all ranks what to compute.

        Raises:
            OSError: one has ended.
        """
        self.check()
        for pipe in self._pipes:
            pipe.send_bytes(message)

    def check(self) -> None:
        """Raises EngineDeadError if a rank has ended."""
        if self._cause is not None:
            raise EngineDeadError(self._cause)

    def dead(self, error: BaseException) -> EngineDeadError:
        """End all ranks, and say which of them failed first; if none did, it was ``error``."""
        if isinstance(error, parallel.LostPeerError | EOFError | OSError):
            self._seen.wait(GRACE)
        with self._lock:
            self._cause = self._cause or _failed(0, _words(error))
        self.end()
        return EngineDeadError(self._cause)

    def end(self) -> None:
        """End all ranks and give back what they held; again does nothing."""
        with self._lock:
            self._ending = True
            self._cause = self._cause or "The model has been closed."
            processes, self._processes = self._processes, []
        if not processes:
            return
        parallel.abort()
        for process in processes:
            process.kill()  # they may be told to ignore all else, and have nothing to lose
        self._watcher.join()
        for process in processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        parallel.leave()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        processes = list(self._processes)
        for sentinel in wait([process.sentinel for process in processes]):
            # It is closed a moment before the system knows how the process ended.
            next(each for each in processes if each.sentinel == sentinel).join(GRACE)
        with self._lock:
            if self._ending:
                return
            self._cause = self._cause or self._reason(processes)
        log.error("%s", self._cause)
        self._seen.set()
        for process in processes:
            process.kill()
        parallel.abort()
        self._lost(self._cause)

    def _reason(self, processes: list[SpawnProcess]) -> str:
        codes = {rank: process.exitcode for rank, process in enumerate(processes, 1)}
        ended = {rank: code for rank, code in codes.items() if code is not None}
        # Who missed another has ended because of it, even if both were seen at once.
        rank, code = min(ended.items(), key=lambda each: each[1] == LOST_PEER)
        if code < 0:
            return f"Rank {rank} of the model was killed ({signal.Signals(-code).name})."
        with contextlib.suppress(EOFError, OSError):
            pipe = self._pipes[rank - 1]
            while pipe.poll():
                said = pipe.recv_bytes()
                if said != READY:
                    return _failed(rank, said)
        return f"Rank {rank} of the model has ended with status {code}."


def _serve(
    rank: int, store: Path, files: ModelFiles, config: EngineConfig, pipe: Connection
) -> None:
    """The process of a rank: load, then compute what comes down ``pipe``, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for rank 0, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = FAILED
    try:
        size = config.tensor_parallel_size
        device = _device(config.device, size, rank)
        pipe.send_bytes(READY)
        joined = parallel.join(rank, size, store, device)
        runner = ModelRunner(files, config, parallel=joined)
        while True:
            runner.compute(*_unpacked(pipe.recv_bytes()))
    except EOFError:
        status = 0
    except parallel.LostPeerError:
        status = LOST_PEER
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send_bytes(_words(error))
    # Without ado: what a group of ranks leaves undone when it breaks can hang a plain exit.
    os._exit(status)


def _words(error: BaseException) -> bytes:
    return (str(error) or repr(error)).encode()


def _failed(rank: int, words: bytes) -> str:
    return f"Rank {rank} of the model has failed: {words.decode()}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _device(wanted: str, size: int, rank: int) -> torch.device:
    device = pick_device(wanted)
    if device.type == "cpu":
        return device
    if torch.cuda.device_count() < size:
        raise ConfigError(
            f"tensor_parallel_size {size} needs {size} GPUs; torch sees "
            f"{torch.cuda.device_count()}. Lower it, or make more of them visible."
        )
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def _packed(copies: Sequence[PageCopy], batch: PagedBatch | None) -> bytes:
    arrays = None
    if batch is not None:
        values = ((field.name, getattr(batch, field.name)) for field in fields(batch))
        arrays = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in values
        }
    return pickle.dumps((list(copies), arrays), protocol=pickle.HIGHEST_PROTOCOL)


def _unpacked(message: bytes) -> tuple[list[PageCopy], PagedBatch | None]:
    copies, arrays = pickle.loads(message)
    if arrays is None:
        return copies, None
    tensors: dict[str, Any] = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in arrays.items()
    }
    return copies, PagedBatch(**tensors)
