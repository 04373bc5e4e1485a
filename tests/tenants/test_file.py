"""What the file of tenants says, and what it says wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixserve.errors import ConfigError
from radixserve.tenant import Terms
from radixserve.tenants.file import FOR_TENANTS, LARGEST_FILE, Roster, parse_tenants, read_tenants
from radixserve.tenants.keys import HASH, LONGEST_KEY, hash_of, id_of, new_key

ONE, TWO = hash_of("one"), hash_of("two")
FULL = f"""
[tenants.acme]
keys = ["{ONE}", "{TWO}"]
admin = true
models = ["small"]
endpoints = ["chat"]
priority = "high"
weight = 2.5

[tenants.acme.limits]
requests_per_minute = 60
tokens_per_minute = 1000
cached_token_weight = 0.25
concurrent_requests = 3

[tenants.acme.cache]
guaranteed = 0.25
maximum = 0.5

[tenants.other-one]
"""


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse_tenants(text, "FILE")
    return str(error.value)


def test_all_of_a_tenant_is_read():
    roster = parse_tenants(FULL, "FILE")
    acme, other = roster.tenants.values()
    assert (acme.name, acme.keys, acme.admin) == ("acme", (ONE, TWO), True)
    assert (acme.models, acme.endpoints, acme.ceiling) == (("small",), ("chat",), -1)
    assert acme.terms == Terms(weight=2.5, guaranteed=0.25, maximum=0.5)
    assert (acme.limits.requests_per_minute, acme.limits.tokens_per_minute) == (60, 1000)
    assert (acme.limits.cached_token_weight, acme.limits.concurrent_requests) == (0.25, 3)
    assert acme.may_use("small")
    assert not acme.may_use("large")
    assert (other.name, other.keys, other.admin, other.ceiling) == ("other-one", (), False, 0)
    assert other.terms == Terms()
    assert other.may_use("large")
    assert other.endpoints == FOR_TENANTS
    assert "metrics" not in FOR_TENANTS, "they are of all tenants"


def test_a_key_finds_its_tenant_and_no_other_string_does():
    roster = parse_tenants(FULL, "FILE")
    for key in ("one", "two"):
        holder = roster.holder(key)
        assert holder is not None
        assert holder.name == "acme"
    for key in ("", "One", "one ", ONE, "\ud800", "o" * 10_000):
        assert roster.holder(key) is None


def test_keys_are_long_random_and_not_in_their_hashes():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert key.startswith("rsk_")
        assert 43 <= len(key.removeprefix("rsk_")) < LONGEST_KEY
        assert HASH.fullmatch(hash_of(key))
        assert id_of(hash_of(key)) in hash_of(key)
        assert key not in hash_of(key)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[tenants.a]\nweight = -1", 2, "tenants.a.weight"),
        ("[tenants.a]\nweight = nan", 2, "tenants.a.weight"),
        ("[tenants.a]\nweight = inf", 2, "tenants.a.weight"),
        ("[tenants.a]\n\nwait = 1", 3, "tenants.a.wait: is unknown"),
        ("[tenants.a.cache]\n# so much\nguaranteed = -0.1", 3, "guaranteed"),
        ("[tenants.a.cache]\nmaximum = 0", 2, "maximum"),
        ("[tenants.a.cache]\nmaximum = 1.5", 2, "maximum"),
        ("[tenants.a.cache]\nmaximum = 0.1\nguaranteed = 0.2", 3, "not be above maximum"),
        ("[tenants.a]\nlimits = { tokens_per_minute = 0 }", 2, "tokens_per_minute"),
        ("[tenants.a]\nlimits = { tokens = 1 }", 2, "tenants.a.limits.tokens: is unknown"),
        ("[tenants.a]\nlimits.concurrent_requests = true", 2, "concurrent_requests"),
        ("[tenants.a]\nname = 'b'", 2, "its table's"),
        ("[tenants.a]\nmodels = 'small'", 2, "tenants.a.models"),
        ("[tenants.a]\nendpoints = [\n'chat',\n'tea']", 2, "tea"),
        ("[tenants.a]\npriority = 'best'", 2, "tenants.a.priority"),
        ("[tenants.a]\npriority = 0.5", 2, "tenants.a.priority"),
        (f"[tenants.a]\npriority = {10**13}", 2, "tenants.a.priority"),
        ("[tenants.a]\nkeys = ['secret']", 2, "never keys themselves"),
        (f"[tenants.a]\nkeys = ['{ONE}', '{ONE}']", 2, "there twice"),
        (f"[tenants.a]\nkeys = ['{ONE}']\n[tenants.b]\nkeys = ['{ONE}']", 4, "also a's"),
        ("[tenants.a b]", 1, "TOML"),
        ("[tenants.'a b']", 1, "no name for a tenant"),
        ("[tenants.self]", 1, "no name for a tenant"),
        ("[tenants.other]", 1, "no name for a tenant"),
        ("[tenants]\na = 1", 2, "must be a table"),
        ("tenants = 1", 1, "must be a table"),
        ("[[tenants]]", 1, "must be a table"),
        ("\nlimit = 1", 2, "limit: is unknown"),
        ("\n[tenants.a", 2, "TOML"),
        ("[tenants.a]\n[tenants.a]", 2, "TOML"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place_and_its_line(text: str, line: int, words: str):
    said = refused(text)
    assert words in said
    assert f"line {line}" in said
    assert said.startswith("FILE")
    assert "secret" not in said


def test_guarantees_beyond_all_there_is_are_refused():
    tables = [f"[tenants.t{number}.cache]\nguaranteed = 0.2\n" for number in range(6)]
    assert parse_tenants("".join(tables[:5]), "FILE")
    assert "120%" in refused("".join(tables))


@pytest.mark.parametrize("text", ["x = " + "[" * 50_000, "[" + "a." * 5_000 + "a]"])
def test_nesting_without_an_end_is_no_crash(text: str):
    assert refused(text).startswith("FILE")


def test_a_file_that_is_none_is_refused(tmp_path: Path):
    binary, large = tmp_path / "binary", tmp_path / "large"
    binary.write_bytes(b"\xff\xfe")
    large.write_bytes(b"#" * (LARGEST_FILE + 1))
    for path, words in (
        (tmp_path, "directory"),
        (tmp_path / "nothing", "No such file"),
        (binary, "line 1: this is not text in UTF-8"),
        (large, "larger than"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_tenants(path)


def test_keys_alone_make_one_tenant_that_may_do_everything():
    roster = Roster.of_keys(["one", "two"])
    one, two = roster.holder("one"), roster.holder("two")
    assert one is not None
    assert one is two
    assert one.admin
    assert set(FOR_TENANTS) < set(one.endpoints)
    assert roster.holder("three") is None
    for key in ("", "with space", "line\n", "é"):
        with pytest.raises(ConfigError, match="printable"):
            Roster.of_keys([key])
