from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.peer import environments, report, roster
from bench.peer.cases import BY_NAME, CASES, DECODED, Case
from bench.peer.environments import Environment, Models, PeerError
from bench.peer.measure import Bench
from bench.peer.process import Worker

SMALL = (
    Case("start", "start", "start"),
    Case("first", "first", "first", 2, shared=3, own=2),
    Case("decode", "decode", "decode", 2, own=2),
)


class Fake:
    """A peer whose answers take one second a token; it dies at a run of ``dies_at`` tokens."""

    def __init__(self, log: list[tuple[str, str]], name: str, dies_at: int | None):
        self.log, self.name, self.dies_at = log, name, dies_at
        self.loaded = {"settings": {"of": name}}

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.log.append((self.name, message["op"]))
        if message["op"] != "run":
            return {}
        if message["max_tokens"] == self.dies_at:
            raise PeerError(f"{self.name}: it ended")
        tokens = [[7] * message["max_tokens"] for _ in message["prompts"]]
        return {"seconds": float(message["max_tokens"]), "tokens": tokens}

    def pause(self) -> None:
        self.log.append((self.name, "pause"))

    def resume(self) -> None:
        self.log.append((self.name, "resume"))

    def close(self) -> None:
        self.log.append((self.name, "close"))


def bench(
    names: list[str], *, repeats: int = 2, starts: int = 1, **dies_at: int
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The results of a run of ``SMALL``, and what the peers were asked."""
    log: list[tuple[str, str]] = []

    class Fakes:
        def make(self, name: str) -> None:
            if dies_at.get(name) == 0:
                raise PeerError(f"{name} cannot be installed: no such release")

        def start(self, name: str) -> Fake:
            return Fake(log, name, dies_at.get(name))

    results: dict[str, Any] = {}
    steps: list[None] = []
    made = Bench(
        names,
        SMALL,
        Fakes(),
        results,
        repeats=repeats,
        starts=starts,
        say=lambda text: None,
        step=lambda: steps.append(None),
    )
    made.run()
    assert len(steps) == made.steps
    return results, log


def test_a_case_has_the_same_prompts_in_every_run_and_the_lengths_it_says() -> None:
    for case in CASES:
        prompts = case.prompts(0)

        assert prompts == Case(*(getattr(case, f) for f in case.__slots__)).prompts(0)
        assert [len(prompt) for prompt in prompts] == [case.shared + case.own] * case.requests
        assert all(prompt[: case.shared] == case.trunk() for prompt in prompts)
        assert len({tuple(prompt) for prompt in prompts}) == case.requests


def test_where_the_first_token_is_timed_a_repeat_finds_only_the_shared_part_in_a_cache() -> None:
    cold, cached = BY_NAME["cold"], BY_NAME["cached"]

    assert cold.prompts(0)[0][:8] != cold.prompts(1)[0][:8]
    assert cached.prompts(0)[0][:4000] == cached.prompts(1)[0][:4000]
    assert cached.prompts(0)[0][4000:] != cached.prompts(1)[0][4000:]


def test_where_decoding_is_timed_every_repeat_has_the_same_prompts() -> None:
    assert BY_NAME["shared-8"].prompts(0) == BY_NAME["shared-8"].prompts(3)


def test_decode_rates_leave_the_prefill_out() -> None:
    results, _ = bench(["radixserve"])

    # (65 s for 65 tokens) - (1 s for 1 token) for two requests at once
    assert results["cases"]["decode"]["samples"]["radixserve"] == [2 * DECODED / 64] * 2
    assert results["cases"]["first"]["samples"]["radixserve"] == [1.0, 1.0]


def test_peers_take_turns_and_all_but_one_stand_still() -> None:
    _, log = bench(["a", "b"])

    awake = set()
    for name, what in log:
        if what == "resume":
            awake.add(name)
            assert awake == {name}
        elif what == "pause":
            awake.discard(name)
    turns = [name for name, what in log if what == "resume"]
    # Both make ready, then one first in even repeats and the other in odd ones; twice, two cases.
    assert turns == ["a", "b", "a", "b", "b", "a"] * 2


def test_a_start_is_measured_as_often_as_asked_and_one_worker_stays() -> None:
    results, log = bench(["a", "b"], starts=3)

    assert len(results["cases"]["start"]["samples"]["a"]) == 3
    assert log.count(("a", "close")) == 3
    assert results["peers"]["a"]["settings"] == {"of": "a"}


def test_a_peer_that_cannot_be_made_is_one_line_and_the_others_go_on() -> None:
    results, _ = bench(["radixserve", "vllm"], vllm=0)

    assert results["peers"]["vllm"]["error"] == "vllm cannot be installed: no such release"
    assert set(results["cases"]["decode"]["samples"]) == {"radixserve"}
    report.finish(results)
    assert results["cases"]["decode"]["ratio"] is None
    assert report.notes(results)[0].startswith("vLLM was left out: vllm cannot be installed")


def test_a_peer_that_dies_midway_keeps_what_it_was_measured_on() -> None:
    results, log = bench(["radixserve", "vllm"], vllm=DECODED + 1)
    report.finish(results)

    assert results["cases"]["first"]["ratio"] == 1.0
    assert results["cases"]["decode"]["samples"] == {"radixserve": [2.0, 2.0]}
    assert results["peers"]["vllm"]["error"] == "vllm: it ended"
    assert log.count(("vllm", "close")) == 1


def test_whether_all_run_the_same_model_is_said() -> None:
    results, _ = bench(["radixserve", "vllm"])

    assert results["agreement"]["decode"] == {"radixserve": 1.0, "vllm": 1.0}


def entry(unit: str, **samples: list[float]) -> dict[str, Any]:
    named = {name.replace("_", "-"): values for name, values in samples.items()}
    return {"title": "case", "unit": unit, "samples": named}


def results_of(**cases: dict[str, Any]) -> dict[str, Any]:
    results = {
        "status": "complete",
        "threads": 2,
        "machine": {"cpu": "a processor"},
        "peers": {name: {"error": None} for name in roster.BY_NAME},
        "cases": cases,
        "agreement": {},
    }
    report.finish(results)
    return results


def test_ratios_are_of_medians_and_above_one_where_radixserve_is_faster() -> None:
    results = results_of(
        time=entry("s", radixserve=[9.0, 1.0, 2.0], vllm=[4.0], openvino=[3.0]),
        rate=entry("tok/s", radixserve=[50.0], vllm=[100.0], openvino=[80.0]),
    )

    time, rate = results["cases"]["time"], results["cases"]["rate"]
    assert (time["best"], time["ratio"]) == ("openvino", 1.5)
    assert (rate["best"], rate["ratio"]) == ("vllm", 0.5)


def test_a_peer_with_smaller_kv_counts_only_against_the_best_of_all() -> None:
    results = results_of(
        rate=entry("tok/s", radixserve=[60.0], openvino=[120.0], openvino_16=[40.0])
    )

    rate = results["cases"]["rate"]
    assert (rate["best"], rate["ratio"]) == ("openvino", 0.5)
    assert (rate["best_16"], rate["ratio_16"]) == ("openvino-16", 1.5)


def test_results_are_written_as_json_and_picture_also_when_a_case_has_gaps(tmp_path: Path) -> None:
    results = results_of(rate=entry("tok/s", radixserve=[60.0], vllm=[]), none=entry("s"))
    console = Console(record=True, width=200)

    console.print(report.table(results))
    report.write(results, tmp_path, console)

    assert json.loads((tmp_path / "peers.json").read_text())["cases"]["rate"]["median"] == {
        "radixserve": 60.0
    }
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert "case, tok/s" in console.export_text()


def test_an_environment_that_pip_cannot_make_says_in_one_line_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = "import sys; print('ERROR: No matching distribution found'); sys.exit(1)"
    monkeypatch.setattr(environments, "_venv", lambda home: [sys.executable, "-c", failing])

    with pytest.raises(PeerError, match="x cannot be installed: ERROR: No matching") as caught:
        environments.make(Environment("x", ("x==1",)), tmp_path, lambda text: None)

    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x" / environments.MARK).exists()


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "work.txt").write_text("mine")

    with pytest.raises(PeerError, match="is no Python environment"):
        environments.make(Environment("x", ("x==1",)), tmp_path, pytest.fail)

    assert (tmp_path / "x" / "work.txt").read_text() == "mine"


def test_an_environment_that_is_there_is_used_until_its_pins_change(tmp_path: Path) -> None:
    made = Environment("x", ("x==1",))
    python = tmp_path / "x" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "x" / environments.MARK).write_text(made.mark)

    assert environments.make(made, tmp_path, pytest.fail) == python
    assert Environment("x", ("x==2",)).mark != made.mark


def test_a_form_of_the_model_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    models = Models(tmp_path / "absent", tmp_path / "models")

    with pytest.raises(PeerError, match=r"cannot be written as llama\.gguf"):
        models.gguf(tmp_path, lambda text: None)

    assert list((tmp_path / "models" / "absent").iterdir()) == []


ECHO = """
from wire import serve

class Echo:
    packages = ("no-such-package",)
    def __init__(self, threads, fails=False):
        if fails:
            raise ValueError("no model here")
        self.settings = {"threads": threads}
    def begin(self, requests, longest, shared):
        print("engines talk")
    def generate(self, prompts, max_tokens):
        if max_tokens == 3:
            import os
            os._exit(5)
        return [prompt[:1] * max_tokens for prompt in prompts]
    def memory(self):
        return {}

serve(Echo)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A worker in a folder of its own, beside the real ones' module ``wire``."""
    file = tmp_path / "run_echo.py"
    file.write_text(f"import sys; sys.path.insert(0, {str(environments.WORKERS)!r})\n{ECHO}")
    return str(file)


def worker(script: str, tmp_path: Path, **settings: Any) -> Worker:
    return Worker("echo", Path(sys.executable), script, settings, tmp_path / "log", 1)


def run(tokens: int) -> dict[str, Any]:
    return {"op": "run", "prompts": [[4, 5], [6]], "max_tokens": tokens}


def test_a_worker_answers_between_pauses_whatever_its_engine_prints(
    script: str, tmp_path: Path
) -> None:
    echo = worker(script, tmp_path, threads=2)
    try:
        echo.pause()
        echo.resume()

        assert echo.loaded["settings"] == {"threads": 2}
        assert echo.ask({"op": "begin", "requests": 2, "longest": 4, "shared": 0}) == {}
        assert echo.ask(run(2))["tokens"] == [[4, 4], [6, 6]]
        assert "engines talk" not in str(echo.ask({"op": "memory"}))
    finally:
        echo.pause()
        echo.close()


def test_a_worker_that_ends_says_with_which_status(script: str, tmp_path: Path) -> None:
    echo = worker(script, tmp_path, threads=1)

    with pytest.raises(PeerError, match="echo: it ended with status 5"):
        echo.ask(run(3))


def test_a_worker_that_cannot_load_says_why(script: str, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="echo: ValueError: no model here"):
        worker(script, tmp_path, threads=1, fails=True)


def test_a_worker_that_does_not_answer_in_time_is_ended(script: str, tmp_path: Path) -> None:
    echo = worker(script, tmp_path, threads=1)
    echo.pause()

    with pytest.raises(PeerError, match="echo: no answer in time"):
        echo.ask(run(1), seconds=0.01)
