"""The benchmark of cache policies in short, on sessions that are made up."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import traces
from bench.closed_loop import NEVER, Session, Traffic, sessions, traffic
from bench.policy import __main__ as policy
from bench.policy import cost, hints, rules
from radixserve.cache.terms import Keeping
from radixserve.simulation.replay import Plan, replay
from radixserve.simulation.trace import Line, Trace


def session(*, common: int, turns: int, think: float, stop: str = "tool_use") -> Session:
    """A block more each time, answered at once."""
    calls = [
        {
            "in": 64 * (common + 1 + turn),
            "ids": list(range(common + 1 + turn)),
            "think_time": think,
            "stop": stop,
        }
        for turn in range(turns)
    ]
    return Session(common, calls)


def coding(made: Traffic) -> rules.Coding:
    return rules.Coding(made.trace, made)


def alternating(seconds: list[tuple[float, int, float]], *, blocks: int) -> Traffic:
    """Requests (time, session, when it comes back) for always the same blocks of a session, after
    one block that all have in common."""
    made = Traffic(Trace(block_size=64))
    for time, number, returns in seconds:
        ids = [0, *(1000 * (1 + number) + block for block in range(blocks - 1))]
        line = Line(timestamp=1000 * time, input_length=64 * blocks, hash_ids=ids, block_size=64)
        made.trace.add(line, 1)
        made.sessions.append(number)
        made.returns.append(returns)
        made.tools.append(True)
    return made


def test_requests_come_when_the_session_has_thought() -> None:
    made = traffic([session(common=2, turns=3, think=7.0)], opened=1, requests=4)
    times = [call.time for call in made.trace.calls]
    assert made.returns[:2] == times[1:3]
    assert [later - sooner for sooner, later in itertools.pairwise(times[:3])] == [7.0, 7.0]
    assert made.returns[2] == NEVER
    assert made.sessions == [0, 0, 0, 1]


def test_sessions_share_what_is_common_and_no_more() -> None:
    made = traffic([session(common=2, turns=1, think=1.0)] * 2, opened=2, requests=2)
    assert made.trace.distinct == 64 * (2 + 1 + 1)


def test_what_is_shared_is_known_once_a_second_session_has_used_it() -> None:
    made = alternating([(0, 0, 2), (1, 1, NEVER), (2, 0, NEVER)], blocks=3)
    assert hints.shared(Plan.of(made.trace), made.sessions) == [
        [False, False],
        [True, False],
        [True, False],
    ]


def test_clients_know_the_end_exactly_and_the_time_roughly() -> None:
    made = alternating([(float(at), 0, at + 10.0) for at in range(4000)], blocks=2)
    made.returns[7] = NEVER
    said = hints.expected(made, people=True)
    factors = sorted((each - at) / 10 for at, each in enumerate(said) if at != 7)
    assert said[7] == NEVER
    assert factors[2000] == pytest.approx(1.0, rel=0.1)
    within = sum(1 / 2.71828 < each < 2.71828 for each in factors) / 4000
    assert within == pytest.approx(0.683, abs=0.03)


def test_clients_tell_the_cache_that_serves_when_they_come_back() -> None:
    made = alternating([(0.0, 0, 10.0), (5.0, 1, 9.0), (10.0, 0, NEVER)], blocks=2)
    made.tools[1] = False
    said = [8.5, 9.5, NEVER]
    assert hints.keepings(made, said, people=True) == [
        Keeping((), "0", next_in=8),
        Keeping((), "1", next_in=4),
        Keeping((), "0", last=True),
    ]
    assert hints.keepings(made, said, people=False)[1] == Keeping((), "1")
    assert hints.keepings(made, said, people=True, every=2)[1] == Keeping()


def test_where_people_think_clients_that_know_their_tools_alone_say_nothing() -> None:
    made = alternating([(0.0, 0, 10.0), (5.0, 1, 9.0), (6.0, 2, NEVER)], blocks=2)
    made.tools[1:] = [False, False]
    first, second, last = hints.expected(made, people=False)
    assert first == hints.expected(made, people=True)[0]
    assert second == 5.0 + hints.GUESS
    assert last == NEVER


def test_a_session_that_ended_makes_room() -> None:
    # 0 comes back after 2, 1 never; there is room for the common block and two sessions.
    times = [(0.0, 0, 3.0), (1.0, 1, NEVER), (2.0, 2, NEVER), (3.0, 0, NEVER)]
    ours = coding(alternating(times, blocks=5))
    tokens = 64 * 9
    assert ours.lru(tokens) == pytest.approx((64 + 64 + 64) / (4 * 320))
    assert ours.ended(tokens) == pytest.approx((64 + 64 + 319) / (4 * 320))
    assert ours.hinted(tokens, people=True) == pytest.approx(ours.optimum(tokens))


def test_who_is_overdue_is_given_up() -> None:
    times = [(0.0, 0), (1.0, 1), (100.0, 2), (500.0, 2), (1000.0, 1)]
    said = [5.0, 1000.0, 500.0, NEVER, NEVER]
    made = alternating([(*each, NEVER) for each in times], blocks=5)
    ours = coding(made)
    ranks, ends = hints.by_expectation(ours.plan, made, said)
    assert ends(0) == [5.0 + hints.SLACK] * 2
    assert ends(1) == [NEVER, 1000.0 + hints.SLACK]
    assert replay(ours.plan, ranks, 9, ends=ends) == pytest.approx((2 * 64 + 2 * 319) / (5 * 320))
    # By what is expected alone 1 goes, since 0 was expected sooner.
    assert replay(ours.plan, ranks, 9) == pytest.approx((3 * 64 + 319) / (5 * 320))


def test_keeping_for_too_long_hits_less_than_age_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TIMES", (1, 300))
    # Two that are never asked for again fill the cache; then one comes every second.
    times = [(0.0, 0, NEVER), (0.5, 1, NEVER), *((float(at), 2, at + 1.0) for at in range(2, 90))]
    curve = rules.keeping(coding(alternating(times, blocks=5)), 64 * 9)
    assert curve["hits"][0] == curve["lru"]
    assert curve["hits"][1] < curve["lru"] / 2


@pytest.mark.parametrize(("hits", "share"), [(0.2, 0.0), (0.4, 0.5), (0.6, 1.0), (0.1, -0.25)])
def test_what_is_closed_is_a_share_of_the_way(hits: float, share: float) -> None:
    assert rules.closed(hits, 0.2, 0.6) == pytest.approx(share)


def test_where_there_is_no_way_none_is_closed() -> None:
    assert rules.closed(0.5, 0.5, 0.5) == 0.0


def test_promises_are_judged_by_the_odd_sessions_and_the_worst_size() -> None:
    entry = {
        "opened": 64,
        "tokens": 820_000,
        "closed": {"hints": 0.36, "adaptive": 0.19},
        "closed_served": {"hints": 0.34, "adaptive": 0.21},
    }
    good = {"lru": [0.2, 0.3], "adaptive": [0.3, 0.2951]}
    bad = {"lru": [0.2, 0.3], "adaptive": [0.3, 0.2949]}
    found = policy.requirements(
        {
            "coding": {"even": [], "odd": [entry]},
            "keeping": {"x": {"seconds": [5, 300], "hits": [0.1, 0.3], "lru": 0.2}},
            "sizes": {"x": {"paper": good, "served": bad}},
            "cost": {"microseconds": {"lru": 6.0, "adaptive": 10.9}},
        }
    )
    assert [each["met"] for each in found] == [True, False, False, True, False, True, False, True]
    assert found[5]["measured"] == pytest.approx(-0.49)
    assert found[7]["measured"] == pytest.approx(4.9)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Recordings that are made up, in the form of the real ones."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "mooncake").mkdir()
    with gzip.open(tmp_path / "agents/coding_sessions.jsonl.gz", "wt") as lines:
        for each in itertools.islice(traces._made_up_sessions(0), 12):
            lines.write(json.dumps(each) + "\n")
    chat = "".join(json.dumps(each) + "\n" for each in traces._made_up_chat(0))
    for name in rules.MOONCAKE:
        (tmp_path / f"mooncake/{name}_trace.jsonl").write_text(chat)
    return tmp_path


def test_halves_have_no_session_in_common(data: Path) -> None:
    even, odd = (sessions(data, half) for half in (0, 1))
    assert len(even) == len(odd) == 6
    assert not any(each in odd for each in even)


def test_all_of_it_runs_and_is_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CASES", ((4, 50_000), (6, 50_000), (6, 80_000)))
    monkeypatch.setattr(rules, "CODING_SIZES", (50_000,))
    monkeypatch.setattr(rules, "MOONCAKE", dict.fromkeys(rules.MOONCAKE, (100_000, 400_000)))
    monkeypatch.setattr(cost, "measure", lambda: {"microseconds": {"lru": 1.0, "adaptive": 2.0}})
    app = policy.typer.Typer()
    app.command()(policy.main)
    out = data / "out"
    ran = CliRunner().invoke(
        app, ["--data", str(data), "--requests", "150", "--out", str(out)], catch_exceptions=False
    )
    assert ran.exit_code == 0
    written = json.loads((out / "policy.json").read_text())
    assert written["status"] == "complete"
    assert (out / "policy.png").stat().st_size > 10_000
    for half in rules.HALVES:
        for case in written["coding"][half]:
            hits = case["hits"]
            assert 0 < hits["lru"] <= hits["optimum"] < 1
            assert max(hits.values()) == hits["optimum"]
            served = case["served"]
            assert 0 < served["lru"] <= served["optimum"] <= hits["optimum"]
    names = json.loads(ran.stdout.splitlines()[-1])
    assert len(names) == 3 * 4 + 3 + 2 * 4 + 1


def test_evictions_are_what_is_timed() -> None:
    found = cost.measure(pages=2048, rounds=3)
    assert set(found["microseconds"]) == {"lru", "adaptive"}
    assert min(found["microseconds"].values()) > 0
