"""The benchmark of tenants in short: its simulation is deterministic, and its orders differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from tqdm import tqdm

from bench import plot
from bench.tenants import fairness, public, replay
from bench.tenants.simulation import Engine, first_come, longest_prefix
from bench.workloads import Conversation, Turn, Workload
from radixserve.tokens import pack


@pytest.fixture
def bar():
    with tqdm(total=1, disable=True) as bar:
        yield bar


def test_two_runs_give_the_same_numbers(bar):
    first, second = (fairness.beside(None, 1.0, bar, heavy=True) for _ in range(2))
    assert first == second
    assert first["requests"] > 0
    assert first["hit_rate"] > 0


def test_a_light_tenant_waits_for_the_heavy_one_only_where_nobody_is_fair(bar):
    ours = fairness.beside(None, 4.0, bar, heavy=True)
    line = fairness.beside(first_come, 4.0, bar, heavy=True)
    assert ours["ttft_p99"] < line["ttft_p99"]


def test_requests_start_in_the_order_that_is_asked_for():
    def starts(order) -> list[str]:
        engine = Engine.of(1000, order, seats=1, passes=0)
        stem = list(range(1000, 1064))
        engine.ask("warm", pack(stem), 1)
        while not engine.scheduler.idle:
            engine.step()
        engine.ask("cold", pack(list(range(64))), 1)
        engine.ask("warmed", pack([*stem, 1]), 1)
        ended = []
        while not engine.scheduler.idle:
            ended += engine.step()
        assert engine.seen["warmed"].cached == 64
        return ended

    assert starts(first_come) == ["cold", "warmed"]
    assert starts(longest_prefix) == ["warmed", "cold"]
    assert starts(None) == ["cold", "warmed"], "without passes it is first come, first served"


def test_a_workload_is_replayed_to_its_end(bar):
    turns = [Turn(list(range(1000, 1100 + index)), 3) for index in range(5)]
    workload = Workload("w", [Conversation([turn], start=float(i)) for i, turn in enumerate(turns)])
    numbers = replay.replay(workload, Engine.of(100), bar)
    assert numbers["hit_rate"] > 0.5
    assert numbers["seconds"] >= 4.0


def test_shares_are_judged_by_their_worst_window():
    window = fairness.WINDOW
    samples = [[0.0, 0.0, 0.0], [window, 10.0, 10.0], [2 * window, 30.0, 10.0]]
    shares = fairness._shares(samples)
    assert shares["jain"] == pytest.approx([1.0, 0.5])
    assert shares["jain_least"] == pytest.approx(0.5)
    assert shares["gap"] == 20.0


def test_the_panels_of_all_parts_are_drawn(tmp_path: Path, bar):
    shown = {"times": [0.0, 1.0], "service": {"a": [0, 1]}, "jain": [1.0], "reuse": 0.9}
    equals = dict.fromkeys(fairness.ORDERS, shown)
    light = {name: fairness.beside(None, 0.5, bar, heavy=False) for name in ("alone", "radixserve")}
    rows = {name: {"hit_rate": 0.1, "ttft_mean": 1.0} for name in ("0 passes", replay.UNBOUNDED)}
    figure, axes = plot.panels(fairness.PANELS + replay.PANELS)
    fairness.draw({"equals": equals, "light": light}, axes[: fairness.PANELS])
    replay.draw({"pages": {"1500": rows}}, axes[fairness.PANELS :])
    assert plot.save(figure, tmp_path / "tenants").stat().st_size > 0


def test_public_prompts_give_back_what_isolation_takes(bar):
    stem = list(range(1000, 1200))
    sessions = [
        Conversation([Turn([*stem, *range(number, number + 20)], 3)], start=float(number))
        for number in range(6)
    ]
    workload = Workload("w", sessions)
    prefixes = public.common_beginnings([each.turns[0].prompt for each in sessions])
    assert prefixes[-1][:200] == stem
    rates = {}
    for name in (public.ONE, public.APART, public.PUBLIC):
        engine = Engine.of(1000)
        if name == public.PUBLIC:
            engine.scheduler.cache.set_public([pack(each) for each in prefixes])
        rates[name] = public.replay(workload, engine, bar, apart=name != public.ONE)
    assert rates[public.APART] == 0
    assert rates[public.PUBLIC] == pytest.approx(rates[public.ONE], abs=0.05)
    assert rates[public.ONE] > 0.7
