"""Somebody's server, as a client of OpenAI's API sees it: where it is, and what is wrong there."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from typing import NoReturn

import httpx2
import msgspec

from radixserve.errors import ServerError, printable

MAX_COMPLAINT = 300
LAST_PORT = 65535


class Model(msgspec.Struct):
    id: str


class Models(msgspec.Struct):
    """What a server answers when it is asked for its models."""

    data: list[Model] | None


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What it says of tokens; not every server says all of it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Remote:
    """The address of a server, and the words for what goes wrong there.

    Args:
        url: With or without ``http://`` and ``/v1``.
        key: What whoever calls us names an API key, for messages; ``model`` likewise.

    Raises:
        ServerError: it is no address of a server.
    """

    def __init__(self, url: str, *, key: str = "--api-key", model: str = "--model"):
        self.url = api_url(url)
        self._key, self._model = key, model

    @property
    def uses_proxies(self) -> bool:
        """Whether the proxies of the environment are for it: none helps on this machine."""
        return not _is_here(self.url)

    def authorization(self, api_key: str | None) -> dict[str, str]:
        """The header that ``api_key`` goes into, if there is one."""
        if api_key is None:
            return {}
        if not (api_key.isascii() and api_key.isprintable()):
            raise ServerError(f"{self._key} holds characters that cannot be sent in a header.")
        return {"authorization": f"Bearer {api_key}"}

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns what goes wrong on the way to the server into one line."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ServerError(
                f"Cannot connect to {self.url} ({one_line(str(error)) or 'no answer'}). Start a "
                "server there (radixserve serve), or check the address."
            ) from error
        except httpx2.TimeoutException as error:
            raise ServerError(
                f"{self.url} took the request, then was silent for too long: it is overloaded or "
                "stuck, or it is no model server."
            ) from error
        except httpx2.RemoteProtocolError as error:
            raise ServerError(
                f"What {self.url} sent is not HTTP, or broke off ({one_line(str(error))}): check "
                "the address, http or https, and the server's log."
            ) from error
        except httpx2.RequestError as error:
            raise ServerError(
                f"The connection to {self.url} broke off ({one_line(str(error))}): check the "
                "address and the server's log."
            ) from error

    def foreign(self, response: httpx2.Response) -> ServerError:
        """The error of an answer that is not in OpenAI's form."""
        kind = response.headers.get("content-type", "").partition(";")[0] or "no content type"
        return ServerError(
            f"{self.url} answers, but not as an OpenAI-compatible server does (it sent "
            f"{one_line(kind)}): check the address; it usually ends in /v1."
        )

    def refuse(self, response: httpx2.Response) -> NoReturn:
        """Raise what a status other than 200 means."""
        status = response.status_code
        try:
            said_why = complaint(msgspec.json.decode(response.content))
        except (msgspec.DecodeError, UnicodeDecodeError):
            said_why = None
        said = f"HTTP {status}: {said_why}" if said_why else f"HTTP {status}"
        if status in (401, 403):
            raise ServerError(f"{self.url} does not let us in ({said}): pass its {self._key}.")
        if response.is_redirect:
            target = one_line(response.headers.get("location", "elsewhere"))
            raise ServerError(f"{self.url} redirects to {target}: use that address.")
        if status in (404, 405) and said_why is None:
            raise ServerError(
                f"There is no OpenAI-compatible API at {self.url} ({said}): check the address; it "
                "usually ends in /v1."
            )
        if status == 404:
            raise ServerError(f"{self.url}: {said}. Check the address and {self._model}.")
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


def complaint(body: object) -> str | None:
    """The message of an error, in whichever of the usual places it stands, without its full stop:
    it is put inside a sentence."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
            if not isinstance(body, dict):
                return one_line(str(body)).rstrip(".") or None
    return None


def one_line(text: str) -> str:
    """What a server said, as part of a message."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_COMPLAINT else line[: MAX_COMPLAINT - 1] + "…"


def _is_here(url: str) -> bool:
    """Whether only this machine is meant."""
    host = httpx2.URL(url).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
