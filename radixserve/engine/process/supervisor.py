"""The engine in a process of its own, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from radixserve.config import EngineConfig
from radixserve.engine.messages import (
    Command,
    Found,
    Lost,
    News,
    Ping,
    Ready,
    Refusal,
    Reply,
    StepNews,
)
from radixserve.engine.process.handle import COMMAND, Handle
from radixserve.engine.streams import Asking
from radixserve.errors import EngineDeadError, RadixServeError
from radixserve.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

DELAYS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before it is started again, once more, ...; the last one from then on."""
HEARTBEAT = 5.0
"""Seconds of silence after which an engine that has nothing to do is asked whether it is there."""
STEADY = 60.0
"""Seconds after which a run counts as a good one, and the delays begin anew."""


class SupervisedLLM(Asking):
    """Implements ``radixserve.engine.frontend.Frontend``.

    Text is made of tokens here, so that templates and tokenizers never wait for a step, nor a step
    for them. When the engine's process ends, whatever the reason, or is silent for
    ``config.step_timeout`` seconds although it was told or asked something, the requests in flight
    get an error and it is started again.
    """

    def __init__(self, config: EngineConfig, *, command: Sequence[str] = COMMAND):
        """``command`` starts the process."""
        self.config = config
        self._starting = command
        self._handle: Handle | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._restarts = 0
        self._loading = 1.0
        """Seconds that the last start took."""
        self._owes = False
        """Whether the engine has something to say: each command is followed by news, and so is each
        step. Not whether somebody waits, who may not have read yet what it said last."""
        self._silent = 0.0
        """Seconds since it said something, or since it owes that. Not by the clock: whoever stops
        this process and lets it go on stops the engine too."""

    async def start(self) -> None:
        """Start the process and wait until its model is loaded.

        Raises:
            ConfigError: the settings cannot work on this machine.
            ModelError: the model cannot be found, read or served.
            EngineDeadError: the process ended meanwhile.
        """
        handle = await self._started()
        self._supervising = asyncio.create_task(self._supervise(handle))

    async def stop(self) -> None:
        """End the process after the step that it is in; requests in flight get an error."""
        if self._supervising is not None:
            self._supervising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervising
            if self._handle is not None:  # the task had not even begun
                await self._handle.end()
        await self._end_trials()

    @property
    def pid(self) -> int | None:
        """The engine's process, while there is one that serves."""
        return None if self._handle is None else self._handle.pid

    def healthy(self) -> bool:
        return self._handle is not None and not self._stuck()

    def _command(self, command: Command) -> None:
        if self._supervising is None or self._supervising.done():
            raise EngineDeadError("The engine has stopped.")
        if self._handle is None:
            raise self._dead("The engine is being started again.")
        try:
            self._handle.send(command)
        except EngineDeadError as error:
            raise self._dead(str(error)) from error
        if not self._owes:
            self._owes, self._silent = True, 0.0

    def _dead(self, message: str) -> EngineDeadError:
        return EngineDeadError(message, retry_after=self._loading)

    def _stuck(self) -> bool:
        return self._owes and self._silent > self.config.step_timeout

    # Its life

    async def _started(self) -> Handle:
        began = time.monotonic()
        handle = await Handle.start(self.config, self._starting)
        try:
            found = await handle.receive()
            assert isinstance(found, Found)
            if self._stats is None:
                self.tokenizer = await asyncio.to_thread(
                    Tokenizer.load,
                    Path(found.tokenizer),
                    chat_template=self.config.chat_template,
                )
            ready = await handle.receive()
            assert isinstance(ready, Ready)
        except BaseException:
            handle.kill()
            await handle.end()
            raise
        self._introduce(found.name, ready, self._restarts)
        self._loading = time.monotonic() - began
        self._owes, self._silent = False, 0.0
        self._handle = handle
        for command in self._standing():
            handle.send(command)
        return handle

    async def _supervise(self, handle: Handle | None) -> None:
        failures = 0
        while True:
            if handle is not None:
                since = time.monotonic()
                cause = await self._serve(handle)
                log.error("%s It is started again.", cause)
                failures = 0 if time.monotonic() - since > STEADY else failures
            await asyncio.sleep(DELAYS[min(failures, len(DELAYS) - 1)])
            failures += 1
            self._restarts += 1
            try:
                handle = await self._started()
                self._lost()
            except RadixServeError as error:
                handle = None
                log.error("the engine could not be started again: %s", error)
            except Exception:  # whatever it is, the next attempt may do better
                handle = None
                log.exception("the engine could not be started again")

    async def _serve(self, handle: Handle) -> str:
        """Pass on what the engine says until it is silent for good; returns why that is."""
        watching = asyncio.create_task(self._watch(handle))
        error = EngineDeadError("The engine has stopped.")
        try:
            while True:
                self._take(await handle.receive())
        except RadixServeError as cause:
            error = self._dead(f"The engine has died: {cause}")
            return str(error)
        except Exception as cause:
            log.exception("what the engine said was lost")
            error = self._dead(f"What the engine said was lost: {cause!r}.")
            return str(error)
        finally:
            # Not later: whoever asks from now on must not wait for a process that is gone.
            self._handle = None
            self._streams.fail(error)
            watching.cancel()
            await handle.end()

    def _take(self, news: News) -> None:
        if isinstance(news, StepNews):  # which follows whatever else it says
            self._learn(replace(news.stats, restarts=self._restarts))
            self._owes = news.stats.running + news.stats.waiting > 0
        if isinstance(news, Lost):
            self._lost()
        if isinstance(news, StepNews | Refusal | Lost | Reply):
            self._streams.take(news)
        self._silent = 0.0

    async def _watch(self, handle: Handle) -> None:
        """Kill the process when it is stuck: whoever waits for it would wait for ever."""
        tick = min(1.0, self.config.step_timeout / 4)
        while not self._stuck():
            await asyncio.sleep(tick)
            self._silent += tick
            if not self._owes and self._silent >= min(HEARTBEAT, self.config.step_timeout):
                with contextlib.suppress(EngineDeadError):  # which others find out
                    self._command(Ping())
        log.error("the engine has said nothing for %g s, when it had to", self.config.step_timeout)
        handle.kill()
