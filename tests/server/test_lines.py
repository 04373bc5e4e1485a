"""Lines that a disk takes no more are lost one by one, and the server's log says so."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from radixserve.errors import ConfigError
from radixserve.server import lines
from radixserve.server.lines import LineFile
from tests.server.asking import HANG


def test_a_full_disk_is_one_line_in_the_log_for_each_that_is_lost(caplog, capfd):
    file = LineFile(Path("/dev/full"))
    for number in range(3):
        file.append(str(number))
    file.close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) >= 3
    assert {each.partition(": ")[2] for each in told} == {
        "/dev/full cannot be written: No space left on device"
    }
    assert capfd.readouterr().err == ""


def test_a_folder_that_is_gone_costs_the_lines_that_come_meanwhile(tmp_path: Path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LineFile(folder / "audit.jsonl")
    file.append("before")
    file._waiting.join()
    shutil.rmtree(folder)
    file.append("meanwhile")
    file._waiting.join()
    folder.mkdir()
    file.append("after")
    file.close()
    assert (folder / "audit.jsonl").read_text("utf-8") == "after\n"
    [told] = caplog.records
    assert "audit.jsonl cannot be written: No such file or directory" in told.getMessage()


def test_what_a_slow_disk_cannot_take_is_lost(tmp_path: Path, caplog, monkeypatch):
    monkeypatch.setattr(lines, "MOST_WAITING", 2)
    file = LineFile(tmp_path / "audit.jsonl")
    begun, going_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert going_on.wait(HANG)

    monkeypatch.setattr(file._file, "reopenIfNeeded", slow)
    file.append("0")
    assert begun.wait(HANG)
    for number in range(1, 9):
        file.append(str(number))
    going_on.set()
    file.close()
    assert (tmp_path / "audit.jsonl").read_text("utf-8").split() == ["0", "1", "2"]
    told = {record.getMessage() for record in caplog.records}
    assert (len(caplog.records), told) == (6, {"a line is lost: 2 wait to be written"})


def test_a_place_that_cannot_be_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        LineFile(tmp_path)
