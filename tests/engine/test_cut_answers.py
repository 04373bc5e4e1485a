"""An answer that a stop string cuts ends once the engine has said what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from radixserve.cache.terms import Keeping, Kept, Mark
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


async def cut(
    tokenizer: Tokenizer, then: Callable[[Streams], None], **fields: Any
) -> tuple[list[TextDelta], list[Command]]:
    """What comes of an answer of four tokens that ends with the stop string, and what the engine is
    told; ``then`` is what happens next."""
    sent: list[Command] = []
    streams = Streams(tokenizer, 8, sent.append)
    request = ask(tokenizer, stop=("seen",), **fields)

    async def collected() -> list[TextDelta]:
        return [delta async for delta in streams.generate(request)]

    collecting = asyncio.create_task(collected())
    await asyncio.sleep(0)
    tokens = unpack(tokenizer.encode("seen", add_special_tokens=False))
    for number, token in enumerate(tokens):
        streams.take(news(sampled=(Sampled(token),), usage=Usage(9, number + 1, 0)))
    while not any(isinstance(each, Abort) for each in sent):
        await asyncio.sleep(0)
    then(streams)
    return await collecting, sent


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    tiny_tokenizer_dir(tmp_path)
    return Tokenizer.load(tmp_path)


KEEP = {"keeping": Keeping((Mark(None, 60),))}


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
    tokenizer: Tokenizer, said: Kept | None, told: Kept | None
):
    deltas, sent = asyncio.run(cut(tokenizer, ended(said), **KEEP))
    assert [each.finish for each in deltas if each.finish] == ["stop"]
    assert (deltas[-1].stop, deltas[-1].usage.completion_tokens) == ("seen", 4)
    assert deltas[-1].usage.kept == told
    assert [each.id for each in sent if isinstance(each, Abort)] == [ID]


@pytest.mark.parametrize(
    "then",
    [
        lambda streams: streams.fail(EngineDeadError("The engine has died.")),
        lambda streams: streams._inboxes[ID].put_nowait(Deadline()),
    ],
    ids=["dead", "late"],
)
def test_an_answer_is_whole_even_if_the_engine_never_says(
    tokenizer: Tokenizer, then: Callable[[Streams], None]
):
    deltas, _ = asyncio.run(cut(tokenizer, then, **KEEP))
    assert (deltas[-1].finish, deltas[-1].usage.kept) == ("stop", None)


def test_who_marks_nothing_waits_for_nothing(tokenizer: Tokenizer):
    for fields in ({}, {"keeping": Keeping(session="s")}):
        deltas, _ = asyncio.run(cut(tokenizer, lambda _: None, **fields))
        assert deltas[-1].finish == "stop"
