"""The baseline: static batching, the way of servers before Orca, on the same engine.

A batch takes those who have arrived when the one before it has ended, at most ``size``, in order of
arrival. All its prompts are padded to the longest of them and all its answers to the longest of
them (the padding is computed as tokens are), nobody joins while it runs, and its answers are given
out when the last of it has ended; only the first token is seen earlier. It runs against a server
without prefix cache that takes the whole batch at once.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from tqdm import tqdm

from bench.client import Connection, Run, Sample
from bench.workloads import VOCABULARY, Conversation, Turn, Workload

PAD = VOCABULARY[0]


def padded(turns: list[Turn]) -> list[Turn]:
    """The turns as one static batch: the longest prompt and the longest answer for all."""
    prompt = max(len(turn.prompt) for turn in turns)
    output = max(turn.output for turn in turns)
    return [Turn([PAD] * (prompt - len(t.prompt)) + t.prompt, output) for t in turns]


async def drive_static(connection: Connection, workload: Workload, size: int) -> Run:
    """As ``bench.client.drive``, in static batches of at most ``size``; one turn a conversation."""
    run = Run(workload, f"static-{size}")
    queue = sorted(workload.conversations, key=lambda each: each.start)
    before = await connection.counters()
    start = perf_counter()
    with tqdm(
        total=len(queue), desc=f"{workload.name} [{run.server}]", leave=False, disable=None
    ) as bar:
        while queue:
            await asyncio.sleep(start + queue[0].start - perf_counter())
            now = perf_counter() - start
            batch = [each for each in queue[:size] if each.start <= now] or queue[:1]
            del queue[: len(batch)]
            run.samples.extend(await _run(connection, batch, start))
            run.prompts.extend(each.turns[0].prompt for each in batch)
            bar.update(len(batch))
    run.seconds = perf_counter() - start
    after = await connection.counters()
    run.counters = {name: after[name] - before[name] for name in after}
    return run


async def _run(connection: Connection, batch: list[Conversation], start: float) -> list[Sample]:
    turns = [each.turns[0] for each in batch]
    samples = await asyncio.gather(
        *(
            connection.ask(turn, "static", start, sent=each.start)
            for each, turn in zip(batch, padded(turns), strict=True)
        )
    )
    end = max(each.last for each in samples)
    return [
        Sample(each.sent, each.first, end, len(turn.prompt), turn.output)
        for each, turn in zip(samples, turns, strict=True)
    ]
