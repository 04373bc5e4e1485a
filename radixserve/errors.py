"""Errors that a user can cause: each says what is wrong and what to do about it."""

from __future__ import annotations

_UNPRINTABLE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class RadixServeError(Exception):
    """Base of every error that radixserve raises on purpose."""


class InvalidRequestError(RadixServeError):
    """A request that cannot be served as it was sent.

    ``param`` is the dotted path of the field at fault, ``code`` a stable word for programs.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value"):
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextLengthError(InvalidRequestError):
    """A prompt that leaves no room for an answer in the model's context or in the KV cache."""

    def __init__(
        self, prompt_tokens: int, limit: int, *, param: str = "messages", at_least: bool = False
    ):
        counted = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains "
            f"{counted} input tokens, and an answer needs at least one: the prompt is too "
            "long. Shorten it, or serve with a larger --max-model-len or --kv-memory.",
            param=param,
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.at_least = at_least
        """Whether it was refused before it was tokenized."""


class OverloadedError(RadixServeError):
    """The queue is full, or the server is draining; ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0):
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class DeadlineError(RadixServeError):
    """A request whose time ran out before it had a single token."""


class EngineDeadError(RadixServeError):
    """The step loop has ended; nothing can be computed until it is started again.

    With ``retry_after`` (seconds) that happens by itself, and the request can be sent again.
    """

    def __init__(self, message: str, *, retry_after: float | None = None):
        super().__init__(message)
        self.retry_after = retry_after


class LostError(RadixServeError):
    """The engine has failed at something and has begun anew: all its requests are lost, and nothing
    is cached. They can be sent again."""


class ConfigError(RadixServeError):
    """A setting, or a combination of settings, that cannot work."""


class ModelError(RadixServeError):
    """A model that cannot be found, read or served; the message is one clear line."""


class ServerError(RadixServeError):
    """A server that cannot be asked, or that broke off; the message is one clear line."""


def printable(text: str) -> str:
    """``text`` without control characters: others' text must not steer this terminal."""
    return text.translate(_UNPRINTABLE)


def what_is_wrong(error: Exception) -> str:
    """What a parser's ``error`` says of the input, also where it says that the stack was full."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def first_line(error: Exception) -> str:
    """What ``error`` says first, which is enough for a message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
