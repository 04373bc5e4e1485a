"""The engine on a thread of its own, for programs that live on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore, Runner
from radixserve.engine.garbage import spare_what_is_loaded
from radixserve.engine.grammars import Grammars
from radixserve.engine.loop import EngineLoop
from radixserve.engine.messages import (
    Command,
    Lost,
    News,
    RankLost,
    Refusal,
    Reply,
    StepNews,
    Stop,
)
from radixserve.engine.model_files import prepare, settle
from radixserve.engine.stats import ready
from radixserve.engine.streams import Asking
from radixserve.errors import EngineDeadError
from radixserve.model import ranks
from radixserve.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class AsyncLLM(Asking):
    """Implements ``radixserve.engine.frontend.Frontend`` in the caller's process.

    One thread owns the ``EngineCore``: it takes commands between steps, and hands what a step
    brought to the event loop. Nothing else touches the core.
    """

    def __init__(self, config: EngineConfig):
        self.config = config
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._over = False
        """Whether the thread takes no command any more; it may still be there for a moment."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = contextlib.ExitStack()

    async def start(self) -> None:
        """Load the model and start the thread.

        Raises:
            ConfigError: the settings cannot work on this machine.
            ModelError: the model cannot be found, read or served.
        """
        runner, tokenizer, grammars, name = await asyncio.to_thread(self._load)
        spare_what_is_loaded()
        await self.start_with(runner, tokenizer, name, grammars)

    async def start_with(
        self, runner: Runner, tokenizer: Tokenizer, name: str, grammars: Grammars | None = None
    ) -> None:
        """Start with parts that are loaded already."""
        self.tokenizer = tokenizer
        core = EngineCore(self.config, runner, grammars or Grammars(tokenizer.table()))
        self._introduce(name, ready(runner.info, self.config, core.stats()))
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(core,), name="engine", daemon=True)
        self._thread.start()
        for command in self._standing():
            self._commands.put(command)

    async def stop(self) -> None:
        """End the thread after the step that it is in; requests in flight get an error."""
        if self._thread is not None:
            self._commands.put(Stop())
            await asyncio.to_thread(self._thread.join)
        await self._end_trials()
        self._closing.close()

    def healthy(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._over

    # On the event loop

    def _command(self, command: Command) -> None:
        if not self.healthy():
            raise EngineDeadError("The engine has stopped.")
        self._commands.put(command)

    def _take(self, news: StepNews | Refusal | Lost | Reply) -> None:
        if isinstance(news, StepNews):
            self._learn(news.stats)
        if isinstance(news, Lost):
            self._lost()
        try:
            self._streams.take(news)
        except Exception as error:
            log.exception("what the engine said was lost")
            self._commands.put(Stop())
            self._end(EngineDeadError(f"What the engine said was lost: {error!r}."))

    def _end(self, error: Exception) -> None:
        self._over = True
        self._streams.fail(error)

    # On the engine's thread

    def _load(self) -> tuple[Runner, Tokenizer, Grammars, str]:
        self.config = settle(self.config)
        files = prepare(self.config)
        tokenizer = Tokenizer.load(files.tokenizer, chat_template=self.config.chat_template)
        runner = ranks.load(
            files,
            self.config,
            eos_token_ids=tokenizer.eos_token_ids,
            lost=lambda reason: self._commands.put(RankLost(reason)),
        )
        self._closing.callback(runner.close)
        grammars = Grammars(tokenizer.table())
        grammars.prepare()
        return runner, tokenizer, grammars, files.name

    def _run(self, core: EngineCore) -> None:
        error: Exception = EngineDeadError("The engine has stopped.")
        try:
            EngineLoop(core, self._get, self._send).run()
        except Exception as fault:
            log.exception("the engine has died")
            error = EngineDeadError(f"The engine has died: {fault}")
        finally:
            self._post(self._end, error)

    def _get(self, wait: bool) -> Command:
        return self._commands.get(block=wait)

    def _send(self, news: News) -> None:
        self._post(self._take, news)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        # The loop may be closed already when the process is going down.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)
