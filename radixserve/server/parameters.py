"""From a client's fields to what the engine is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers

from radixserve.cache.namespace import Namespace
from radixserve.engine.frontend import ModelCard, TextRequest
from radixserve.engine.messages import CacheMode
from radixserve.errors import InvalidRequestError
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.sampling import SamplingParams
from radixserve.server.errors import absent, invalid, to_api_error, wrong
from radixserve.server.keeping import said_besides
from radixserve.server.wire import GenerationFields
from radixserve.tenants.file import PRIORITIES
from radixserve.text.tokenizer import Tokenizer

CHOSEN = (
    *("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Fields that sampling settings call the same."""
MAX_N = 128
MAX_ANSWERS = 256
"""To all prompts of a request together."""
MAX_STOPS = 4
PRIORITY_HEADER = "x-radixserve-priority"
MAX_BAD_LENGTH = 4096
"""Characters of all bad words together."""
MAX_SALT = 512
"""Bytes of UTF-8."""


def check_model(name: str | None, card: ModelCard) -> None:
    """Raises ApiError: 404, ``name`` is not the served model's; no name means it."""
    if name is not None and name != card.name:
        raise absent(
            "model",
            f"The model {name[:100]!r} does not exist here; this server has {card.name!r}",
            "model_not_found",
        )


def page_length(query: Mapping[str, str], usual: int, most: int) -> int:
    """Entries of a list that are asked for at once, by ``limit``.

    Raises:
        ApiError: 400, it is no number from 1 to ``most``.
    """
    sent = query.get("limit", str(usual))
    if not (sent.isascii() and sent.isdigit() and len(sent) < 9 and 1 <= int(sent) <= most):
        raise wrong("limit", f"must be between 1 and {most}")
    return int(sent)


def sampling_params(
    fields: GenerationFields,
    card: ModelCard,
    *,
    max_tokens: tuple[str, int | None],
    logprobs: tuple[str, int | None],
    prompt_logprobs: int | None = None,
    prompt_logprobs_start: int = 1,
    least: int = 1,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """Sampling settings: the client's, else the model's own defaults.

    Args:
        max_tokens: The field that the client used for it, and its value.
        logprobs: Likewise.
        prompt_logprobs: See ``SamplingParams``, and so with ``prompt_logprobs_start``.
        least: Of ``max_tokens``: 0 where the prompt alone is an answer.
        grammar: The form of the answer.

    Raises:
        ApiError: 400, a value is out of its range; ``param`` is the client's name for it.
    """
    if max_tokens[1] == 0 and least:
        raise wrong(
            max_tokens[0],
            "must be at least 1; 0 is for requests that ask for something of the prompt, "
            "by echo or prompt_logprobs",
        )
    chosen: dict[str, float | int] = dict(card.defaults)
    for name in CHOSEN:
        value = getattr(fields, name)
        if value is not None:
            chosen[name] = value
    allowed = fields.allowed_token_ids
    try:
        sampling = SamplingParams(
            **chosen,  # type: ignore[arg-type]
            max_tokens=max_tokens[1],
            logprobs=logprobs[1],
            prompt_logprobs=prompt_logprobs,
            prompt_logprobs_start=prompt_logprobs_start,
            logit_bias=fields.logit_bias or {},
            allowed_token_ids=None if allowed is None else tuple(allowed),
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            grammar=grammar,
        )
        sampling.check_vocabulary(card.vocab_size)
    except InvalidRequestError as error:
        names = {"max_tokens": max_tokens[0], "logprobs": logprobs[0]}
        raise to_api_error(error).renamed(names) from error
    return sampling


def bad_words(fields: GenerationFields, tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """The tokens of each bad word, as it begins a text and as it stands behind a space.

    Raises:
        ApiError: 400, one is empty, or they are too long.
    """
    words = fields.bad_words or []
    if sum(map(len, words)) > MAX_BAD_LENGTH or len(words) > MAX_BAD_LENGTH:
        raise wrong("bad_words", f"must have at most {MAX_BAD_LENGTH} characters together")
    found: dict[bytes, None] = {}
    for place, word in enumerate(words):
        if not word:
            raise wrong(f"bad_words.{place}", "must not be empty")
        for spelling in (word, f" {word.lstrip()}") if word.strip() else (word,):
            found[tokenizer.encode(spelling, add_special_tokens=False, param="bad_words")] = None
    return tuple(each for each in found if each)


def _stop_strings(fields: GenerationFields) -> tuple[str, ...]:
    """The stop strings, of which there are few; their lengths are the engine's to bound."""
    if fields.stop is None:
        return ()
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"{len(stops)} stop strings were sent; at most {MAX_STOPS} are taken")
    return tuple(stops)


def _answers_wanted(name: str, n: int, prompts: int, most: int) -> int:
    """``n``, within bounds."""
    if not 1 <= n <= MAX_N:
        raise wrong(name, f"must be between 1 and {MAX_N}")
    if n * prompts > MAX_ANSWERS:
        raise wrong(name, f"times the number of prompts must be at most {MAX_ANSWERS}")
    if n * prompts > most:
        param = "n" if n > 1 else "prompt"
        message = f"{n * prompts} answers were asked for; at most {most} can run and wait here"
        raise invalid(param, message)
    return n


def narrowed(cache_salt: str | None, extra_key: str | None) -> bytes:
    """What of its tenant's cache may be shared with a request that brings these.

    Raises:
        ApiError: 400, ``cache_salt`` or ``extra_key`` is empty or too long.
    """
    for name, value in (("cache_salt", cache_salt), ("extra_key", extra_key)):
        if value is not None and not 1 <= len(value.encode()) <= MAX_SALT:
            raise wrong(name, f"must have 1 to {MAX_SALT} bytes")
    return Namespace(salt=cache_salt, extra=extra_key).key()


def _priority(fields: GenerationFields, headers: Headers) -> int:
    """The request's priority, said as a number in the body or as a word in a header.

    Raises:
        ApiError: 400, no such word, or both at once.
    """
    word = headers.get(PRIORITY_HEADER)
    if word is None:
        return fields.priority or 0
    if fields.priority is not None:
        raise invalid("priority", f"Send priority or the header {PRIORITY_HEADER}, not both")
    if word.lower() not in PRIORITIES:
        raise wrong(PRIORITY_HEADER, "must be high, normal or low")
    return PRIORITIES[word.lower()]


def _cache_mode(fields: GenerationFields) -> CacheMode:
    mode = fields.cache.mode if fields.cache is not None else None
    return "read-only" if mode == "no-store" else mode or "on"


def stream_options(fields: GenerationFields) -> tuple[bool, bool, list[str]]:
    """Whether a stream ends with usage, whether every chunk has it, and the options ignored.

    Raises:
        ApiError: 400, there are options but no stream.
    """
    options = fields.stream_options
    if options is None:
        return False, False, []
    if not fields.stream:
        raise wrong("stream_options", "needs stream to be true")
    continuous = bool(options.get("continuous_usage_stats"))
    known = {"include_usage", "continuous_usage_stats"}
    ignored = [f"stream_options.{name}" for name in options if name not in known]
    return bool(options.get("include_usage")) or continuous, continuous, ignored


def text_request(
    fields: GenerationFields,
    headers: Headers,
    identity: str,
    *,
    sampling: SamplingParams,
    continuation: bool,
    most: int,
    prompts: int = 1,
    answers: tuple[str, int] | None = None,
) -> TextRequest:
    """What is to be generated, still without its prompt; ``most`` answers can be given at once.

    Args:
        answers: The field that says how many answers there are to a prompt, if it is not ``n``, and
            its value.

    Raises:
        ApiError: 400, a field's value cannot be.
    """
    return TextRequest(
        id=identity,
        prompt=b"",
        sampling=sampling,
        n=_answers_wanted(*(answers or ("n", 1 if fields.n is None else fields.n)), prompts, most),
        stop=_stop_strings(fields),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        continuation=continuation,
        namespace=narrowed(fields.cache_salt, fields.extra_key),
        priority=_priority(fields, headers),
        cache=_cache_mode(fields),
        timeout=fields.timeout,
        keeping=said_besides(fields, headers)[0] or None,
    )
