"""What runs in the process that tries grammars, from its first line to its last.

It knows the tokens of the model and forks for each grammar, so that one that does not end, or ends
the process, costs nothing but its fork.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

import msgspec
import tokenizers

from radixserve.bounded import bounded
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
    verdict = bounded(lambda: _verdict(compiler, trial), seconds=SECONDS, memory=MEMORY)
    return TOO_MUCH if verdict is None else verdict.decode()


def _verdict(compiler: GrammarCompiler, trial: Trial) -> bytes:
    try:
        compiler.compile(trial.kind, trial.text, trial.frame)
    except GrammarError as error:
        return str(error).encode()
    except MemoryError:
        return TOO_MUCH.encode()
    return b""
