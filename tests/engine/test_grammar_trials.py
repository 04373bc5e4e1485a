"""Grammars are tried where they can do no harm."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from radixserve.engine.process.grammar_child import TOO_MUCH
from radixserve.engine.process.grammar_trials import GrammarTrials
from radixserve.scheduling.grammar import Grammar
from radixserve.text.tokenizer import Tokenizer
from tests.text.tiny import tiny_tokenizer_dir

YES = Grammar("choice", '["yes"]')
CHAIN = "\n".join(f"r{number}: r{number + 1}" for number in range(9000))
CRASHES = Grammar("grammar", f'start: r0\n{CHAIN}\nr9000: "a"')
"""So deep that the library runs out of stack."""
ENDLESS = Grammar(
    "grammar",
    "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(9000)) + '\nr9000 ::= "a"',
)
"""Its conversion is quadratic."""


def tried(directory: Path, scenario: Callable[[GrammarTrials], Awaitable[None]]) -> None:
    tiny_tokenizer_dir(directory)

    async def run() -> None:
        trials = GrammarTrials(Tokenizer.load(directory).table())
        try:
            await scenario(trials)
        finally:
            await trials.close()

    asyncio.run(run())


def test_valid_ones_pass_and_others_get_a_reason(tmp_path: Path):
    async def scenario(trials: GrammarTrials) -> None:
        assert await trials.fault(YES) is None
        fault = await trials.fault(Grammar("regex", "*a"))
        assert fault == "repetition operator missing expression"

    tried(tmp_path, scenario)


def test_one_that_ends_or_hangs_its_process_is_refused_and_the_next_is_tried(tmp_path: Path):
    async def scenario(trials: GrammarTrials) -> None:
        assert await trials.fault(YES) is None
        assert trials._process is not None
        pid = trials._process.pid
        assert await trials.fault(CRASHES) == TOO_MUCH
        assert await trials.fault(ENDLESS) == TOO_MUCH
        assert await trials.fault(Grammar("choice", '["no"]')) is None
        assert trials._process.pid == pid, "a fork bears the harm"

    tried(tmp_path, scenario)


def test_a_verdict_is_remembered(tmp_path: Path):
    async def scenario(trials: GrammarTrials) -> None:
        asked = 0
        really = trials._try

        def counted(grammar: Grammar) -> str:
            nonlocal asked
            asked += 1
            return really(grammar)

        trials._try = counted  # type: ignore[method-assign]
        for _ in range(3):
            assert await trials.fault(YES) is None
            assert await trials.fault(Grammar("regex", "(")) == "unclosed group"
        assert asked == 2

    tried(tmp_path, scenario)


def test_a_process_that_was_killed_is_started_again(tmp_path: Path):
    async def scenario(trials: GrammarTrials) -> None:
        assert await trials.fault(YES) is None
        assert trials._process is not None
        os.kill(trials._process.pid, signal.SIGKILL)
        assert await trials.fault(Grammar("choice", '["no"]')) is None

    tried(tmp_path, scenario)


def test_closing_ends_the_process_and_without_one_does_nothing(tmp_path: Path):
    async def scenario(trials: GrammarTrials) -> None:
        await trials.fault(YES)
        process = trials._process
        assert process is not None
        await trials.close()
        assert process.returncode is not None

    tried(tmp_path, scenario)


@pytest.mark.parametrize("grammar", [YES, Grammar("regex", "*a")])
def test_without_a_table_none_can_be(grammar: Grammar):
    async def scenario() -> None:
        trials = GrammarTrials(None)
        assert "cannot have a form" in (await trials.fault(grammar) or "")
        await trials.close()

    asyncio.run(scenario())
