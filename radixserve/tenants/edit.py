"""Changes to the file of tenants that leave its comments and its order alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit
from filelock import FileLock, Timeout
from tomlkit.items import Array

from radixserve.errors import ConfigError
from radixserve.tenants.file import Roster, parse_tenants, read_text, to_tenant
from radixserve.tenants.keys import id_of

PATIENCE = 10.0
"""Seconds that another editor of the file is waited for."""


class TenantsFile:
    """The file's tables while they are edited; made by ``editing``."""

    def __init__(self, text: str, source: str):
        self.roster = parse_tenants(text, source)
        self._document = tomlkit.parse(text)
        self._source = source

    def add(self, name: str, settings: Mapping[str, Any], key: str) -> None:
        """A new tenant with one key, which is given by its hash.

        Raises:
            ConfigError: there is one of this name.
        """
        if name in self.roster.tenants:
            raise ConfigError(f"{self._source} has a tenant {name} already.")
        table = tomlkit.table()
        table["keys"] = _keys([key])
        _fill(table, settings)
        self._tenants()[name] = table

    def put(self, name: str, settings: Mapping[str, Any]) -> None:
        """These are the tenant's settings from now on; its keys stay unless they are among them."""
        tenants = self._tenants()
        if name not in tenants:
            tenants[name] = tomlkit.table()
        table = tenants[name]
        for each in [each for each in table if each not in settings and each != "keys"]:
            del table[each]
        _fill(table, settings)

    def rotate(self, name: str, key: str, *, keep: bool) -> None:
        """A new key, given by its hash, in place of the others, or beside them.

        Raises:
            ConfigError: there is no such tenant.
        """
        table = self._table(name)
        kept = list(self.roster.tenants[name].keys) if keep else []
        if kept and isinstance(table["keys"], Array):
            _append(table["keys"], key)
        else:
            table["keys"] = _keys([*kept, key])

    def revoke(self, name: str, identity: str | None) -> int:
        """Take the key called ``identity`` away, or all; returns how many are left.

        Raises:
            ConfigError: there is no such tenant, or it has no such key.
        """
        table = self._table(name)
        known = self.roster.tenants[name].keys
        gone = [key for key in known if identity in (None, id_of(key))]
        if identity is not None and not gone:
            raise ConfigError(f"{name} has no key {identity}; `radixserve tenants list` has them.")
        for key in gone:
            table["keys"].remove(key)
        return len(known) - len(gone)

    def keys_of(self, name: str) -> list[str]:
        """What the tenant's keys are called.

        Raises:
            ConfigError: there is no such tenant.
        """
        self._table(name)
        return self.roster.tenants[name].key_ids

    def text(self) -> str:
        """The file as it is now.

        Raises:
            ConfigError: what was changed makes it wrong.
        """
        text = tomlkit.dumps(self._document)
        parse_tenants(text, self._source)
        return text

    def _tenants(self) -> Any:
        if "tenants" not in self._document:
            self._document["tenants"] = tomlkit.table(is_super_table=True)
        return self._document["tenants"]

    def _table(self, name: str) -> Any:
        if name not in self.roster.tenants:
            known = ", ".join(self.roster.tenants) or "none"
            raise ConfigError(f"{self._source} has no tenant {name}; it has: {known}.")
        return self._tenants()[name]


@contextmanager
def editing(path: Path, *, create: bool = False) -> Iterator[TenantsFile]:
    """The file, which is written when the block ends without an error, all or nothing.

    Editors wait for each other. With ``create`` the file need not be there.

    Raises:
        ConfigError: it cannot be read or written, or it is or would be wrong; then it is as it was.
    """
    target = path.resolve()
    try:
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=PATIENCE):
            text = "" if create and not target.exists() else read_text(path)
            file = TenantsFile(text, str(path))
            yield file
            _write(target, file.text())
    except Timeout as error:
        raise ConfigError(f"{path} is being edited by somebody else; try again.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def put_tenant(
    path: Path, name: str, settings: Mapping[str, Any], *, administrated: bool = False
) -> Roster:
    """The file's tenants once ``name`` has these settings; see ``TenantsFile.put``.

    Raises:
        ConfigError: as ``editing``; or they have to stay ``administrated``, and would not.
    """
    to_tenant(name, settings)
    with editing(path) as file:
        file.put(name, settings)
        roster = parse_tenants(file.text(), str(path))
        if administrated and not roster.administrated:
            raise ConfigError(f"Without {name} nobody could administrate: keep its admin = true.")
        return roster


def _fill(table: Any, settings: Mapping[str, Any]) -> None:
    """Set what differs, so that comments stay beside what does not."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and isinstance(table.get(name), Mapping):
            for each in [each for each in table[name] if each not in value]:
                del table[name][each]
            _fill(table[name], value)
        elif name not in table or table[name] != value:
            table[name] = value


def _keys(hashes: Sequence[str]) -> Array:
    array = tomlkit.array()
    for each in hashes:
        _append(array, each)
    return array


def _append(array: Array, key: str) -> None:
    """A line of its own, with what people call the key."""
    array.add_line(key, comment=f"{id_of(key)}, made {datetime.now(UTC):%Y-%m-%d}", indent="    ")
    if not array.as_string().removesuffix("]").endswith("\n"):
        array.add_line(indent="")


def _write(target: Path, text: str) -> None:
    """Put ``text`` in the place of the file, whose mode and owner stay."""
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                was = target.stat()
                os.fchmod(file.fileno(), was.st_mode & 0o777)
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), was.st_uid, was.st_gid)
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
