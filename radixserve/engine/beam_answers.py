"""Answers by beam search: each step asks the engine for one token of every beam.

A step's sequences come in one message, so that they are computed in one batch, and find all but
their last token in the cache: in the pages of the prompt and of what beams have in common, and in
a copy of a block that goes on differently.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from radixserve.engine.answer import Answer, not_begun
from radixserve.engine.beams import Beam, BeamSearch
from radixserve.engine.frontend import ModelCard, TextDelta, TextRequest
from radixserve.engine.messages import Add, GenerationDelta, GenerationRequest, Usage
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import TOKEN_BYTES, count

if TYPE_CHECKING:
    from radixserve.engine.streams import Streams


async def beam_answers(
    streams: Streams, request: TextRequest, tokenizer: Tokenizer, card: ModelCard
) -> AsyncGenerator[TextDelta, None]:
    """See ``Frontend.generate``: all answers at once, the best first.

    Where the time is over, or the engine fails, after there are tokens, the time's answers are the
    best beams so far, and the failure's is its error.
    """
    assert request.beams is not None, "a beam search is asked for"
    sampling, length = request.sampling, count(request.prompt)
    room = max(1, card.longest - length)
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else card.eos_token_ids)}
    search = BeamSearch(request.beams, min(sampling.max_tokens or room, room), stops)
    names = [f"{request.id}/{index}" for index in range(request.beams.width)]
    asked = time.monotonic()
    usage, shared, waited = Usage(length, 0, 0), 0, None
    late = False
    with streams.seats(names, request.timeout) as inbox:
        while not search.done:
            steps = _steps(request, search, names, asked)
            streams.send(Add(steps, asked))
            ends = await streams.ends(inbox, [step.id for step in steps])
            if ends is None:
                if not search.running[0].sampled:
                    raise not_begun(request)
                late = True
                break
            failed = next((each for each in ends if not each.sampled), None)
            if failed is not None:
                yield TextDelta(finish="error", usage=usage, error=failed.error)
                return
            if not search.running[0].sampled:
                usage, waited = ends[0].usage, ends[0].waited
            shared = _shared(request.prompt, steps, ends, card.page_size)
            search.advance([each.sampled[0] for each in ends])
    for index, beam in enumerate(search.best(request.n)):
        counts = replace(usage, completion_tokens=len(beam.sampled))
        counts = replace(counts, kept=None) if index else replace(counts, shared_pages=shared)
        whole = _whole(request, names[index], beam, counts)
        news = Answer(index, request, tokenizer).take(
            replace(whole, waited=None if index else waited)
        )
        yield replace(news, stop="deadline") if late and not beam.stopped else news


def _steps(
    request: TextRequest, search: BeamSearch, names: list[str], asked: float
) -> list[GenerationRequest]:
    """One token more of each beam."""
    first = not search.running[0].sampled
    sampling = SamplingParams(
        max_tokens=1, temperature=0.0, logprobs=search.candidates, ignore_eos=True
    )
    return [
        GenerationRequest(
            id=name,
            tokens=request.prompt + beam.tokens,
            sampling=sampling,
            namespace=request.namespace,
            tenant=request.tenant,
            priority=request.priority,
            follows=not first,
            cache=request.cache,
            deadline=asked + request.timeout if first and request.timeout is not None else None,
            keeping=request.keeping if first else None,
        )
        for name, beam in zip(names, search.running, strict=False)
    ]


def _whole(request: TextRequest, name: str, beam: Beam, usage: Usage) -> GenerationDelta:
    """All of an answer, as if it had come in one step."""
    wanted = request.sampling.logprobs or 0
    return GenerationDelta(
        id=name,
        sampled=tuple(replace(each, top=each.top[:wanted]) for each in beam.sampled),
        finish="stop" if beam.stopped else "length",
        stop_token=beam.sampled[-1].token if beam.stopped else None,
        usage=usage,
    )


def _shared(
    prompt: bytes, steps: Sequence[GenerationRequest], ends: Sequence[GenerationDelta], size: int
) -> int:
    """Pages that a step read in place more than once, each time but the first: equal blocks stand
    in the same page. O(tokens generated)."""
    read = [(each.usage.cached_tokens - each.usage.copied_tokens) // size for each in ends]
    begun = min(len(prompt) // (size * TOKEN_BYTES), max(read))
    others = {
        step.tokens[len(prompt) : (block + 1) * size * TOKEN_BYTES]
        for step, blocks in zip(steps, read, strict=True)
        for block in range(begun, blocks)
    }
    return sum(read) - begun - len(others)
