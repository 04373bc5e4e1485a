from __future__ import annotations

import io
import json
import socket
from contextlib import closing
from itertools import product
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from radixserve.errors import ServerError
from radixserve.terminal.client import Client
from radixserve.terminal.probe import Report, measure, probe, prompts, show
from radixserve.terminal.verdict import Sample, Verdict, Word, judge
from tests.terminal.stub import FLOOR, PER_TOKEN, HandClock, Stub, hosting

WORDS = 200


def probing(stub: Stub, *, rounds: int = 3) -> list[Sample]:
    with hosting(stub.app) as url, closing(Client(url)) as client:
        return measure(client, prompts(WORDS, rounds, "seed"), clock=stub.clock)


def probed(stub: Stub) -> Verdict:
    return judge(probing(stub))


@pytest.mark.parametrize(
    ("behaviour", "word", "block"),
    [
        ({}, "works_reported", 1),
        ({"block": 16}, "works_reported", 16),
        ({"report": False}, "works_unreported", None),
        ({"refuses": ["stream_options"]}, "works_unreported", None),
        ({"saves": False}, "reported_not_faster", 1),
        ({"block": None}, "off", None),
        ({"block": None, "report": False}, "off", None),
        ({"block": None, "invents": True}, "off", None),
        ({"block": None, "pace": [1, 9, 0.2, 4, 25, 0.5, 2]}, "noisy", None),
        ({"per_token": 1e-6}, "noisy", 1),
    ],
)
def test_each_kind_of_server_is_known_for_what_it_is(
    behaviour: dict[str, Any], word: Word, block: int | None
):
    verdict = probed(Stub(HandClock(), **behaviour))
    assert verdict.verdict == word
    assert verdict.block == block


def test_times_are_those_to_the_first_token_and_not_to_the_role():
    # The first request of all is slow, and not counted.
    samples = probing(Stub(HandClock(), pace=[50, 1, 1, 1, 1]), rounds=1)
    times = {sample.kind: (sample.first, sample.prompt, sample.cached) for sample in samples}
    assert times["short"][0] == pytest.approx(FLOOR + PER_TOKEN * 4)
    first, tokens, cached = times["cold"]
    assert (tokens, cached) == (WORDS + 8, 1)
    assert first == pytest.approx(FLOOR + PER_TOKEN * (WORDS + 7))
    first, tokens, cached = times["warm"]
    assert (tokens, cached) == (WORDS + 6, WORDS + 2)
    assert first == pytest.approx(FLOOR + PER_TOKEN * 4)


def test_every_round_has_one_prompt_of_each_kind_and_no_two_are_alike():
    sent = list(prompts(50, 3, "seed"))
    assert [kind for kind, _ in sent] == ["short", "cold", "warm", "control"] * 3
    assert len({messages[0]["content"] for _, messages in sent}) == len(sent)


def test_no_run_shares_a_beginning_with_another():
    one, other = (
        {messages[0]["content"][:16] for _, messages in prompts(50, 3, seed)} for seed in "ab"
    )
    assert not one & other


def test_a_warm_prompt_begins_as_the_cold_one_and_a_control_does_not():
    for cold, warm, control in zip(*[iter(_long_prompts())] * 3, strict=True):
        text = cold[: cold.index(".")]
        assert warm.startswith(text)
        assert control[16:].startswith(text[16:])
        assert all(a != b for a, b in product([cold[:16], warm[:16]], [control[:16]]))


def _long_prompts() -> list[str]:
    sent = prompts(50, 3, "seed")
    return [messages[0]["content"] for kind, messages in sent if kind != "short"]


def test_the_report_says_it_in_words_beside_a_table():
    samples = probing(Stub(HandClock(), block=16))
    verdict = judge(samples)
    out = io.StringIO()
    report = Report(
        url="http://x/v1",
        model="[bold]m\x1b[2J",
        verdict=verdict,
        sentence=verdict.sentence,
        samples=samples,
    )
    show(report, Console(file=out, width=100, soft_wrap=True))
    text = out.getvalue()
    assert "[bold]m[2J at http://x/v1, medians of 3:" in text
    assert "The prefix cache works and is reported." in text
    assert "in blocks of 16 tokens" in text
    [warm] = [line for line in text.splitlines() if line.startswith("warm")]
    assert warm.split()[-4:] == ["64", "ms", "243", "224"]


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(probe)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.exception


def test_the_command_shows_everything_as_json():
    with hosting(Stub(HandClock(), key="k").app) as url:
        code, out, _ = run(
            url, "--json", "--repeat", "2", "--tokens", "20", "--api-key", "k", "--model", "m"
        )
    report = json.loads(out)
    assert code == 0
    assert report["url"] == f"{url}/v1"
    assert report["model"] == "m"
    assert set(report["verdict"]) == {"verdict", "speedup", "reported", "block", "notes"}
    assert [sample["kind"] for sample in report["samples"]].count("warm") == 2


def test_the_command_shows_a_table():
    with hosting(Stub(HandClock()).app) as url:
        code, out, _ = run(url, "--repeat", "1", "--tokens", "20")
    assert code == 0
    assert "cold: never sent before" in out
    assert "\x1b" not in out


def test_a_dead_server_ends_the_command_with_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, out, error = run(f"http://127.0.0.1:{port}")
    assert code == 1
    assert out == ""
    assert isinstance(error, ServerError)
    assert "Cannot connect" in str(error)
    assert "\n" not in str(error)
