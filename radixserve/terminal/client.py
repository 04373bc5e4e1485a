"""A small streaming client for any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from typing import Any, NoReturn

import httpx2
import msgspec

from radixserve.terminal.answer import Message, Piece, Pieces, ServerError, TokenCounts, printable

CONNECT_SECONDS = 5.0
MODELS_SECONDS = 15.0
ANSWER_SECONDS = 600.0
"""How long a server may be silent: a long prompt on a slow machine takes minutes."""
MAX_COMPLAINT = 300
LAST_PORT = 65535


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] | None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
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
        self.url = api_url(url)
        self._model = model
        # A compressed stream would reach us in lumps, which would spoil every time.
        headers = {"accept-encoding": "identity"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):
                raise ServerError("--api-key holds characters that cannot be sent in a header.")
            headers["authorization"] = f"Bearer {api_key}"
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=not _is_here(self.url),
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
        with self._explained():
            response = self._http.get(f"{self.url}/models", timeout=MODELS_SECONDS)
        if response.status_code != 200:
            self._refuse(response)
        try:
            listed = msgspec.json.decode(response.content, type=_Models)
        except msgspec.DecodeError:
            raise self._foreign(response) from None
        return [model.id for model in listed.data or ()]

    def ask(self, path: str) -> Any:
        """What a GET of ``path``, below the server's address, answers in JSON."""
        with self._explained():
            response = self._http.get(f"{self.url}/{path}", timeout=MODELS_SECONDS)
        if response.status_code != 200:
            self._refuse(response)
        try:
            return msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            raise self._foreign(response) from None

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
            with self._explained(), self._http.stream("POST", address, json=body) as response:
                if response.status_code == 200:
                    self._asks_usage, self._length_field = asks_usage, length_field
                    yield from self._pieces(response)
                    return
                response.read()
            refused = response.text if response.status_code in (400, 422) else ""
            if "max_completion_tokens" in refused and length_field in body:
                if length_field == "max_completion_tokens":
                    self._refuse(response)
                length_field = "max_completion_tokens"
            elif refused and asks_usage:
                asks_usage = False
            else:
                self._refuse(response)

    def _pieces(self, response: httpx2.Response) -> Pieces:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise self._foreign(response)
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
                    f"{_one_line(event.data)}"
                ) from None
            if chunk.error:
                complaint = _complaint({"error": chunk.error}) or "no reason given"
                raise ServerError(f"{self.url} broke off with an error: {complaint}")
            piece = _piece(chunk)
            finish = piece.finish or finish
            yield piece
        if finish is None:
            raise ServerError(f"{self.url} ended the stream in the middle of the answer.")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what goes wrong on the way to the server into one line."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ServerError(
                f"Cannot connect to {self.url} ({_one_line(str(error)) or 'no answer'}). Start a "
                "server there (radixserve serve), or check the address."
            ) from error
        except httpx2.TimeoutException as error:
            raise ServerError(
                f"{self.url} took the request, then was silent for too long: it is overloaded or "
                "stuck, or it is no model server."
            ) from error
        except httpx2.RemoteProtocolError as error:
            raise ServerError(
                f"What {self.url} sent is not HTTP, or broke off ({_one_line(str(error))}): check "
                "the address, http or https, and the server's log."
            ) from error
        except httpx2.RequestError as error:
            raise ServerError(
                f"The connection to {self.url} failed ({_one_line(str(error))}): check the "
                "address and the server's log."
            ) from error

    def _foreign(self, response: httpx2.Response) -> ServerError:
        kind = response.headers.get("content-type", "").partition(";")[0] or "no content type"
        return ServerError(
            f"{self.url} answers, but not as an OpenAI-compatible server does (it sent "
            f"{_one_line(kind)}): check the address; it usually ends in /v1."
        )

    def _refuse(self, response: httpx2.Response) -> NoReturn:
        """Raise what a status other than 200 means."""
        status = response.status_code
        try:
            complaint = _complaint(msgspec.json.decode(response.content))
        except (msgspec.DecodeError, UnicodeDecodeError):
            complaint = None
        said = f"HTTP {status}: {complaint}" if complaint else f"HTTP {status}"
        if status in (401, 403):
            raise ServerError(f"{self.url} does not let us in ({said}): pass its --api-key.")
        if response.is_redirect:
            target = _one_line(response.headers.get("location", "elsewhere"))
            raise ServerError(f"{self.url} redirects to {target}: use that address.")
        if status in (404, 405) and complaint is None:
            raise ServerError(
                f"There is no OpenAI-compatible API at {self.url} ({said}): check the address; it "
                "usually ends in /v1."
            )
        if status == 404:
            raise ServerError(f"{self.url}: {said}. Check the address and --model.")
        if status in (429, 503):
            raise ServerError(f"{self.url} is busy ({said}): try again later.")
        raise ServerError(f"{self.url} cannot answer: {said}")


def api_url(url: str) -> str:
    """The address that ``/chat/completions`` is put behind: ``host:8000`` is
    ``http://host:8000/v1``, and an address that has a path keeps it.

    Raises:
        ServerError: it is no address of a server.
    """
    text = url.strip()
    try:
        parsed = httpx2.URL(text if "://" in text else f"http://{text}")
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    known = parsed.scheme in ("http", "https") and parsed.host
    if not known or (parsed.port or 0) > LAST_PORT:
        raise ServerError(f"{url!r} is no address of a server: write http://127.0.0.1:8000.")
    path = parsed.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return str(parsed.copy_with(path=path, query=None, fragment=None))


def _is_here(url: str) -> bool:
    """Whether only this machine is meant, so that no proxy can help."""
    host = httpx2.URL(url).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _piece(chunk: _Chunk) -> Piece:
    choice = chunk.choices[0] if chunk.choices else _Choice()
    delta = choice.delta or _Delta()
    counts, usage = None, chunk.usage
    if usage is not None:
        details = usage.prompt_tokens_details or _Details()
        counts = TokenCounts(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens)
    return Piece(
        text=delta.content or "",
        thought=delta.reasoning_content or delta.reasoning or "",
        finish=choice.finish_reason,
        counts=counts,
    )


def _complaint(body: object) -> str | None:
    """The message of an error, in whichever of the usual places it stands, without its full stop:
    it is put inside a sentence."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
            if not isinstance(body, dict):
                return _one_line(str(body)).rstrip(".") or None
    return None


def _one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_COMPLAINT else line[: MAX_COMPLAINT - 1] + "…"
