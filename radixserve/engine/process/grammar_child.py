"""What runs in the process that tries grammars, from its first line to its last.

It knows the tokens of the model and forks for each grammar, so that one that does not end, or ends
the process, costs nothing but its fork.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection

import msgspec
import tokenizers

from radixserve.text.grammar import GrammarCompiler, GrammarError, TokenTable

SECONDS = 1.2
"""Of a processor that compiling a grammar may take."""
MEMORY = 2**30
"""Bytes that it may take."""
TOO_MUCH = "it takes too long to compile, or too much memory"


class Tokens(msgspec.Struct, frozen=True):
    """The first message: what ``TokenTable`` is made of."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_ids: list[int]
    tokenizer: str
    """Its tokenizer.json."""


class Trial(msgspec.Struct, frozen=True):
    """Every other message; it is answered by a reason why the grammar cannot be, or by nothing."""

    kind: str
    text: str
    frame: str


def main() -> None:
    """Try grammars until the other end of the connection is gone."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    try:
        compiler = _compiler(msgspec.msgpack.decode(connection.recv_bytes(), type=Tokens))
        connection.send_bytes(b"")
        while True:
            trial = msgspec.msgpack.decode(connection.recv_bytes(), type=Trial)
            connection.send_bytes(_tried(compiler, trial).encode())
    except (EOFError, OSError):
        pass
    os._exit(0)


def _compiler(told: Tokens) -> GrammarCompiler:
    backend = tokenizers.Tokenizer.from_str(told.tokenizer)
    table = TokenTable(told.tokens, told.special_token_ids, told.eos_token_ids, backend)
    return GrammarCompiler(table)


def _tried(compiler: GrammarCompiler, trial: Trial) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _bound()
            os.write(writing, _verdict(compiler, trial).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        verdict = pipe.read()
    os.waitpid(child, 0)
    return verdict[1:].decode() if verdict else TOO_MUCH


def _verdict(compiler: GrammarCompiler, trial: Trial) -> str:
    """With one more character in front, so that it is never nothing."""
    try:
        compiler.compile(trial.kind, trial.text, trial.frame)
    except GrammarError as error:
        return f"-{error}"
    except MemoryError:
        return f"-{TOO_MUCH}"
    return "+"


def _bound() -> None:
    """From now on this process ends when it has taken too much."""
    # Without a handler, so that it ends in the middle of whatever library it is in.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where there is no /proc, time alone is bounded
        with open("/proc/self/statm", encoding="ascii") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
