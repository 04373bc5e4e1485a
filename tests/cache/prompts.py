"""Random prompts that have much in common."""

from __future__ import annotations

import random

REMEMBERED = 12


class Prompts:
    """Most repeat, extend, cut or change one of the last few."""

    def __init__(self, rng: random.Random, page_size: int):
        self.rng = rng
        self.size = page_size
        self.last: list[list[int]] = []

    def draw(self) -> list[int]:
        rng, size = self.rng, self.size
        prompt: list[int] = []
        if self.last and rng.random() < 0.9:
            prompt = list(rng.choice(self.last))
            kind = rng.random()
            if kind < 0.35:
                prompt = prompt[: rng.randrange(len(prompt)) + 1]
            if 0.2 < kind < 0.45:
                prompt[rng.randrange(len(prompt))] = rng.randrange(4)
            if kind > 0.65:
                prompt += rng.choices(range(3), k=rng.randrange(1, 2 * size + 2))
        prompt = prompt[: 6 * size] or rng.choices(range(3), k=rng.randrange(1, 4 * size + 2))
        if len(self.last) < REMEMBERED:
            self.last.append(prompt)
        else:
            self.last[rng.randrange(REMEMBERED)] = prompt
        return prompt

    def remember(self, tokens: list[int]) -> None:
        """``tokens`` take the place of the oldest."""
        self.last.append(tokens)
        self.last.pop(0)
