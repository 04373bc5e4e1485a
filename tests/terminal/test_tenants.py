"""``radixserve tenants``: the file of tenants from a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from radixserve import cli
from radixserve.errors import RadixServeError
from radixserve.tenants.file import read_tenants
from radixserve.tenants.keys import hash_of, id_of
from tests.server.fake import FakeFrontend
from tests.server.sockets import serving
from tests.server.tenants.people import KEYS, registry


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["tenants", *arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def key_in(output: str) -> str:
    [key] = re.findall(r"^  (rsk_\S+)$", output, re.MULTILINE)
    return str(key)


FILE = Path("tenants.toml")


def test_a_tenant_is_added_and_its_key_shown_once():
    key = key_in(
        invoke(
            *("add", "acme", "--admin", "--priority", "high", "--weight", "2.5"),
            *("--requests-per-minute", "60", "--tokens-per-minute", "1000"),
            *("--concurrent-requests", "3", "--guaranteed", "0.25", "--maximum", "0.5"),
            *("--public-prefixes", "--stored", "500MB", "--keep", "0.2"),
        )
    )
    acme = read_tenants(FILE).tenants["acme"]
    assert acme.keys == (hash_of(key),)
    assert (acme.admin, acme.priority, acme.weight) == (True, "high", 2.5)
    assert (acme.limits.requests_per_minute, acme.limits.tokens_per_minute) == (60, 1000)
    assert (acme.limits.concurrent_requests, acme.cache.guaranteed) == (3, 0.25)
    assert (acme.cache.maximum, acme.public_prefixes) == (0.5, True)
    assert acme.limits.stored_bytes == 500_000_000
    assert acme.cache.keep == acme.terms.keep == 0.2
    assert key not in FILE.read_text(encoding="utf-8")
    listed = invoke("list")
    assert key not in listed
    for word in (
        "acme",
        id_of(hash_of(key)),
        "admin",
        "public prefixes",
        "high",
        "2.5",
        "60 requests/min",
        "500,000,000 bytes stored",
        "25% to 50%",
        "keeps 20% of that",
    ):
        assert word in listed


def test_a_tenant_without_settings_has_a_key_and_the_defaults():
    key_in(invoke("add", "plain"))
    assert len(FILE.read_text(encoding="utf-8").splitlines()) == 4
    listed = invoke("list")
    assert "usual" in listed
    assert "keeps" not in listed


def test_a_tenant_that_may_keep_nothing_is_another_than_one_of_whom_nothing_is_said():
    invoke("add", "acme", "--keep", "0")
    assert read_tenants(FILE).tenants["acme"].cache.keep == 0.0
    assert "keeps 0% of that" in invoke("list")


def test_keys_are_rotated_and_revoked():
    first = key_in(invoke("add", "acme"))
    second = key_in(invoke("rotate", "acme", "--keep"))
    assert read_tenants(FILE).tenants["acme"].keys == (hash_of(first), hash_of(second))
    assert "1 keys left" in invoke("revoke", "acme", id_of(hash_of(first)))
    third = key_in(invoke("rotate", "acme"))
    assert read_tenants(FILE).tenants["acme"].keys == (hash_of(third),)
    assert "0 keys left" in invoke("revoke", "acme", "--all")
    assert "none" in invoke("list")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "acme"], "already"),
        (["add", "bad", "--weight", "-1"], "weight"),
        (["add", "bad", "--guaranteed", "0.5", "--maximum", "0.2"], "not be above maximum"),
        (["add", "bad", "--keep", "1.5"], "keep"),
        (["add", "self"], "no name"),
        (["rotate", "nobody"], "no tenant nobody"),
        (["revoke", "acme"], r"which key of acme \(........\), or --all"),
        (["revoke", "nobody"], "no tenant nobody"),
        (["revoke", "acme", "12345678", "--all"], "not both"),
        (["revoke", "acme", "12345678"], "no key 12345678"),
        (["list", "--file", "nowhere"], "No such file"),
        (["rotate", "acme", "--file", "."], "directory"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(arguments: list[str], words: str):
    invoke("add", "acme")
    before = FILE.read_text(encoding="utf-8")
    with pytest.raises(RadixServeError, match=words) as error:
        invoke(*arguments)
    assert "\n" not in str(error.value)
    assert FILE.read_text(encoding="utf-8") == before


def test_a_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch):
    invoke("add", "acme")

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("tempfile.mkstemp", fail)
    with pytest.raises(RadixServeError, match="cannot be written: Permission denied"):
        invoke("rotate", "acme")


def test_usage_is_asked_of_a_running_server(frontend: FakeFrontend):
    from radixserve.server.app import create_app

    with serving(create_app(frontend, tenants=registry())) as server:
        told = invoke("usage", server.url, "--api-key", KEYS["boss"])
        for name in ("alice", "bob", "boss", "mute"):
            assert name in told
        for key, words in ((KEYS["alice"], "may not administrate"), ("rsk_x", "not valid")):
            with pytest.raises(RadixServeError, match=words):
                invoke("usage", server.url, "--api-key", key)


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()
