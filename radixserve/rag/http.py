"""Questions to a server that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import httpx2
import msgspec

from radixserve.errors import InvalidRequestError, ServerError
from radixserve.rag.asked import Counts, Fields, Question, Said, estimated
from radixserve.remote import Details, Models, Remote, Usage, complaint

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 600.0
"""How long a server may be silent: a long prompt on a slow machine takes minutes."""
TOO_LONG = "context_length_exceeded"
MOST_COUNTED = 4096
"""Documents whose tokens are remembered."""


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    url: str
    json: Fields | None = None


T = TypeVar("T")
_Calls = Generator[_Call, httpx2.Response, T]
"""Requests to send, each for its response; the result comes with the end."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Usage = msgspec.field(default_factory=Usage)


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class HttpModel:
    """Implements ``Model`` with any OpenAI-compatible server.

    ``ask`` and ``aask`` send the same: generators say what to send next, and both follow them.

    Args:
        url: With or without ``http://`` and ``/v1``.
        model: The name that the server knows it by; None is the first that it lists.
        count_tokens: Whether documents are counted by the server's ``/tokenize``, if it has one.

    Raises:
        ServerError: the address or the key cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        cache_salt: str | None = None,
        count_tokens: bool = True,
    ):
        self._remote = Remote(url, key="api_key", model="model")
        self.url = self._remote.url
        self._headers = self._remote.authorization(api_key)
        self._model = model
        self._salt = {} if cache_salt is None else {"cache_salt": cache_salt}
        self._counts = count_tokens
        self._counted: dict[str, int] = {}
        self._before: dict[str, int] = {}
        """Tokens in front of the documents, by what is written there."""
        self._client: httpx2.Client | None = None
        self._async: tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None = None

    def ask(self, question: Question, fields: Fields) -> tuple[Said, Counts]:
        if self._client is None:
            self._client = httpx2.Client(**self._settings())
        calls = self._asking(question, fields)
        try:
            call = next(calls)
            while True:
                try:
                    with self._remote.explained():
                        response = self._client.request(call.method, call.url, json=call.json)
                except ServerError as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(response)
        except StopIteration as done:
            return cast(tuple[Said, Counts], done.value)

    async def aask(self, question: Question, fields: Fields) -> tuple[Said, Counts]:
        client = self._of_this_loop()
        calls = self._asking(question, fields)
        try:
            call = next(calls)
            while True:
                try:
                    with self._remote.explained():
                        response = await client.request(call.method, call.url, json=call.json)
                except ServerError as error:
                    call = calls.throw(error)
                else:
                    call = calls.send(response)
        except StopIteration as done:
            return cast(tuple[Said, Counts], done.value)

    def close(self) -> None:
        """Close the connections of ``ask``."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def aclose(self) -> None:
        """Close all connections; those of ``aask`` in the event loop that they were made in."""
        self.close()
        if self._async is not None:
            await self._async[1].aclose()
            self._async = None

    def _settings(self) -> dict[str, Any]:
        return {
            "headers": self._headers,
            "timeout": httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            "trust_env": self._remote.uses_proxies,
        }

    def _of_this_loop(self) -> httpx2.AsyncClient:
        """Connections belong to the event loop that they were opened in."""
        loop = asyncio.get_running_loop()
        if self._async is None or self._async[0] is not loop:
            self._async = (loop, httpx2.AsyncClient(**self._settings()))
        return self._async[1]

    def _asking(self, question: Question, fields: Fields) -> _Calls[tuple[Said, Counts]]:
        if self._model is None:
            self._model = yield from self._first_model()
        body = {"model": self._model, "messages": question.messages, **self._salt, **fields}
        response = yield _Call("POST", f"{self.url}/chat/completions", body)
        if response.status_code != 200:
            self._refuse(response, fields)
        try:
            found = msgspec.json.decode(response.content, type=_Completion)
            choice = found.choices[0]
        except (msgspec.DecodeError, IndexError):
            raise self._remote.foreign(response) from None
        usage, details = found.usage, found.usage.prompt_tokens_details or Details()
        said = Said(
            text=choice.message.content or "",
            finish_reason=choice.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=details.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
        counts = yield from self._counting(question)
        return said, counts or estimated(question, usage.prompt_tokens)

    def _first_model(self) -> _Calls[str]:
        response = yield _Call("GET", f"{self.url}/models")
        if response.status_code != 200:
            self._remote.refuse(response)
        try:
            listed = msgspec.json.decode(response.content, type=Models).data
        except msgspec.DecodeError:
            raise self._remote.foreign(response) from None
        if not listed:
            raise ServerError(f"{self.url} lists no model: load one there, or name one with model.")
        return listed[0].id

    def _counting(self, question: Question) -> _Calls[Counts | None]:
        """None if the server does not count."""
        if not self._counts:
            return None
        if not question.parts:
            return Counts(0, [], "by document")
        tokens = []
        for part in question.parts:
            if part not in self._counted:
                found = yield from self._tokenized({"prompt": part, "add_special_tokens": False})
                if found is None:
                    return None
                if len(self._counted) == MOST_COUNTED:
                    self._counted.pop(next(iter(self._counted)), None)
                self._counted[part] = len(found)
            tokens.append(self._counted[part])
        before = yield from self._counting_before(question)
        return None if before is None else Counts(before, tokens, "by document")

    def _counting_before(self, question: Question) -> _Calls[int | None]:
        """The tokens with which the prompt begins whatever the documents are."""
        if question.at == 0 and question.before in self._before:
            return self._before[question.before]
        found = []
        for content in (question.before, question.before + question.parts[0]):
            messages = [*question.messages]
            messages[question.at] = {**messages[question.at], "content": content}
            tokens = yield from self._tokenized({"messages": messages})
            if tokens is None:
                return None
            found.append(tokens)
        pairs = enumerate(zip(*found, strict=False))
        common = next((n for n, (one, other) in pairs if one != other), min(map(len, found)))
        if question.at == 0:  # every conversation begins alike, but no two go on alike
            self._before[question.before] = common
        return common

    def _tokenized(self, fields: Fields) -> _Calls[list[int] | None]:
        address = f"{self.url.removesuffix('/v1')}/tokenize"
        try:
            response = yield _Call("POST", address, {"model": self._model, **fields})
        except ServerError:
            return None  # the answer is there: how it was counted is no reason to fail
        try:
            return msgspec.json.decode(response.content, type=_Tokenized).tokens
        except msgspec.DecodeError:
            # One that is busy may count the next time.
            self._counts = response.status_code in (429, 503)
            return None

    def _refuse(self, response: httpx2.Response, fields: Fields) -> NoReturn:
        """Raise what a status other than 200 means to whoever asks about documents, with these
        ``fields``."""
        error, said = _error(response)
        if response.status_code == 413 or error.get("code") == TOO_LONG:
            raise InvalidRequestError(said or "The prompt is too long.", code=TOO_LONG)
        param = error.get("param")
        if response.status_code == 400 and said and isinstance(param, str) and param in fields:
            raise InvalidRequestError(f"{said}.", param=param)
        self._remote.refuse(response)


def _error(response: httpx2.Response) -> tuple[dict[str, Any], str | None]:
    """An error in OpenAI's form, empty where it is in another, and its message."""
    try:
        body = msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}, None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}, complaint(body)
