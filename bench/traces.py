"""Recorded traffic, scaled down: coding agents and a chat service.

The recordings hold no text but ids of blocks; a block's tokens are drawn from its id. Agents are
the sessions of kv-cache-tester (64 tokens a block, closed loop), chat is Mooncake's trace (512
tokens a block, prefix-chained, FAST 2025). Without the files, records of the same form are made up.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from bench.workloads import Conversation, Turn, Workload, drawn

Record = dict[str, Any]

AGENT_BLOCK = 64
CHAT_BLOCK = 512


def agents(
    data: Path | None,
    *,
    sessions: int,
    requests: int,
    block: int,
    longest: int,
    pace: float,
    seed: int = 0,
) -> Workload:
    """The first ``requests`` of each session; 64 tokens become ``block``, think times ``pace``.

    What all sessions share (tools and system prompt) is the same tokens in all of them. Sessions
    whose prompts exceed ``longest`` tokens are left out.
    """
    source = records(data / "agents/coding_sessions.jsonl.gz") if data else _made_up_sessions(seed)
    conversations: list[Conversation] = []
    for session in source:
        turns = _session(session, requests, block, pace, seed)
        if turns and max(len(turn.prompt) for turn in turns) <= longest:
            conversations.append(Conversation(turns, start=0.3 * len(conversations)))
        if len(conversations) == sessions:
            break
    origin = "recorded" if data else "made up"
    scale = (
        f"{origin}: {len(conversations)} sessions, first {requests} requests, tokens x "
        f"{block}/{AGENT_BLOCK}, think times x {pace:g}"
    )
    return Workload("agents", conversations, scale=scale)


def _session(session: Record, requests: int, block: int, pace: float, seed: int) -> list[Turn]:
    common = (session["tool_tokens"] + session["system_tokens"]) // AGENT_BLOCK
    calls = [each for each in session["requests"] if "in" in each][:requests]
    ids: list[int] = []
    turns: list[Turn] = []
    for call in calls:
        ids = ids[: call["keep"]] + call["add"]
        names: list[Hashable] = [
            ("common", at) if at < common else (session["id"], each) for at, each in enumerate(ids)
        ]
        output = min(max(round(call["out"] * block / AGENT_BLOCK), 2), 64)
        pause = call.get("think_time", 0.0) * pace if turns else 0.0
        turns.append(Turn(_tokens(names, block, seed), output, pause))
    return turns


def chat_trace(
    data: Path | None,
    *,
    requests: int,
    block: int,
    longest: int,
    rate: float,
    every: int = 1,
    seed: int = 0,
) -> Workload:
    """Whole conversations of the trace, one in ``every``, with the gaps of its clock.

    512 tokens become ``block``, the clock is scaled to ``rate`` requests a second on average;
    conversations with a prompt of
    more than ``longest`` tokens are left out.
    """
    source = records(data / "mooncake/conversation_trace.jsonl") if data else _made_up_chat(seed)
    talks: dict[tuple[int, ...], list[Record]] = {}
    for record in source:
        # The first block is common to many; the second tells conversations apart.
        talks.setdefault(tuple(record["hash_ids"][:2]), []).append(record)
    fitting = [
        talk
        for talk in talks.values()
        if max(each["input_length"] for each in talk) * block <= longest * CHAT_BLOCK
    ]
    chosen = sorted(itertools.chain(*fitting[::every]), key=lambda each: each["timestamp"])
    chosen = chosen[:requests]
    moments = [each["timestamp"] / 1000 for each in chosen]
    pace = len(moments) / rate / max(moments[-1] - moments[0], 1e-3) if moments else 0.0
    conversations = []
    for record, moment in zip(chosen, moments, strict=True):
        length = max(round(record["input_length"] * block / CHAT_BLOCK), 1)
        prompt = _tokens(record["hash_ids"], block, seed)[:length]
        output = min(max(round(record["output_length"] * block / CHAT_BLOCK), 2), 64)
        start = (moment - moments[0]) * pace
        conversations.append(Conversation([Turn(prompt, output)], start))
    origin = "recorded" if data else "made up"
    scale = (
        f"{origin}: {len(conversations)} requests, tokens x {block}/{CHAT_BLOCK}, "
        f"time x {pace:.2g}, one conversation in {every}"
    )
    return Workload("chat-trace", conversations, scale=scale)


def _tokens(names: list[Any], block: int, seed: int) -> list[int]:
    return [token for name in names for token in drawn((seed, name), block)]


def records(path: Path) -> Iterator[Record]:
    """The JSON objects of a file, a line each; it may be compressed."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _made_up_sessions(seed: int) -> Iterator[Record]:
    """Sessions of 12,800 common tokens that grow by 1 to 20 blocks a request."""
    rng = random.Random(seed)
    for number in itertools.count():
        ids = list(range(1, 1 + 200 + rng.randint(20, 200)))
        calls: list[Record] = []
        known = 0
        for _ in range(32):
            calls.append(
                {
                    "in": len(ids) * AGENT_BLOCK,
                    "out": rng.randint(60, 600),
                    "think_time": rng.uniform(2.0, 20.0),
                    "keep": known,
                    "add": ids[known:],
                }
            )
            known = len(ids)
            ids = ids + list(range(known + 1, known + 1 + rng.randint(1, 20)))
        yield {
            "id": f"made-up-{number}",
            "tool_tokens": 10_000,
            "system_tokens": 2_800,
            "requests": calls,
        }


def _made_up_chat(seed: int) -> Iterator[Record]:
    """300 conversations of 1 to 5 turns that begin with the same block, over 100 seconds."""
    rng = random.Random(seed)
    fresh = itertools.count(1)
    records: list[Record] = []
    for _ in range(300):
        ids = [0]
        clock = rng.uniform(0, 100_000)
        for _ in range(rng.randint(1, 5)):
            ids = ids + [next(fresh) for _ in range(rng.randint(1, 8))]
            length = len(ids) * CHAT_BLOCK - rng.randint(0, CHAT_BLOCK - 1)
            records.append(
                {
                    "timestamp": clock,
                    "input_length": length,
                    "output_length": rng.randint(50, 800),
                    "hash_ids": ids,
                }
            )
            clock += rng.uniform(5_000, 30_000)
    yield from sorted(records, key=lambda each: each["timestamp"])
