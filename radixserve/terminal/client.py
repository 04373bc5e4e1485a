"""A small streaming client for any server that speaks OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from radixserve.errors import ServerError
from radixserve.remote import Details, Models, Remote, Usage, complaint, one_line
from radixserve.terminal.answer import Message, Piece, Pieces, TokenCounts

CONNECT_SECONDS = 5.0
MODELS_SECONDS = 15.0
ANSWER_SECONDS = 600.0
"""How long a server may be silent: a long prompt on a slow machine takes minutes."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class Client:
    """One server, and one of its models.

    Args:
        url: With or without ``http://`` and ``/v1``.
        model: The name that the server knows it by; None is the first that it lists.
        api_key: Sent as a bearer token.

    Raises:
        ServerError: from here and from every method: it cannot be asked, and what to do about it.
    """

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None):
        self._remote = Remote(url)
        self.url = self._remote.url
        self._model = model
        # A compressed stream would reach us in lumps, which would spoil every time.
        headers = {"accept-encoding": "identity"} | self._remote.authorization(api_key)
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=self._remote.uses_proxies,
        )
        self._asks_usage = True
        self._length_field = "max_tokens"

    def close(self) -> None:
        self._http.close()

    @property
    def model(self) -> str:
        """The model that answers; asks the server if none was named."""
        if self._model is None:
            names = self.models()
            if not names:
                raise ServerError(
                    f"{self.url} lists no model: load one there, or name one with --model."
                )
            self._model = names[0]
        return self._model

    def models(self) -> list[str]:
        """The names of the models that the server lists."""
        listed: Models = self.ask("models", Models)
        return [model.id for model in listed.data or ()]

    def ask(self, path: str, type_: Any = Any) -> Any:
        """What a GET of ``path``, below the server's address, answers in JSON."""
        with self._remote.explained():
            response = self._http.get(f"{self.url}/{path}", timeout=MODELS_SECONDS)
        if response.status_code != 200:
            self._remote.refuse(response)
        try:
            return msgspec.json.decode(response.content, type=type_)
        except msgspec.DecodeError:
            raise self._remote.foreign(response) from None

    def stream(
        self,
        messages: list[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        salt: str | None = None,
    ) -> Pieces:
        """The answer to ``messages`` as it comes. None leaves a setting to the server.

        A server that refuses ``stream_options`` is asked again without, and one that wants
        ``max_completion_tokens`` gets it; both are remembered.
        """
        model, asks_usage, length_field = self.model, self._asks_usage, self._length_field
        while True:
            body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
            settings = {length_field: max_tokens, "temperature": temperature, "cache_salt": salt}
            body |= {name: value for name, value in settings.items() if value is not None}
            if asks_usage:
                body["stream_options"] = {"include_usage": True}
            address = f"{self.url}/chat/completions"
            with (
                self._remote.explained(),
                self._http.stream("POST", address, json=body) as response,
            ):
                if response.status_code == 200:
                    self._asks_usage, self._length_field = asks_usage, length_field
                    yield from self._pieces(response)
                    return
                response.read()
            refused = response.text if response.status_code in (400, 422) else ""
            if "max_completion_tokens" in refused and length_field in body:
                if length_field == "max_completion_tokens":
                    self._remote.refuse(response)
                length_field = "max_completion_tokens"
            elif refused and asks_usage:
                asks_usage = False
            else:
                self._remote.refuse(response)

    def _pieces(self, response: httpx2.Response) -> Pieces:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise self._remote.foreign(response)
        finish = None
        for event in httpx2.EventSource(response):
            if event.data.startswith("[DONE]"):
                return
            if not event.data:
                continue
            try:
                chunk = msgspec.json.decode(event.data, type=_Chunk)
            except msgspec.DecodeError:
                raise ServerError(
                    f"{self.url} sent something that is no chunk of a chat completion: "
                    f"{one_line(event.data)}"
                ) from None
            if chunk.error:
                said = complaint({"error": chunk.error}) or "no reason given"
                raise ServerError(f"{self.url} broke off with an error: {said}")
            piece = _piece(chunk)
            finish = piece.finish or finish
            yield piece
        if finish is None:
            raise ServerError(f"{self.url} ended the stream in the middle of the answer.")


def _piece(chunk: _Chunk) -> Piece:
    choice = chunk.choices[0] if chunk.choices else _Choice()
    delta = choice.delta or _Delta()
    counts, usage = None, chunk.usage
    if usage is not None:
        details = usage.prompt_tokens_details or Details()
        counts = TokenCounts(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens)
    return Piece(
        text=delta.content or "",
        thought=delta.reasoning_content or delta.reasoning or "",
        finish=choice.finish_reason,
        counts=counts,
    )
