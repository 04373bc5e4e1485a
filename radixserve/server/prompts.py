"""The prompts of a request, which may be texts or token ids, one or several."""

from __future__ import annotations

from msgspec.structs import replace

from radixserve.engine.frontend import TextRequest
from radixserve.errors import InvalidRequestError
from radixserve.server.errors import invalid, wrong
from radixserve.server.service import Service
from radixserve.tokens import pack

MAX_PROMPTS = 64

Prompt = str | list[int]
Prompts = str | list[str | int | list[int]]
"""As they are sent: a text, a list of them, token ids, or a list of lists of these."""


def named(sent: Prompts, param: str, *, most: int = MAX_PROMPTS) -> dict[str, Prompt]:
    """The prompts of the field ``param``, each with its dotted path in the request.

    Raises:
        ApiError: 400, there are none, too many, or of more than one kind.
    """
    if isinstance(sent, str):
        return {param: sent}
    if not sent:
        raise wrong(param, "must not be empty")
    kind = type(sent[0])
    for index, entry in enumerate(sent):
        if type(entry) is not kind:
            message = f"{param} must hold strings, token ids or lists of token ids, not a mixture"
            raise invalid(f"{param}.{index}", message, "invalid_type")
    if kind is int:
        return {param: sent}  # type: ignore[dict-item]
    if len(sent) > most:
        raise invalid(param, f"{len(sent)} prompts were sent; at most {most} are taken")
    return {f"{param}.{index}": entry for index, entry in enumerate(sent)}  # type: ignore[misc]


async def tokenized(
    service: Service, draft: TextRequest, prompts: dict[str, Prompt], *, add_special_tokens: bool
) -> list[TextRequest]:
    """``draft`` for each of ``prompts``, which ``named`` has made; their ids are numbered.

    Raises:
        ApiError, RadixServeError: as ``encoded``.
    """
    special = add_special_tokens
    tokens = [
        await service.text_work(encoded, service, prompt, param, add_special_tokens=special)
        for param, prompt in prompts.items()
    ]
    return [
        replace(draft, id=f"{draft.id}-{index}", prompt=prompt)
        for index, prompt in enumerate(tokens)
    ]


def encoded(service: Service, prompt: Prompt, param: str, *, add_special_tokens: bool) -> bytes:
    """The tokens of a prompt, int32 big-endian.

    Raises:
        ApiError: 400, the model has no such token; ``param`` says which.
        ContextLengthError: it leaves no room for an answer.
        InvalidRequestError: it is empty, or no valid text.
    """
    if isinstance(prompt, str):
        special = add_special_tokens
        return service.encoded(prompt, None, param=param, add_special_tokens=special).tokens
    service.check_length(len(prompt), param)
    if not prompt:
        raise InvalidRequestError(f"{param} must not be empty.", param=param)
    return packed(prompt, param, service.frontend.card.vocab_size)


def packed(ids: list[int], param: str, vocab_size: int) -> bytes:
    """Token ids that a client sent, as int32 big-endian.

    Raises:
        ApiError: 400, the model has no such token; ``param`` says which.
    """
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        index = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise wrong(
            f"{param}.{index}", f"is no token id of this model: it has 0 to {vocab_size - 1}"
        )
    return pack(ids)
