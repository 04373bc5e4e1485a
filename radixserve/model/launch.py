"""Steps launched one behind the other: the tokens of one stay on the device for the next.

Nothing waits for the device but ``collect``, and that for the end of its own step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
import torch

from radixserve.attention.arrays import PagedBatch, Unknown, paged_batch
from radixserve.attention.staging import Device, Event, Staging
from radixserve.cache.pages import PageCopy
from radixserve.model.device_sampler import Choices, Chosen, draws_of, left_to_host
from radixserve.model.sampler import sample
from radixserve.model.scorer import Scoring, joined
from radixserve.scheduling.plan import UNKNOWN, Row, Sampled, StepPlan

Compute = Callable[[Sequence[PageCopy], PagedBatch], torch.Tensor]
"""Queues copies, then the rows of a batch; returns the logits, [S, vocabulary], of its
``sample_rows``. It fills in ``PagedBatch.unknown`` and does not wait for the device."""


class LaunchedStep:
    """A step that the device computes."""

    def __init__(
        self,
        rows: Sequence[Row],
        choices: Choices,
        chosen: Chosen,
        counting: Callable[[], list[tuple[Sampled, ...]]] | None,
        scored: Callable[[], list[tuple[Sampled, ...]]],
        done: Event,
    ):
        self._rows, self._choices, self._chosen = rows, choices, chosen
        self._counting, self._scored, self._done = counting, scored, done

    @property
    def followable(self) -> bool:
        """Whether all of its tokens are chosen on the device."""
        return self._counting is None

    def collect(self) -> list[tuple[Sampled, ...]]:
        """Wait for its end. One entry a row: its token and those of its forks, if it samples, then
        the tokens that it scores."""
        self._done.synchronize()
        counted = iter([] if self._counting is None else self._counting())
        draws = iter(self._choices.sampled(self._chosen))
        sampled = (
            next(counted)
            if left_to_host(row)
            else tuple(next(draws) for _ in range(1 + len(row.forks)))
            for row in self._rows
            if row.sampling is not None
        )
        return joined(self._rows, sampled, self._scored())


class Launcher:
    """Launches steps: ``radixserve.engine.core.Runner.launch``.

    Args:
        compute: the model.
        device: where it runs; what is queued there is done in order.
        page_size: tokens a page.
        vocabulary: logits a row.
        eos_token_ids: what may not be chosen before ``min_tokens``.
    """

    def __init__(
        self,
        compute: Compute,
        device: Device,
        *,
        page_size: int,
        vocabulary: int,
        eos_token_ids: Collection[int],
    ):
        self._compute, self._device = compute, device
        self._page_size, self._vocabulary = page_size, vocabulary
        self._eos_token_ids = eos_token_ids
        self._staging = Staging(device)
        self._tokens: torch.Tensor | None = None
        """Those that the newest step chose."""
        self._places: dict[str, int] = {}
        """Where among them that of each request is, unless others fork off it: it waits."""

    def __call__(self, plan: StepPlan) -> LaunchedStep:
        """Queue ``plan`` behind the step that was launched before.

        Raises:
            KeyError: a row begins with a token that the step before did not choose on the device.
        """
        batch = paged_batch(plan, self._page_size)
        sampling = [row for row in plan.rows if row.sampling is not None]
        counting = [at for at, row in enumerate(sampling) if left_to_host(row)]
        draws = [draw for draw in draws_of(sampling) if draw.at not in counting]
        choices = Choices(draws, self._vocabulary, self._eos_token_ids)
        scoring = Scoring(plan, self._vocabulary)
        places = np.flatnonzero(batch.token_ids.numpy() < 0).astype(np.int32)
        sources = [self._places[row.request_id] for row in plan.rows if row.tokens == UNKNOWN]
        # Ahead of the step's own work, or the next launch would wait for all of it.
        self._staging.wait()
        more = (places, np.array(sources, np.int32), np.array(counting, np.int32), scoring.targets)
        staged = self._staging.load([*choices.arrays, *more])
        *loaded, at, source, counted, targets = (sent for _, sent in staged)
        self._staging.close()
        if sources:
            assert self._tokens is not None, "a step was launched before"
            batch.unknown = Unknown(at.long(), self._tokens.index_select(0, source))
        computed = self._compute(plan.copies, batch)
        logits = computed[: len(sampling)]
        chosen = choices.choose(logits, loaded)
        self._tokens = chosen.tokens
        self._places = {draw.row.request_id: i for i, draw in enumerate(draws)}
        received = Chosen(
            self._device.receive(chosen.tokens),
            self._device.receive(chosen.verdicts),
            [self._device.receive(each) for each in chosen.logprobs],
        )
        scored: Callable[[], list[tuple[Sampled, ...]]] = list
        if len(scoring.targets):
            scores = scoring.score(computed[len(sampling) :], targets.long())
            scored = partial(scoring.sampled, self._device.receive(scores))
        done = self._device.event()
        done.record()
        later = None
        if counting:
            kept = logits.index_select(0, counted)
            rows = [sampling[index] for index in counting]
            later = partial(sample, kept, rows, self._eos_token_ids)
        return LaunchedStep(plan.rows, choices, received, later, scored, done)
