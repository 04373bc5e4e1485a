"""A response from its beginning to its end."""

from __future__ import annotations

import time

import msgspec

from radixserve.engine.frontend import TextDelta
from radixserve.server.diagnostics import of_response
from radixserve.server.errors import ApiError
from radixserve.server.parsed import ParsedAnswer, Piece
from radixserve.server.responses.output import Numbered, Output
from radixserve.server.responses.wire import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    Status,
)
from radixserve.server.tally import Tally

ENDS: dict[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
"""What the last event is called; what was cancelled has none of its own."""


class Turn:
    """What is streamed, joined, is what the response says when it is whole.

    Args:
        response: Still without output; it grows in place.
        answer: Reads the model's text.
        before: How many items the input has.
        writes: Whether the prompt is left in the cache.
        compared: Whether the prompt is compared with that of another response.
    """

    def __init__(
        self,
        response: ResponseObject,
        answer: ParsedAnswer,
        tally: Tally,
        *,
        before: int,
        writes: bool,
        compared: bool = False,
    ):
        self.response = response
        self._answer = answer
        self._tally = tally
        self._writes = writes
        self._compared = compared
        self._tell = Numbered()
        self._output = Output(response.output, self._tell, response.id, before)
        self._closing = b""
        self._failure: ApiError | None = None

    @property
    def running(self) -> bool:
        return self.response.status == "in_progress"

    def begun(self) -> bytes:
        """The events of the beginning."""
        response = self.response
        created = self._tell("response.created", response=response)
        return created + self._tell("response.in_progress", response=response)

    def take(self, news: TextDelta) -> bytes:
        """The events of ``news``. The last one ends the response, of which ``ended`` tells."""
        thought = self._tally.reasoning
        pieces = self._answer.take(news)
        if self._tally.reasoning == thought:
            self._output.hold(news.logprobs)
        told = b"".join([self._output.add(piece) for piece in pieces])
        if news.finish == "length":
            reason = "deadline" if news.stop == "deadline" else "max_output_tokens"
            self.response.incomplete_details = IncompleteDetails(reason)
            self.end("incomplete")
        elif news.finish is not None:
            self.end("completed")
        return told

    def end(self, status: Status, failure: ApiError | None = None) -> None:
        """The response ends so, unless it has ended before; a failure counts even then."""
        if not self.running and failure is None:
            return
        response = self.response
        if status == "completed":
            if not response.output:
                self._closing += self._output.add(Piece("content", ""))
            response.completed_at = int(time.time())
        self._closing += self._output.close("completed" if status == "completed" else "incomplete")
        response.status = status
        response.usage = self._usage()
        if self._compared:
            response.prompt_cache_diagnostics = of_response(self._tally.steps.get(0))
        if failure is not None:
            code = "server_error" if failure.status >= 500 else failure.code
            response.error = ResponseError(code or "server_error", failure.short()[0])
        self._failure = failure

    def ended(self) -> bytes:
        """The events of the end, to be told once."""
        told = self._closing
        if self._failure is not None:
            told += self._failed(self._failure)
        return told + self._tell(ENDS[self.response.status], response=self.response)

    def shown(self) -> bytes:
        """The response as JSON, as far as it has come."""
        self._output.fill()
        return msgspec.json.encode(self.response)

    def _failed(self, failure: ApiError) -> bytes:
        """OpenAI has the error's parts in the event itself, Open Responses has them in an object,
        over which OpenAI's own clients raise."""
        message, param = failure.short()
        parts = {"code": failure.code, "message": message, "param": param}
        return self._tell("error", **parts, error={"type": failure.type, **parts})

    def _usage(self) -> ResponseUsage:
        usage = self._tally.usage()
        details = usage.prompt_tokens_details
        cached = details.cached_tokens
        written = usage.prompt_tokens - cached if self._writes else 0
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(cached, written, details.kept_tokens, details.keep),
            usage.completion_tokens,
            OutputTokensDetails(usage.completion_tokens_details.reasoning_tokens),
            usage.total_tokens,
            usage.radixserve,
        )
