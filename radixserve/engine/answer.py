"""From sampled tokens to an answer's text: detokenizing, stop strings, logprobs."""

from __future__ import annotations

from msgspec.structs import replace

from radixserve.cache.terms import Kept
from radixserve.engine.frontend import Alternative, TextDelta, TextRequest, TokenLogprob
from radixserve.engine.messages import GenerationDelta, GenerationRequest, Usage
from radixserve.errors import DeadlineError
from radixserve.scheduling.plan import Sampled
from radixserve.text.stop_strings import StopStrings
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import count


def not_begun(request: TextRequest) -> DeadlineError:
    """The time of ``request`` is over, and there is not a single token."""
    return DeadlineError(
        f"The answer had not begun after {request.timeout:g} seconds, the request's timeout."
    )


def knowing(delta: TextDelta, last: GenerationDelta) -> TextDelta:
    """``delta``, the end of an answer, with what is kept of it by ``last``, the end of its
    sequence, which went on meanwhile: what came behind the answer is nobody's matter."""
    usage, kept = delta.usage, last.usage.kept
    whole = usage.prompt_tokens + usage.completion_tokens
    if kept is not None and kept.tokens >= whole:
        kept = Kept("granted", whole)
    return replace(delta, usage=replace(usage, kept=kept))


class Answer:
    """One of the ``n`` answers to a request, as it grows."""

    def __init__(self, index: int, request: TextRequest, tokenizer: Tokenizer):
        self.index = index
        self.id = f"{request.id}/{index}"
        """Id of this answer's sequence in the engine."""
        self.finished = False
        self.begun = False
        """Whether there is a token."""
        self._usage = Usage(count(request.prompt), 0, 0)
        self._request = request
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=request.skip_special_tokens,
            continuation=request.continuation,
            markers=request.markers,
        )
        self._stops = StopStrings(request.stop, request.include_stop_str_in_output)

    @property
    def keeps(self) -> bool:
        """Whether something of it is to be kept, and what becomes of that to be told."""
        keeping = self._request.keeping
        return not self.index and keeping is not None and bool(keeping.marks)

    def sequence(self, deadline: float | None) -> GenerationRequest:
        """What the engine is asked for. The first answer computes the prompt, the others fork."""
        request = self._request
        sampling = request.sampling
        if self.index and sampling.seed is not None:
            seed = (sampling.seed + self.index + 2**63) % 2**64 - 2**63
            sampling = replace(sampling, seed=seed)
        return GenerationRequest(
            id=self.id,
            tokens=request.prompt,
            sampling=sampling,
            namespace=request.namespace,
            tenant=request.tenant,
            priority=request.priority,
            sibling=f"{request.id}/0" if self.index else None,
            cache=request.cache,
            deadline=deadline,
            keeping=None if self.index else request.keeping,
        )

    def take(self, delta: GenerationDelta) -> TextDelta:
        """The news of ``delta`` as text.

        When a stop string ends the answer here, the returned delta is finished although the
        engine's was not: the caller aborts the sequence.
        """
        sampled = delta.sampled
        self.begun = self.begun or bool(sampled)
        self._usage = delta.usage
        if sampled and sampled[0].vector is not None:
            self.finished = delta.finish is not None
            return TextDelta(
                index=self.index,
                vector=sampled[0].vector,
                finish=delta.finish,
                usage=delta.usage,
                error=delta.error,
                missed=delta.missed,
            )
        shown = listed = sampled
        if delta.stop_token is not None and not self._request.include_stop_str_in_output:
            shown = sampled[:-1]
            listed = sampled if self._request.end_logprob else shown
        pieces = [self._stops.push(self._detokenizer.push(each.token)) for each in shown]
        finish, stop, error = delta.finish, delta.stop_token, delta.error
        if stop not in self._request.sampling.stop_token_ids:
            stop = None  # the model's own end of an answer is no news
        if finish is not None and self._stops.matched is None:
            pieces.append(self._stops.push(self._detokenizer.finish()))
            pieces.append(self._stops.finish())
        if self._stops.matched is not None:
            finish, error = "stop", None
        self.finished = finish is not None
        wanted = self._request.sampling.logprobs is not None
        return TextDelta(
            index=self.index,
            text="".join(pieces),
            tokens=tuple(each.token for each in shown),
            logprobs=tuple(self._logprob(each) for each in listed) if wanted else (),
            prompt_logprobs=tuple(self._logprob(each) for each in delta.scored),
            finish=finish,
            end=delta.stop_token if len(shown) < len(sampled) else None,
            stop=self._stops.matched or stop,
            usage=delta.usage,
            error=error,
            waited=delta.waited,
            missed=delta.missed,
        )

    def cut(self) -> TextDelta:
        """The end of an answer whose time is over: the text that was held back."""
        self.finished = True
        text = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        return TextDelta(
            index=self.index, text=text, finish="length", stop="deadline", usage=self._usage
        )

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        assert sampled.logprob is not None
        chosen = self._alternative(sampled.token, sampled.logprob)
        return TokenLogprob(
            chosen.token,
            chosen.bytes,
            chosen.logprob,
            tuple(self._alternative(token, logprob) for token, logprob in sampled.top),
            chosen.id,
            sampled.rank,
        )

    def _alternative(self, token: int, logprob: float) -> Alternative:
        data = self._tokenizer.token_bytes(token)
        return Alternative(data.decode("utf-8", "replace"), data, logprob, token)
