"""The file of tenants: who may ask this server for what. TOML, a table a tenant."""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
import tomlkit
from msgspec import Meta

from radixserve.errors import ConfigError
from radixserve.tenant import OPEN, Terms
from radixserve.tenants.keys import HASH, hash_of, id_of

LARGEST_FILE = 4 * 2**20
"""Bytes."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
RESERVED = frozenset({"self", "other"})
"""Names that mean something else: in URLs, and among the labels of metrics."""
PRIORITIES = {"high": -1, "normal": 0, "low": 1}
"""Words for priorities, of which the lower goes first."""
LARGEST = 10**12
ROUNDING = 1e-9

Endpoint = Literal[
    "chat", "completions", "embeddings", "models", "batches", "cache", "metrics", "tokenize"
]  # fmt: skip
FOR_TENANTS: tuple[Endpoint, ...] = tuple(
    # Numbers of all tenants are no tenant's business.
    each
    for each in get_args(Endpoint)
    if each != "metrics"
)
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may ask for in a time, and store. None is no limit but the server's."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt and answer tokens together."""
    cached_token_weight: Share = 0.1
    """What a prompt token that was reused counts, beside 1 of one that was computed."""
    concurrent_requests: Count | None = None
    stored_bytes: Annotated[int, Meta(ge=0, le=10**18)] | None = None
    """Of its files and results of batches together; None is what ``--files-limit`` says."""


class CacheShares(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of the KV pages, see ``radixserve.tenant.Terms``."""

    guaranteed: Share = 0.0
    maximum: Annotated[float, Meta(gt=0, le=1)] = 1.0
    keep: Share | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tenant as the file has it; ``name`` is its table's."""

    name: str
    keys: tuple[str, ...] = ()
    """Hashes, see ``radixserve.tenants.keys``. Without any nobody can be this tenant."""
    admin: bool = False
    """Whether it may change tenants, forget caches and read everybody's numbers."""
    models: tuple[str, ...] | None = None
    """Names of models that it may use; None is all."""
    endpoints: tuple[Endpoint, ...] = FOR_TENANTS
    priority: Literal["high", "normal", "low"] | int = "normal"
    """The best priority that its requests can have."""
    public_prefixes: bool = False
    """Whether it may declare prefixes that all tenants share."""
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    limits: Limits = Limits()
    cache: CacheShares = CacheShares()

    @property
    def ceiling(self) -> int:
        """``priority`` as a number."""
        return PRIORITIES[self.priority] if isinstance(self.priority, str) else self.priority

    @property
    def terms(self) -> Terms:
        """What the engine has to know of it."""
        return Terms(
            weight=self.weight,
            guaranteed=self.cache.guaranteed,
            maximum=self.cache.maximum,
            keep=self.cache.keep,
        )

    @property
    def key_ids(self) -> list[str]:
        """What people call its keys."""
        return [id_of(key) for key in self.keys]

    @property
    def may_publish(self) -> bool:
        """Whether it may declare public prefixes."""
        return self.public_prefixes or self.admin

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


EVERYBODY = Tenant(
    name=OPEN, admin=True, endpoints=get_args(Endpoint), priority=-LARGEST
)  # fmt: skip
"""Who asks where nobody has to say who they are: bound by nothing."""


NOBODY = (hash_of(""), None)


@dataclass(frozen=True, slots=True)
class Roster:
    """All tenants at one moment. It never changes: another one takes its place."""

    tenants: Mapping[str, Tenant]
    by_key: Mapping[str, tuple[str, Tenant]]
    """By the hashes of their keys, which are there once more to be compared with."""

    @classmethod
    def of(cls, tenants: Iterable[Tenant]) -> Self:
        named = {tenant.name: tenant for tenant in tenants}
        keys = {key: (key, tenant) for tenant in named.values() for key in tenant.keys}
        return cls(named, keys)

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> Self:
        """One tenant, called ``default``, that has ``keys`` and may do everything.

        Raises:
            ConfigError: one of them cannot be sent in a header.
        """
        hashes = []
        for key in keys:
            if not key or not (key.isascii() and key.isprintable()) or " " in key:
                raise ConfigError("An API key must be printable ASCII without spaces.")
            hashes.append(hash_of(key))
        return cls.of([msgspec.structs.replace(EVERYBODY, name="default", keys=tuple(hashes))])

    @property
    def administrated(self) -> bool:
        """Whether anybody who has a key may administrate. O(keys)."""
        return any(tenant.admin for _, tenant in self.by_key.values())

    def holder(self, key: str) -> Tenant | None:
        """Whose key it is.

        What is compared is the hash, of which nobody can choose a beginning, and that in constant
        time; a key that was revoked is not here, and so the same as one that never was. O(key).
        """
        sent = hash_of(key)
        known, tenant = self.by_key.get(sent, NOBODY)
        return tenant if hmac.compare_digest(sent, known) else None


def read_tenants(path: Path) -> Roster:
    """The tenants of a file.

    Raises:
        ConfigError: it cannot be read, or is wrong; the message has the line.
    """
    return parse_tenants(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        ConfigError: there is none, or it is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ConfigError(f"{path} is larger than {LARGEST_FILE} bytes.")
        return data.decode()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"{path}, line {line}: this is not text in UTF-8: {error.reason}."
        raise ConfigError(message) from error


def parse_tenants(text: str, source: str) -> Roster:
    """The tenants that ``text`` describes.

    Raises:
        ConfigError: it is no TOML, or describes what cannot be; the message names ``source``, the
            place and the line.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at the end, line {text.count(chr(10)) + 1}"
        reason = str(error).replace("at end of document", end)
        raise ConfigError(f"{source} is not TOML: {reason}.") from error
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply.") from error
    try:
        return Roster.of(_checked(tables))
    except _WrongError as wrong:
        line = _line(text, wrong.path)
        where = f"{source}, line {line}" if line else source
        raise ConfigError(f"{where}: {'.'.join(wrong.path)}: {wrong.reason}") from None


def to_tenant(name: str, table: Mapping[str, Any]) -> Tenant:
    """One tenant from its table.

    Raises:
        ConfigError: the table, or the name, is wrong.
    """
    try:
        return _tenant(name, table)
    except _WrongError as wrong:
        raise ConfigError(f"{'.'.join(wrong.path)}: {wrong.reason}") from None


class _WrongError(Exception):
    """``reason`` is a sentence, ``path`` the keys down to what is wrong."""

    def __init__(self, reason: str, *path: str):
        super().__init__(reason)
        self.reason, self.path = reason, path


def _checked(tables: Mapping[str, Any]) -> list[Tenant]:
    for name in tables:
        if name != "tenants":
            raise _WrongError("is unknown; each tenant is a table [tenants.NAME].", name)
    tables = tables.get("tenants", {})
    if not isinstance(tables, dict):
        raise _WrongError("must be a table of tenants: [tenants.NAME].", "tenants")
    tenants = [_tenant(name, table) for name, table in tables.items()]
    owners: dict[str, str] = {}
    for tenant in tenants:
        for key in tenant.keys:
            owner = owners.setdefault(key, tenant.name)
            if owner != tenant.name:
                reason = f"the key {id_of(key)} is also {owner}'s; a key belongs to one tenant."
                raise _WrongError(reason, "tenants", tenant.name, "keys")
    total = sum(tenant.cache.guaranteed for tenant in tenants)
    if total > 1 + ROUNDING:
        reason = f"the guaranteed shares of all tenants add up to {total:.0%}, more than there is."
        last = [tenant for tenant in tenants if tenant.cache.guaranteed][-1]
        raise _WrongError(reason, "tenants", last.name, "cache", "guaranteed")
    return tenants


def _tenant(name: str, table: object) -> Tenant:
    path = ("tenants", name)
    if not NAME.fullmatch(name) or name in RESERVED:
        reason = "is no name for a tenant: a letter or digit of ASCII, then at most 63 of those, "
        raise _WrongError(reason + f"_, . and -; nor {' or '.join(sorted(RESERVED))}.", *path)
    if not isinstance(table, dict):
        raise _WrongError("must be a table.", *path)
    if "name" in table:
        raise _WrongError("is unknown; a tenant's name is its table's.", *path, "name")
    try:
        tenant = msgspec.convert({**table, "name": name}, Tenant)
    except msgspec.ValidationError as error:
        raise _refused(error, path) from None
    for number, key in enumerate(tenant.keys):
        if not HASH.fullmatch(key):
            reason = "must hold hashes (sha256: and 64 hexadecimal digits), never keys themselves."
            raise _WrongError(f"{reason} `radixserve tenants rotate` makes one.", *path, "keys")
        if key in tenant.keys[:number]:
            raise _WrongError(f"the key {id_of(key)} is there twice.", *path, "keys")
    if abs(tenant.ceiling) > LARGEST:
        raise _WrongError(f"must be between ±{LARGEST}.", *path, "priority")
    if tenant.cache.guaranteed > tenant.cache.maximum:
        raise _WrongError("must not be above maximum.", *path, "cache", "guaranteed")
    return tenant


REFUSAL = re.compile(r"(?P<reason>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)


def _refused(error: msgspec.ValidationError, path: tuple[str, ...]) -> _WrongError:
    found = REFUSAL.fullmatch(str(error))
    assert found is not None
    # Places in lists are left out: an item's line is its list's.
    path += tuple(name for name in re.sub(r"\[.*?\]", "", found["path"] or "").split(".") if name)
    if unknown := UNKNOWN.fullmatch(found["reason"]):
        return _WrongError("is unknown here.", *path, unknown["name"])
    return _WrongError(f"{found['reason'][:1].lower()}{found['reason'][1:]}.", *path)


def _line(text: str, path: tuple[str, ...]) -> int | None:
    """Where in ``text``, which is TOML, the value at ``path`` stands.

    The document is written out again with a mark in that place; of all of TOML's notations the
    library knows where that is.
    """
    mark = "the value whose line is wanted"
    try:
        document = tomlkit.parse(text)
        holder: Any = document
        for name in path[:-1]:
            holder = holder[name]
        found = holder[path[-1]]
        if isinstance(found, tomlkit.items.Table) and not found.is_super_table():
            found.comment(mark)
        else:
            holder[path[-1]] = mark
        before, marked, _ = document.as_string().partition(mark)
    except Exception:  # it only costs the message its line
        return None
    return before.count("\n") + 1 if marked else None
