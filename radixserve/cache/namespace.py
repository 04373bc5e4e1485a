"""What may share KV: the key in front of every prefix, made on the server."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter

import msgspec

PUBLIC = b"\xff"
"""The namespace of what everybody may share; no key begins so, since no field has this number."""


class Namespace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything besides the tokens that decides whether two requests may share KV pages.

    ``key()`` is injective: every field is written with its number and its length, so that no two
    different combinations give the same bytes.
    """

    tenant: str | None = None
    """The authenticated principal; never taken from the request's body."""
    salt: str | None = None
    """The client's ``cache_salt``: it can only narrow what is shared."""
    adapter: str | None = None
    """Content version of the adapter, not its name."""
    weights: str | None = None
    """Epoch of the base weights."""
    kv_format: str | None = None
    """Dtype and scales of the KV pages."""
    extra: str | None = None
    """The client's ``extra_key``, which narrows as ``salt`` does."""

    def key(self) -> bytes:
        """The namespace as bytes. O(length of the fields)."""
        key = b""
        for number, value in zip(_NUMBERS, _values(self), strict=True):
            if value is not None:
                key += _field(number, value)
        return key


def named(key: bytes) -> list[str]:
    """The names of the fields of a ``Namespace`` that ``key`` was made of. O(length)."""
    names, at = [], 0
    while at < len(key):
        names.append(Namespace.__struct_fields__[key[at]])
        at += 5 + int.from_bytes(key[at + 1 : at + 5], "big")
    return names


_NUMBERS = [bytes([number]) for number, _ in enumerate(Namespace.__struct_fields__)]
_values = attrgetter(*Namespace.__struct_fields__)


def _field(number: bytes, value: str) -> bytes:
    # A JSON body may hold a lone surrogate; it is a salt like any other.
    data = value.encode("utf-8", "surrogatepass")
    return number + len(data).to_bytes(4, "big") + data


def on_engine(kv_format: str | None, namespace: bytes) -> bytes:
    """``namespace``, a key that says nothing of ``kv_format``, on an engine that keeps KV so.

    Injective like ``Namespace.key``: the fields come in another order, each with its number.
    """
    return _format(kv_format) + namespace


@lru_cache(maxsize=8)
def _format(kv_format: str | None) -> bytes:
    return Namespace(kv_format=kv_format).key()


def of_tenant(tenant: str | None, namespace: bytes) -> bytes:
    """``namespace``, a key that says nothing of a tenant, within what is ``tenant``'s.

    Injective like ``Namespace.key``: the fields come in another order, each with its number.
    """
    return _tenant(tenant) + namespace


@lru_cache(maxsize=1024)
def _tenant(tenant: str | None) -> bytes:
    return Namespace(tenant=tenant).key()


def client_namespace(salt: str | None) -> bytes:
    """The namespace of an open server's client that sent ``cache_salt`` (or did not)."""
    return Namespace(salt=salt).key()
