"""A model that computes all it is asked to, and then says what it was told to say."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from radixserve.config import EngineConfig
from radixserve.engine.async_llm import AsyncLLM
from radixserve.engine.core import Launched, Runner
from radixserve.engine.grammars import Grammars
from radixserve.engine.model_files import prepare
from radixserve.model.info import ModelInfo
from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack


class Script:
    """``runner`` with answers that are given to it, each to the next request that begins."""

    launch: Callable[[StepPlan], Launched] | None = None

    def __init__(self, runner: Runner):
        self.info = runner.info
        self.close = runner.close
        self.next: deque[Sequence[int]] = deque()
        self._runner = runner
        self._said: dict[str, Sequence[int]] = {}

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        sampled = self._runner.execute(plan)
        return [
            tuple(self._say(row.request_id, row.generated) for _ in chosen)
            for row, chosen in zip(plan.rows, sampled, strict=True)
        ]

    def _say(self, request: str, index: int) -> Sampled:
        if request not in self._said:
            self._said[request] = self.next.popleft()
        return Sampled(self._said[request][index])


class Blank:
    """A runner that computes nothing, for what does not depend on any weights."""

    launch = None

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer):
        assert config.num_pages is not None
        assert config.max_model_len is not None
        self.info = ModelInfo(
            vocab_size=tokenizer.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=frozenset(tokenizer.eos_token_ids),
            num_pages=config.num_pages,
            dtype="none",
            backend="none",
            kv_bytes_per_token=0,
            sampling_defaults={},
        )

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        return [(Sampled(0),) if row.sampling else () for row in plan.rows]

    def close(self) -> None:
        """There is nothing to end."""


class Scripted(AsyncLLM):
    """An engine whose answers are told to it beforehand.

    Args:
        computes: Whether the model is loaded, and computes all the same.
    """

    def __init__(self, config: EngineConfig, *, computes: bool = True):
        super().__init__(config)
        self._computes = computes

    def say(self, answer: Sequence[int]) -> None:
        """The next request is answered with these tokens, and ends there."""
        end = self.tokenizer.eos_token_id
        assert end is not None
        self._script.next.append([*answer, end])

    def _load(self) -> tuple[Runner, Tokenizer, Grammars, str]:
        if self._computes:
            runner, tokenizer, grammars, name = super()._load()
        else:
            files = prepare(self.config)
            tokenizer = Tokenizer.load(files.tokenizer, chat_template=self.config.chat_template)
            runner, grammars = Blank(self.config, tokenizer), Grammars(tokenizer.table())
            name = files.name
        self._script = Script(runner)
        return self._script, tokenizer, grammars, name


def cut_at_random(
    text: str, tokenizer: Tokenizer, rng: random.Random, *, letters: int = 25
) -> list[int]:
    """Tokens of ``text``, which is cut every so many letters or so, and tokenized piece by piece:
    in about as many places the tokens are not those that the whole text has."""
    cuts = sorted(rng.sample(range(1, len(text)), len(text) // letters)) if text else []
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [
        token
        for piece in pieces
        for token in unpack(tokenizer.encode(piece, add_special_tokens=False))
    ]
