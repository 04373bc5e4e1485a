"""What a step brought to one request, as it is told."""

from __future__ import annotations

from radixserve.engine.messages import GenerationDelta, Usage
from radixserve.scheduling.progress import Progress
from radixserve.scheduling.request import Request

REFUSED = "its grammar does not go on after the token that was chosen"


def delta_of(progress: Progress, waited: float | None = None) -> GenerationDelta:
    """``progress`` as news; ``waited`` is told as it is, and makes it the first news."""
    request = progress.request
    sampled = progress.sampled
    refused = sampled is not None and progress.finish == "error"
    return GenerationDelta(
        id=request.id,
        sampled=() if sampled is None or refused else (sampled,),
        scored=tuple(progress.scored),
        finish=progress.finish,
        stop_token=_stop_token(progress),
        usage=_usage(request),
        error=REFUSED if refused else progress.error,
        waited=waited,
        missed=None if waited is None else request.missed,
    )


def _stop_token(progress: Progress) -> int | None:
    """The token that ended an answer, if it was one: a grammar ends it with its last one."""
    if progress.finish != "stop" or progress.sampled is None:
        return None
    token = progress.sampled.token
    return token if token in progress.request.stop_tokens else None


def _usage(request: Request) -> Usage:
    return Usage(
        request.prompt_length,
        request.generated if request.sampling.pooling is None else 0,
        request.cached or 0,
        request.copied,
        request.written,
        kept=request.kept,
    )
