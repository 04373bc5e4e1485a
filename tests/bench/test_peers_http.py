from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import peers_http
from bench.client import Connection, Run, Sample
from bench.peer import llama_server, mains, served, serving, serving_report
from bench.peer.environments import Models, PeerError
from bench.peer.equal import compare, saturated, saturation
from bench.report import summarize
from bench.servers import Process, Remote, ServerError
from bench.workloads import (
    Turn,
    Workload,
    arriving,
    generated_shared_prefix,
    renamed,
    shared_tokens,
)

SMALL = generated_shared_prefix(groups=2, per_group=8, system=6, question=3, output=4)


def sample(sent: float, last: float) -> Sample:
    return Sample(sent, sent + 0.1, last, prompt=9, output=4, cached=3)


def point(answered: float, ttft: float) -> dict[str, Any]:
    return {"requests_per_s": answered, "ttft_p90": ttft, "runs": [{}]}


def test_a_server_is_saturated_once_a_higher_rate_brings_no_more_answers() -> None:
    points = [point(4, 0.1)]
    assert not saturated(points)
    points.append(point(6, 0.2))
    assert not saturated(points)
    points.append(point(6.05, 3.0))
    assert saturated(points)
    points[-1] = point(5, 9.0)
    assert saturated(points)


def test_saturation_is_where_most_is_answered() -> None:
    assert saturation([point(4, 0.1), point(6, 0.4), point(5, 9.0)]) == point(6, 0.4)
    assert saturation([]) is None


def test_the_ratio_is_what_we_answer_within_the_peers_first_token_time_over_its_most() -> None:
    ours = [point(2, 0.1), point(6, 0.5), point(7, 0.6)]
    peer = [point(1, 0.2), point(2, 0.5), point(1.9, 9.0)]

    assert compare(ours, peer) == {"saturation": 2, "limit": 0.5, "ours": 6, "ratio": 3.0}


def test_what_cannot_be_compared_has_no_ratio() -> None:
    assert compare([], [point(1, 0.2)])["ratio"] is None
    assert compare([point(1, 0.2)], [])["ratio"] is None
    assert compare([point(1, 0.3)], [point(1, 0.2)])["ours"] is None


def test_other_token_ids_share_as_much_among_themselves_and_nothing_with_the_others() -> None:
    other = renamed(SMALL, "other")
    prompts = [turn.prompt for turn in SMALL.turns]
    changed = [turn.prompt for turn in other.turns]

    assert shared_tokens(changed) == shared_tokens(prompts)
    assert sum(shared_tokens(prompts + changed)) == 2 * sum(shared_tokens(prompts))
    assert changed == [turn.prompt for turn in renamed(SMALL, "other").turns]


def test_arrivals_have_the_rate_they_say_and_the_same_order_at_each() -> None:
    slow, fast = (arriving(SMALL, rate, "seed") for rate in (2.0, 8.0))
    starts = [each.start for each in slow.conversations]

    assert starts == sorted(starts)
    assert starts[0] > 0
    assert 6 < starts[-1] < len(starts) / 2
    assert [each.start * 4 for each in fast.conversations] == pytest.approx(starts)
    assert fast.turns == SMALL.turns


# As llama-server streams: text in chunks, the last one with usage in it, and comments in between.
STREAM = """: ping

data: {"choices":[{"text":"a","index":0,"finish_reason":null}],"object":"text_completion"}

data: {"choices":[{"text":"b","index":0,"finish_reason":null}],"object":"text_completion"}

data: {"choices":[{"text":"","finish_reason":"length"}],"usage":{"completion_tokens":3,\
"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":6}},"timings":{"prompt_n":3}}

data: [DONE]

"""


@asynccontextmanager
async def answering(stream: str) -> AsyncIterator[tuple[Remote, list[dict[str, Any]]]]:
    """A server that answers each request with ``stream``, and the bodies that it got."""
    bodies: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"connection: close\r\n\r\n" + stream.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        yield Remote(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), bodies


def test_a_stream_of_llama_server_is_understood() -> None:
    async def ask() -> tuple[Sample, list[dict[str, Any]], dict[str, float]]:
        async with (
            answering(STREAM) as (remote, bodies),
            Connection(remote, ours=False, extra={"model": "served"}) as connection,
        ):
            got = await connection.ask(Turn(list(range(9)), 3), "", 0.0)
            return got, bodies, await connection.counters()

    got, [body], counters = asyncio.run(ask())

    assert (got.prompt, got.output, got.cached) == (9, 3, 6)
    assert 0 < got.sent <= got.first <= got.last
    assert (body["model"], body["prompt"]) == ("served", list(range(9)))
    assert body["ignore_eos"]
    assert "cache_salt" not in body
    assert counters == {}


def test_what_a_server_without_counters_reused_is_what_its_answers_say() -> None:
    run = Run(SMALL, "x", [sample(0, 1)] * 3, prompts=[[1] * 9] * 3, seconds=1.0)

    assert summarize(run)["hit_rate"] == pytest.approx(3 / 9)


def test_answers_of_another_length_are_no_measurement() -> None:
    run = Run(SMALL, "x", [sample(n, n + 1) for n in range(16)], seconds=1.0)
    assert serving.numbers(run)["requests"] == 16

    run.samples[3].output = 2
    with pytest.raises(PeerError, match="x: 62 tokens came, and 64 were asked for"):
        serving.numbers(run)
    run.errors.append("too long")
    with pytest.raises(PeerError, match="x: 1 refused, the first: too long"):
        serving.numbers(run)


class Fake:
    """A server that ends ``rate`` requests a second; ``log`` has who was awake."""

    def __init__(self, name: str, rate: float, log: list[str], dies: bool = False):
        self.name, self.rate, self.log, self.dies = name, rate, log, dies
        self.connection: Any = self

    async def start(self, stack: AsyncExitStack) -> dict[str, Any]:
        stack.callback(lambda: self.log.append(f"{self.name} ends"))
        return {"start_s": 1.0}

    async def wake(self) -> None:
        self.log.append(f"{self.name} wakes")

    def pause(self) -> None:
        self.log.append(f"{self.name} rests")


async def fake_drive(server: Any, workload: Workload, salt: str, *, quiet: bool) -> Run:
    """Answers of half a second; a queue before them if more come than the server's rate."""
    if server.dies:
        raise ServerError(f"server {server.name!r} ended with status 1")
    free = 0.0
    run = Run(workload, server.name)
    for each in workload.conversations:
        free = max(free + 1 / server.rate, each.start)
        run.samples.append(Sample(each.start, free + 0.25, free + 0.5, 9, 4))
        run.prompts.append(each.turns[0].prompt)
    run.seconds = free + 0.5
    return run


def measure(
    monkeypatch: pytest.MonkeyPatch, *, missing: str = "", dies: str = "", **rates: float
) -> tuple[dict[str, Any], list[str]]:
    """The results of ``SMALL`` on fakes of these rates, and their log."""
    monkeypatch.setattr(serving, "drive", fake_drive)
    log: list[str] = []

    def make(name: str) -> Fake:
        if name == missing:
            raise PeerError(f"{name} cannot be built: there is no cmake here")
        return Fake(name, rates[name], log, dies=name == dies)

    results: dict[str, Any] = {
        "status": "complete",
        "threads": 2,
        "machine": {"cpu": "a processor"},
    }
    steps: list[int] = []
    bench = serving.Bench(
        list(rates), [SMALL], make, results,
        shares=(0.25, 2.0, 4.0, 8.0), repeats=2, say=lambda text: None, step=steps.append,
    )  # fmt: skip
    asyncio.run(bench.run())
    serving_report.finish(results)
    assert sum(steps) == bench.steps
    return results, log


def test_a_rate_that_brings_no_more_answers_is_a_servers_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results, _ = measure(monkeypatch, radixserve=8.0, vllm=2.0)

    entry = results["workloads"]["shared-prefix"]
    assert entry["closed"]["vllm"]["requests_per_s"] == pytest.approx(2.0, rel=0.1)
    closed = entry["closed"]["vllm"]["requests_per_s"]
    rates = [each["rate"] / closed for each in entry["rates"]["vllm"]]
    assert rates == pytest.approx([0.25, 2.0, 4.0])
    assert entry["beside"]["vllm"]["saturation"] == pytest.approx(2.0, rel=0.1)
    assert entry["beside"]["vllm"]["ratio"] == pytest.approx(4.0, rel=0.2)


def test_one_server_is_awake_at_a_time_and_all_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = measure(monkeypatch, radixserve=8.0, vllm=2.0)

    turns = [line for line in log if not line.endswith("ends")]
    assert [line.split()[1] for line in turns] == ["wakes", "rests"] * (len(turns) // 2)
    assert [line.split()[0] for line in turns[::2]][:4] == [
        "radixserve", "vllm", "vllm", "radixserve",
    ]  # fmt: skip
    assert sorted(log[-2:]) == ["radixserve ends", "vllm ends"]


@pytest.mark.parametrize("how", ["missing", "dies"])
def test_a_server_that_is_missing_or_dies_is_one_line_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    results, _ = measure(monkeypatch, radixserve=8.0, vllm=2.0, **{how: "vllm"})  # type: ignore[arg-type]
    path, console = tmp_path / "peers_http.json", Console(record=True, width=200)
    for name, entry in results["workloads"].items():
        console.print(serving_report.table(name, entry))
    console.print(serving_report.verdict(results))
    mains.write(results, path, "bench.peer.serving_figure", console)

    assert results["peers"]["vllm"]["error"] in (
        "vllm cannot be built: there is no cmake here",
        "server 'vllm' ended with status 1",
    )
    assert results["peers"]["radixserve"]["error"] is None
    assert len(results["workloads"]["shared-prefix"]["rates"]["radixserve"]) == 3
    assert json.loads(path.read_text()) == results
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_without_cmake_the_server_that_needs_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    setting = served.Setting(Models(tmp_path, tmp_path), tmp_path, 2, 100, pytest.fail)

    with pytest.raises(PeerError, match="llama-server cannot be built: there is no cmake here"):
        served.Served("llama.cpp", setting)


def test_a_server_that_was_built_is_used_again(tmp_path: Path) -> None:
    home = tmp_path / "llama-server"
    home.mkdir()
    (home / "llama-server").touch()
    (home / "made").write_text("\n".join((llama_server.RELEASE, *llama_server.OPTIONS)) + "\n")

    assert llama_server.make(tmp_path, pytest.fail) == home / "llama-server"


SLEEPER = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Healthy).serve_forever()
"""


def test_a_server_that_stands_still_can_be_ended(tmp_path: Path) -> None:
    process = Process("sleeper", [sys.executable, "-c", SLEEPER], tmp_path)

    async def start_and_end() -> None:
        async with process:
            process.pause()

    asyncio.run(start_and_end())

    with pytest.raises(ServerError, match="'sleeper' ended with status -15"):
        process.check()


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", peers_http.WORKLOADS)
def test_every_workload_shares_something_and_bears_its_name(name: str, quick: bool) -> None:
    workload = peers_http.build(name, lambda text: [ord(c) for c in text[::4]], quick=quick)

    assert workload.name == name
    assert sum(shared_tokens(turn.prompt for turn in workload.turns)) > 0
    assert len(workload.turns) >= 16
