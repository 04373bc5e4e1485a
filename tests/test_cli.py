"""The command line: what it takes, what it says, and how it ends."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

import radixserve
from radixserve import cli
from radixserve.config import EngineConfig
from radixserve.errors import ModelError
from radixserve.server.run import is_loopback, listen
from radixserve.tenants.keys import hash_of
from tests.server.fake import ANSWER
from tests.terminal.commands import HANG, ROOT, line_with, running


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """``serve`` sets how much is logged, in a process that is not its own here."""
    logger = logging.getLogger("radixserve")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """The configuration that ``serve`` would run with, which it does not."""
    seen: list[EngineConfig] = []
    monkeypatch.setattr(cli, "run", lambda config, *rest: seen.append(config))
    return seen


def test_options_reach_the_engine(config: list[EngineConfig]):
    arguments = "serve some/model --served-model-name name --load-format dummy --dtype float32"
    arguments += " --device cpu --page-size 8 --kv-memory 1GiB --kv-memory-share 0.5"
    arguments += " --num-pages 99 --max-model-len 100 --max-num-seqs 3 --tokenizer t"
    arguments += " --max-num-batched-tokens 50 --long-prefill-token-threshold 20"
    arguments += " --no-prefix-cache --scheduling-policy priority --max-queue 5"
    arguments += " --chat-template c.jinja --threads 2 --seed 7"
    arguments += " --kv-cache-dtype int8 --quantization int8"
    arguments += " --attention-backend native --no-cascade-attention"
    arguments += " --cache-policy adaptive"
    arguments += " --gpu-memory-utilization 0.5 --enforce-eager --torch-compile"
    code, _, errors = invoke(*arguments.split())
    assert (code, errors) == (0, "")
    assert config == [
        EngineConfig(
            model="some/model",
            served_model_name="name",
            tokenizer="t",
            load_format="dummy",
            dtype="float32",
            device="cpu",
            kv_cache_dtype="int8",
            quantization="int8",
            attention_backend="native",
            cascade_attention=False,
            page_size=8,
            kv_memory=2**30,
            kv_memory_share=0.5,
            num_pages=99,
            gpu_memory_utilization=0.5,
            enforce_eager=True,
            torch_compile=True,
            max_model_len=100,
            max_num_seqs=3,
            max_num_batched_tokens=50,
            long_prefill_token_threshold=20,
            prefix_cache=False,
            cache_policy="adaptive",
            scheduling_policy="priority",
            max_queue=5,
            chat_template="c.jinja",
            threads=2,
            seed=7,
        )
    ]


def test_without_options_the_engine_has_its_own_defaults(config: list[EngineConfig]):
    assert invoke("serve")[0] == 0
    assert config == [EngineConfig()]


def test_a_setting_that_cannot_work_is_one_line(config: list[EngineConfig]):
    code, out, errors = invoke("serve", "--page-size", "0")
    assert (code, out) == (1, "")
    assert errors == "Error: page_size must be at least 1, not 0.\n"


@pytest.mark.parametrize(
    "option",
    [
        "--kv-cache-dtype=nvfp4",
        "--dtype=fp8",
        "--enable-lora",
        "--lora-modules=a=b",
        "--kv-transfer-config={}",
        "--cpu-offload-gb=4",
        "--speculative-config={}",
    ],
)
def test_options_for_what_is_not_built_are_refused_by_name(config: list[EngineConfig], option: str):
    code, out, errors = invoke("serve", option)
    assert (code, out) == (2, "")
    assert option.split("=")[0] in re.sub(r"\x1b\[[0-9;]*m", "", errors)
    assert not config


def test_a_model_that_cannot_be_served_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ModelError("no/model: there is no such [model].")

    monkeypatch.setattr(cli, "run", fail)
    assert invoke("serve", "no/model") == (1, "", "Error: no/model: there is no such [model].\n")


def test_a_port_in_use_is_one_line_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, errors = invoke("serve", "--port", str(port))
    assert (code, out) == (1, "")
    assert errors.startswith(f"Error: Cannot listen on 127.0.0.1:{port}: ")
    assert errors.count("\n") == 1


def test_an_address_that_is_not_here_is_one_line():
    code, _, errors = invoke("serve", "--host", "192.0.2.1")
    assert code == 1
    assert errors.startswith("Error: Cannot listen on 192.0.2.1:8000: ")


def test_the_socket_takes_no_connection_before_the_model_is_loaded():
    with listen("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=HANG)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_loopback_is_known(address: str, loopback: bool):
    assert is_loopback(address) == loopback


def test_the_help_teaches_without_loading_anything_heavy():
    code = "import sys, radixserve.cli; print({'torch', 'transformers'} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "set()"
    status, out, _ = invoke("serve", "--help")
    assert status == 0
    for word in ("curl http", "Memory and cache", "Scheduling", "--kv-memory", "4GiB"):
        assert word in out


def test_the_version_is_told():
    assert invoke("--version") == (0, f"radixserve {radixserve.__version__}\n", "")


def test_it_serves_says_how_to_ask_and_ends_cleanly_on_ctrl_c():
    with running("--port", "0") as process:
        url = line_with(process, "API").split()[-1]
        assert f"{url}/chat/completions" in line_with(process, "curl")
        answer = httpx2.post(f"{url}/completions", json={"prompt": "a"}, timeout=HANG)
        assert answer.json()["choices"][0]["text"] == ANSWER
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0
    assert "POST /v1/completions 200 prompt=1" in errors
    assert "Traceback" not in errors
    assert "Warning" not in errors


def test_it_warns_when_others_can_reach_it_and_ends_cleanly_when_told():
    with running("--port", "0", "--host", "0.0.0.0", "--log-level", "error") as process:
        assert "http://127.0.0.1:" in line_with(process, "API")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0
    assert errors.startswith("Warning: listening on 0.0.0.0 without authentication")
    assert errors.count("\n") == 1


def test_ctrl_c_while_the_model_loads_ends_it_at_once():
    with running("--port", "0", frontend="Slow") as process:
        line_with(process, "loading")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_parser_that_does_not_exist_ends_in_one_line_with_those_that_do():
    code, _, errors = invoke("serve", "--tool-call-parser", "vicuna")
    assert code == 1
    assert "--tool-call-parser 'vicuna' is not known" in errors
    assert "hermes" in errors


def test_tenants_are_read_again_on_sighup_and_a_broken_file_changes_nothing(tmp_path: Path):
    path, log = tmp_path / "tenants.toml", tmp_path / "audit.jsonl"
    path.write_text(f'[tenants.one]\nkeys = ["{hash_of("first")}"]\n', encoding="utf-8")
    arguments = ("--port", "0", "--tenants", str(path), "--audit-log", str(log))
    with running(*arguments) as process:
        url = line_with(process, "API").split()[-1]

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx2.get(f"{url}/models", headers=headers, timeout=HANG).status_code

        assert (status("first"), status("second")) == (200, 401)
        path.write_text("[tenants.one", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        told = next(line for line in process.stderr if "stay as they were" in line)
        assert "line 1" in told
        assert (status("first"), status("second")) == (200, 401)
        path.write_text(f'[tenants.one]\nkeys = ["{hash_of("second")}"]\n', encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        next(line for line in process.stderr if "1 tenants" in line)
        assert (status("first"), status("second")) == (401, 200)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert len(log.read_text(encoding="utf-8").splitlines()) == 6


def test_keys_take_the_warning_away_from_an_address_that_others_reach():
    arguments = ("--port", "0", "--host", "0.0.0.0", "--api-key", "one", "--api-key", "two")
    with running(*arguments) as process:
        url = line_with(process, "API").split()[-1]
        for key, status in (("one", 200), ("two", 200), ("three", 401)):
            headers = {"x-api-key": key}
            assert httpx2.get(f"{url}/models", headers=headers, timeout=HANG).status_code == status
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANG)
    assert "Warning" not in errors
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("[tenants.a]\nsheep = 1", ("--tenants", "FILE"), "line 2: tenants.a.sheep: is unknown"),
        (None, ("--tenants", "FILE"), "No such file"),
        ("", ("--tenants", "FILE", "--api-key", "x"), "exclude each other"),
        ("", ("--api-key", "with space"), "printable"),
        ("", ("--api-key", "x", "--audit-log", "."), "cannot be written"),
    ],
)
def test_tenants_that_cannot_be_are_one_line_before_anything_is_loaded(
    tmp_path: Path, text: str | None, arguments: tuple[str, ...], words: str
):
    path = tmp_path / "FILE"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    given = [str(path) if each == "FILE" else each for each in arguments]
    code, out, errors = invoke("serve", "--port", "0", *given)
    assert (code, out) == (1, "")
    assert words in errors
    assert errors.count("\n") == 1
