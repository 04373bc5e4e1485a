"""Changes to the file of tenants: small, all or nothing, and kind to what people wrote there."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from radixserve.errors import ConfigError
from radixserve.tenants import edit
from radixserve.tenants.edit import editing, put_tenant
from radixserve.tenants.file import read_tenants
from radixserve.tenants.keys import hash_of, id_of

HAND_WRITTEN = f"""\
# Ours.

# pays on time
[tenants.zoe]
weight = 2.0  # since May
keys = ["{hash_of("zoe")}"]

[tenants.zoe.limits]
tokens_per_minute = 1000 # ask her
requests_per_minute = 60

# the last one
[tenants.adam]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(HAND_WRITTEN, encoding="utf-8")
    return path


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_what_is_added_stands_behind_what_was_there(file: Path):
    with editing(file) as edited:
        edited.add("bea", {"weight": 3.0, "limits": {"tokens_per_minute": 5}}, hash_of("bea"))
    assert file.read_text(encoding="utf-8").startswith(HAND_WRITTEN)
    bea = read_tenants(file).tenants["bea"]
    assert (bea.weight, bea.limits.tokens_per_minute, bea.keys) == (3.0, 5, (hash_of("bea"),))


def test_a_rotation_changes_the_keys_and_nothing_else(file: Path):
    for keep, keys in ((True, ["zoe", "new"]), (False, ["newer"])):
        with editing(file) as edited:
            edited.rotate("zoe", hash_of(keys[-1]), keep=keep)
        assert read_tenants(file).tenants["zoe"].keys == tuple(map(hash_of, keys))
        written = file.read_text(encoding="utf-8")
        for line in HAND_WRITTEN.splitlines():
            assert line.startswith("keys") or line in written


def test_keys_come_and_go_one_by_one(file: Path):
    for number in range(3):
        with editing(file) as edited:
            edited.rotate("adam", hash_of(str(number)), keep=True)
    with editing(file) as edited:
        assert edited.revoke("adam", id_of(hash_of("1"))) == 2
    assert read_tenants(file).tenants["adam"].keys == (hash_of("0"), hash_of("2"))
    with editing(file) as edited:
        assert edited.revoke("adam", None) == 0
    with editing(file) as edited:
        edited.rotate("adam", hash_of("3"), keep=True)
    assert read_tenants(file).tenants["adam"].keys == (hash_of("3"),)
    assert HAND_WRITTEN.splitlines()[:12] == lines(file)[:12]


def test_putting_settings_replaces_them_and_leaves_keys_and_comments(file: Path):
    settings = {"weight": 2.0, "priority": "low", "limits": {"tokens_per_minute": 1000}}
    roster = put_tenant(file, "zoe", settings)
    zoe = roster.tenants["zoe"]
    assert read_tenants(file).tenants["zoe"] == zoe
    assert (zoe.weight, zoe.priority, zoe.keys) == (2.0, "low", (hash_of("zoe"),))
    assert (zoe.limits.tokens_per_minute, zoe.limits.requests_per_minute) == (1000, None)
    for line in ("weight = 2.0  # since May", "tokens_per_minute = 1000 # ask her", "# Ours."):
        assert line in lines(file)
    assert put_tenant(file, "new", {}).tenants["new"].keys == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda edited: edited.add("zoe", {}, hash_of("x")), "already"),
        (lambda edited: edited.add("a b", {}, hash_of("x")), "no name"),
        (lambda edited: edited.add("bea", {"weight": -1.0}, hash_of("x")), "weight"),
        (lambda edited: edited.add("bea", {}, hash_of("zoe")), "also zoe's"),
        (lambda edited: edited.rotate("eve", hash_of("x"), keep=True), "it has: zoe, adam"),
        (lambda edited: edited.revoke("zoe", "12345678"), "no key 12345678"),
        (lambda edited: edited.revoke("eve", None), "no tenant eve"),
        (lambda edited: edited.put("zoe", {"sheep": 1}), "sheep"),
    ],
)
def test_a_change_that_cannot_be_leaves_the_file_as_it_was(file: Path, change, words: str):
    with pytest.raises(ConfigError, match=words), editing(file) as edited:
        change(edited)
    assert file.read_text(encoding="utf-8") == HAND_WRITTEN
    assert {path.name for path in file.parent.iterdir()} <= {file.name, f".{file.name}.lock"}


def test_a_broken_file_is_not_edited(file: Path):
    file.write_text("[tenants.a]\nsheep = 1", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"), editing(file):
        pytest.fail("it was opened")


def test_a_new_file_is_for_its_owner_alone_and_an_old_one_keeps_its_mode(tmp_path: Path):
    path = tmp_path / "tenants.toml"
    with pytest.raises(ConfigError, match="No such file"), editing(path):
        pytest.fail("it was opened")
    with editing(path, create=True) as edited:
        edited.add("bea", {}, hash_of("bea"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    put_tenant(path, "bea", {"weight": 2.0})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_one(tmp_path: Path, file: Path):
    link = tmp_path / "link"
    link.symlink_to(file)
    put_tenant(link, "zoe", {"weight": 4.0})
    assert link.is_symlink()
    assert read_tenants(file).tenants["zoe"].weight == 4.0


def test_editors_wait_for_each_other(file: Path):
    def add(number: int) -> None:
        with editing(file) as edited:
            edited.add(f"t{number}", {}, hash_of(str(number)))

    threads = [threading.Thread(target=add, args=[number]) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(read_tenants(file).tenants) == 2 + len(threads)


def test_an_editor_that_does_not_end_is_not_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(edit, "PATIENCE", 0.01)
    with editing(file) as edited:
        with pytest.raises(ConfigError, match="somebody else"), editing(file):
            pytest.fail("it was opened")
        edited.add("bea", {}, hash_of("bea"))
    assert "bea" in read_tenants(file).tenants
