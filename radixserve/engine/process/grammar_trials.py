"""Grammars of strangers are tried in a process of their own before the engine hears of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import msgspec

from radixserve.engine.grammars import NO_GRAMMARS
from radixserve.engine.process.grammar_child import TOO_MUCH, Tokens, Trial
from radixserve.scheduling.grammar import Grammar
from radixserve.text.grammar import TokenTable

COMMAND = (sys.executable, "-c", "from radixserve.engine.process.grammar_child import main; main()")
REMEMBERED = 1024
"""Verdicts."""
STARTING, TRYING = 120.0, 10.0
"""Seconds until the process is given up, beginning and at one grammar; it bounds itself by the time
that it computes."""


class GrammarTrials:
    """Belongs to one event loop. The process is started for the first grammar."""

    def __init__(self, table: TokenTable | None):
        self._table = table
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._thread = ThreadPoolExecutor(1, "grammar trials")
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._closed = False

    async def fault(self, grammar: Grammar) -> str | None:
        """Why ``grammar`` cannot be, without a full stop; None if it can."""
        if self._table is None:
            return NO_GRAMMARS.rstrip(".")
        key = hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            loop = asyncio.get_running_loop()
            verdict = await loop.run_in_executor(self._thread, self._try, grammar)
            self._verdicts[key] = verdict
            while len(self._verdicts) > REMEMBERED:
                self._verdicts.popitem(last=False)
        return verdict or None

    async def close(self) -> None:
        """End the process, if there is one."""
        self._closed = True
        if self._process is not None:
            self._process.kill()  # also while a grammar is being tried
        await asyncio.to_thread(self._thread.shutdown)
        self._end()

    # On the thread

    def _try(self, grammar: Grammar) -> str:
        trial = msgspec.msgpack.encode(Trial(grammar.kind, grammar.text, grammar.frame))
        for _ in range(2):  # somebody may have ended the process since
            try:
                if self._connection is None:
                    self._connection = self._started()
                self._connection.send_bytes(trial)
                return _received(self._connection, TRYING).decode()
            except TimeoutError:
                self._end()
                break
            except (EOFError, OSError):
                self._end()
                if self._closed:
                    break
        return TOO_MUCH

    def _started(self) -> Connection:
        table = self._table
        assert table is not None, "the tokenizer has a table"
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        ours.send_bytes(
            msgspec.msgpack.encode(
                Tokens(
                    list(table.tokens),
                    list(table.special_token_ids),
                    list(table.eos_token_ids),
                    table.backend.to_str(),
                )
            )
        )
        _received(ours, STARTING)
        return ours

    def _end(self) -> None:
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _received(connection: Connection, seconds: float) -> bytes:
    if not connection.poll(seconds):
        raise TimeoutError
    return connection.recv_bytes()
