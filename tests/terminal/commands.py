"""``radixserve`` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
HANG = 30.0
PROGRAM = """
import asyncio, sys
from radixserve import cli
from tests.server.fake import FakeFrontend

class Slow(FakeFrontend):
    async def start(self):
        print("loading", flush=True)
        await asyncio.Event().wait()

cli.make_frontend = lambda config: {frontend}()
cli.main()
"""


@contextmanager
def running(
    *arguments: str, frontend: str = "FakeFrontend", stdout: int | IO[bytes] = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """``radixserve serve`` with a fake engine, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(frontend=frontend), "serve", *arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_with(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if word in line)
