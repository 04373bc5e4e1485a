"""The engine on a thread of its own, for programs that live on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.answer import Answer
from radixserve.engine.core import EngineCore, Runner
from radixserve.engine.frontend import ModelCard, TextDelta, TextRequest
from radixserve.engine.garbage import spare_what_is_loaded
from radixserve.engine.messages import EngineStats, GenerationDelta, GenerationRequest
from radixserve.engine.model_files import prepare
from radixserve.errors import EngineDeadError, OverloadedError, RadixServeError
from radixserve.model import ranks
from radixserve.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Command = Callable[[EngineCore], None]
Inbox = asyncio.Queue[GenerationDelta | Exception]


class AsyncLLM:
    """Implements ``radixserve.engine.frontend.Frontend``.

    One thread owns the ``EngineCore``: it takes commands between steps, and hands what a step
    brought to the event loop. Nothing else touches the core.
    """

    card: ModelCard
    tokenizer: Tokenizer

    def __init__(self, config: EngineConfig):
        self.config = config
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._inboxes: dict[str, Inbox] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stats: EngineStats | None = None
        self._closing = contextlib.ExitStack()

    async def start(self) -> None:
        """Load the model and start the thread.

        Raises:
            ConfigError: the settings cannot work on this machine.
            ModelError: the model cannot be found, read or served.
        """
        runner, tokenizer, name = await asyncio.to_thread(self._load)
        spare_what_is_loaded()
        await self.start_with(runner, tokenizer, name)

    async def start_with(self, runner: Runner, tokenizer: Tokenizer, name: str) -> None:
        """Start with parts that are loaded already."""
        self.tokenizer = tokenizer
        self.card = ModelCard(
            name=self.config.served_model_name or name,
            max_model_len=runner.info.max_model_len,
            vocab_size=runner.info.vocab_size,
            created=int(time.time()),
            defaults=runner.info.sampling_defaults,
        )
        core = EngineCore(self.config, runner)
        self._stats = core.stats()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(core,), name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the step that it is in; requests in flight get an error."""
        if self._thread is not None:
            self._commands.put(None)
            await asyncio.to_thread(self._thread.join)
        self._closing.close()

    def healthy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stats(self) -> EngineStats:
        if self._stats is None:
            raise EngineDeadError("The engine has not been started.")
        return self._stats

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        answers = {
            answer.id: answer
            for answer in (Answer(index, request, self.tokenizer) for index in range(request.n))
        }
        most = self.config.max_num_seqs + self.config.max_queue
        if len(self._inboxes) + request.n > most:
            # The engine would say so too, but only when its step has ended.
            raise OverloadedError(f"{len(self._inboxes)} answers are under way; try again later.")
        inbox: Inbox = asyncio.Queue()
        sequences = [answer.sequence() for answer in answers.values()]
        for identity in answers:
            self._inboxes[identity] = inbox
        try:
            self._command(lambda core: self._add(core, sequences))
            while answers:
                news = await inbox.get()
                if isinstance(news, Exception):
                    raise news
                answer = answers.get(news.id)
                if answer is None:
                    continue
                delta = answer.take(news)
                if answer.finished:
                    self._forget(news.id, running=news.finish is None)
                    del answers[news.id]
                yield delta
        finally:
            for identity in answers:
                self._forget(identity, running=True)

    # On the event loop

    def _command(self, command: Command) -> None:
        if not self.healthy():
            raise EngineDeadError("The engine has stopped.")
        self._commands.put(command)

    def _forget(self, identity: str, *, running: bool) -> None:
        self._inboxes.pop(identity, None)
        if running:
            with contextlib.suppress(EngineDeadError):
                self._command(lambda core: _abort(core, identity))

    def _deliver(self, deltas: list[GenerationDelta], stats: EngineStats) -> None:
        self._stats = stats
        for delta in deltas:
            inbox = self._inboxes.get(delta.id)
            if inbox is not None:
                inbox.put_nowait(delta)

    def _refuse(self, identity: str, error: Exception) -> None:
        inbox = self._inboxes.get(identity)
        if inbox is not None:
            inbox.put_nowait(error)

    def _refuse_all(self, error: Exception) -> None:
        for inbox in set(self._inboxes.values()):
            inbox.put_nowait(error)

    # On the engine's thread

    def _load(self) -> tuple[Runner, Tokenizer, str]:
        files = prepare(self.config)
        template = Path(self.config.chat_template) if self.config.chat_template else None
        tokenizer = Tokenizer.load(files.tokenizer, chat_template=template)
        runner = ranks.load(files, self.config, eos_token_ids=tokenizer.eos_token_ids)
        self._closing.callback(runner.close)
        return runner, tokenizer, files.name

    def _run(self, core: EngineCore) -> None:
        error: Exception = EngineDeadError("The engine has stopped.")
        try:
            while self._obey(core):
                deltas = core.step()
                self._post(self._deliver, deltas, core.stats())
        except Exception as fault:
            log.exception("the engine has died")
            error = EngineDeadError(f"The engine has died: {fault}")
        finally:
            self._post(self._refuse_all, error)

    def _obey(self, core: EngineCore) -> bool:
        """Take the commands that have come, waiting for one while there is nothing to compute.

        Returns whether to go on.
        """
        while True:
            try:
                command = self._commands.get(block=core.idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(core)
            if core.idle:
                self._post(self._deliver, [], core.stats())

    def _add(self, core: EngineCore, sequences: list[GenerationRequest]) -> None:
        for sequence in sequences:
            try:
                core.add(sequence)
            except RadixServeError as error:
                self._post(self._refuse, sequence.id, error)
                return

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        # The loop may be closed already when the process is going down.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)


def _abort(core: EngineCore, identity: str) -> None:
    core.abort(identity)
