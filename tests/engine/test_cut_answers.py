"""An answer that is cut, by a stop string or by time, ends once it is known what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from radixserve.cache.terms import Keeping, Kept, Mark
from radixserve.engine import streams
from radixserve.engine.frontend import TextDelta
from radixserve.engine.messages import Abort, Command, GenerationDelta, StepNews, Usage
from radixserve.engine.streams import Deadline, Streams
from radixserve.errors import EngineDeadError
from radixserve.scheduling.plan import Sampled
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import unpack
from tests.engine.simulated import ask
from tests.server.fake import FakeFrontend
from tests.text.tiny import tiny_tokenizer_dir

ID = "r/0"


def news(**fields: Any) -> StepNews:
    return StepNews([GenerationDelta(id=ID, **fields)], FakeFrontend().stats())


def ended(kept: Kept | None) -> Callable[[Streams], None]:
    """The engine has gone on by three tokens before it heard of the end."""
    return lambda streams: streams.take(news(finish="abort", usage=Usage(9, 7, 0, kept=kept)))


def late(streams: Streams) -> None:
    streams._inboxes[ID].put_nowait(Deadline())


async def cut(
    tokenizer: Tokenizer, then: Callable[[Streams], None], by: str = "seen", **fields: Any
) -> tuple[list[TextDelta], list[Command]]:
    """What comes of an answer of four tokens that ends with the stop string, or there in time, and
    what the engine is told; ``then`` is what happens next."""
    sent: list[Command] = []
    streams = Streams(tokenizer, 8, sent.append)
    request = ask(tokenizer, stop=("seen",) if by == "seen" else (), **fields)

    async def collected() -> list[TextDelta]:
        return [delta async for delta in streams.generate(request)]

    collecting = asyncio.create_task(collected())
    await asyncio.sleep(0)
    tokens = unpack(tokenizer.encode("seen", add_special_tokens=False))
    for number, token in enumerate(tokens):
        streams.take(news(sampled=(Sampled(token),), usage=Usage(9, number + 1, 0)))
    if by == "deadline":
        late(streams)
    while not any(isinstance(each, Abort) for each in sent):
        await asyncio.sleep(0)
    then(streams)
    return await collecting, sent


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    tiny_tokenizer_dir(tmp_path)
    return Tokenizer.load(tmp_path)


KEEP = {"keeping": Keeping((Mark(None, 60),))}


@pytest.mark.parametrize(("by", "finish"), [("seen", "stop"), ("deadline", "length")])
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Kept("granted", 15), Kept("granted", 13)),
        (Kept("partial", 14), Kept("granted", 13)),
        (Kept("partial", 8), Kept("partial", 8)),
        (Kept("refused", 0), Kept("refused", 0)),
        (None, None),
    ],
)
def test_what_is_kept_of_the_answer_is_told_and_not_of_what_came_behind_it(
    tokenizer: Tokenizer, by: str, finish: str, said: Kept | None, told: Kept | None
):
    deltas, sent = asyncio.run(cut(tokenizer, ended(said), by, **KEEP))
    assert [each.finish for each in deltas if each.finish] == [finish]
    assert (deltas[-1].stop, deltas[-1].usage.completion_tokens) == (by, 4)
    assert deltas[-1].usage.kept == told
    assert [each.id for each in sent if isinstance(each, Abort)] == [ID]


def dead(streams: Streams) -> None:
    streams.fail(EngineDeadError("The engine has died."))


def twice_late(streams: Streams) -> None:
    late(streams)
    late(streams)


@pytest.mark.parametrize(
    ("by", "then"),
    [("seen", dead), ("seen", twice_late), ("deadline", dead), ("deadline", late)],
)
def test_an_answer_is_whole_even_if_the_engine_never_says(
    tokenizer: Tokenizer, by: str, then: Callable[[Streams], None]
):
    deltas, _ = asyncio.run(cut(tokenizer, then, by, **KEEP))
    assert (deltas[-1].stop, deltas[-1].usage.kept) == (by, None)


def test_the_engine_has_a_moment_to_say_it_once_the_time_is_over(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams, "LAST_WORD", 0.01)
    deltas, _ = asyncio.run(cut(tokenizer, lambda _: None, timeout=0.01, **KEEP))
    assert (deltas[-1].stop, deltas[-1].usage.kept) == ("seen", None)


@pytest.mark.parametrize("by", ["seen", "deadline"])
def test_who_marks_nothing_waits_for_nothing(tokenizer: Tokenizer, by: str):
    for fields in ({}, {"keeping": Keeping(session="s")}):
        deltas, sent = asyncio.run(cut(tokenizer, lambda _: None, by, **fields))
        assert deltas[-1].stop == by
        assert [each.id for each in sent if isinstance(each, Abort)] == [ID]
