"""Beam search, as vLLM's fields ask for it."""

from __future__ import annotations

from radixserve.engine.frontend import Beams, ModelCard
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.sampling import MAX_LOGPROBS, SamplingParams
from radixserve.server.errors import ApiError, invalid, wrong
from radixserve.server.wire import GenerationFields

NEUTRAL: dict[str, tuple[object, ...]] = {
    "stream": (False,),
    "temperature": (0.0, 1.0),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "min_tokens": (0,),
    "stop": ([], ""),
    "prompt_logprobs": (),
}
"""What a beam search takes no account of, with the values, beside null, that ask for nothing."""


def beams_of(
    fields: GenerationFields,
    sampling: SamplingParams,
    card: ModelCard,
    *,
    most: int,
    prompts: int = 1,
    ranks: bool = False,
) -> Beams | None:
    """The beam search that is asked for.

    Args:
        most: So many answers can run and wait.
        ranks: Whether ``best_of`` means something without one, too.

    Raises:
        ApiError: 400, it cannot be so wide, what else is asked for does not go with it, or a field
            of it comes without it.
    """
    n = 1 if fields.n is None else fields.n
    if not fields.use_beam_search:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False), ("best_of", n)):
            if getattr(fields, name) not in (None, neutral) and not (name == "best_of" and ranks):
                what = "must be the same as n without" if name == "best_of" else "needs"
                raise _unsupported(name, f"{name} {what} use_beam_search")
        return None
    width = n if fields.best_of is None else fields.best_of
    named = "n" if fields.best_of is None else "best_of"
    stops: set[int] = set() if sampling.ignore_eos else set(card.eos_token_ids)
    widest = min(MAX_LOGPROBS - len(stops.union(sampling.stop_token_ids)), most // prompts)
    if width < n:
        raise wrong("best_of", "must be at least n")
    if width > widest:
        raise wrong(
            named,
            f"must be at most {widest} with use_beam_search: {MAX_LOGPROBS} less the number "
            "of tokens that end an answer, and no more than can run and wait",
        )
    penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
    _check_alone(fields, sampling, card)
    return Beams(width=width, length_penalty=penalty, early_stopping=fields.early_stopping or False)


def _check_alone(fields: GenerationFields, sampling: SamplingParams, card: ModelCard) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(fields, name)
        if value is not None and value not in neutral:
            raise _unsupported(name, f"{name} does not go with use_beam_search")
    if sampling.prompt_logprobs is not None:
        raise _unsupported("echo", "echo with logprobs does not go with use_beam_search")
    if sampling.max_tokens == 0:
        raise wrong("max_tokens", "must be at least 1 with use_beam_search")
    check_free(sampling.grammar)
    mode = None if fields.cache is None else fields.cache.mode
    if not card.prefix_cache or mode not in (None, "on"):
        message = "use_beam_search needs the prefix cache, in which its beams share pages"
        raise _unsupported("use_beam_search", message)


def check_free(grammar: Grammar | None) -> None:
    """Raises ApiError: 400, the answers of a beam search would have to keep to a ``grammar``."""
    if grammar is not None:
        message = "a form of the answer does not go with use_beam_search"
        raise _unsupported("use_beam_search", message)


def _unsupported(name: str, message: str) -> ApiError:
    return invalid(name, message, "unsupported_parameter")
