"""Of one tenant: what is cached may pass, nobody is passed more often than is allowed, and who
has a deadline goes first."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from radixserve.scheduling.backlog import LOOK_UPS
from tests.scheduling.simulated import Simulation, expected_output, prompt


def warmed(hot: list[int], **settings) -> Simulation:
    """One seat, and ``hot`` cached."""
    settings.setdefault("max_num_seqs", 1)
    simulation = Simulation(num_pages=200, **settings)
    simulation.add("warm-up", hot, 1)
    simulation.run()
    return simulation


def watch_starts(simulation: Simulation) -> list[str]:
    """The names of requests in the order in which they start, as they do."""
    starts: list[str] = []

    def note(plan):
        starts.extend(row.request_id for row in plan.rows if row.request_id not in starts)

    simulation.on_plan = note
    return starts


def test_what_is_cached_passes_what_is_not():
    hot = prompt(60)
    simulation = warmed(hot)
    starts = watch_starts(simulation)
    simulation.add("cold", prompt(60, seed=1), 1)
    hits = [simulation.add(f"hot{index}", [*hot, index], 1) for index in range(3)]
    simulation.run()
    assert starts == ["hot0", "hot1", "hot2", "cold"]
    assert all(request.cached == 60 for request in hits)
    assert simulation.outputs["cold"] == expected_output(prompt(60, seed=1), 1)


def test_without_passes_it_is_first_come_first_served():
    hot = prompt(60)
    simulation = warmed(hot, max_passes=0)
    starts = watch_starts(simulation)
    simulation.add("cold", prompt(60, seed=1), 1)
    hit = simulation.add("hot", [*hot, 1], 1)
    simulation.run()
    assert starts == ["cold", "hot"]
    assert hit.cached == 60


def test_what_finds_nothing_cached_is_served_as_it_came():
    simulation = Simulation(num_pages=200, max_num_seqs=1)
    starts = watch_starts(simulation)
    for index, length in enumerate([60, 40, 50, 33]):
        simulation.add(f"r{index}", prompt(length, seed=index), 1)
    simulation.run()
    assert starts == ["r0", "r1", "r2", "r3"]


def test_what_goes_on_comes_before_those_that_have_waited_longer():
    simulation = Simulation(num_pages=200, max_num_seqs=1)
    starts = watch_starts(simulation)
    for index in range(2):
        simulation.add(f"r{index}", prompt(40, seed=index), 3)
    simulation.add("next", prompt(41, seed=2), 1, follows=True)
    simulation.run()
    assert starts == ["next", "r0", "r1"]
    # It is none of those that were asked for, and has not waited for its turn.
    assert simulation.scheduler.totals.finished == {"length": 2}
    assert simulation.scheduler.totals.prompt_tokens == 80


def test_who_shares_with_the_one_that_has_run_comes_next():
    simulation = Simulation(num_pages=200, max_num_seqs=1)
    starts = watch_starts(simulation)
    stems = [prompt(60, seed=1), prompt(60, seed=2)]
    for index in range(6):
        simulation.add(f"{index % 2}/{index}", [*stems[index % 2], index], 1)
    simulation.run()
    assert [name[0] for name in starts] == ["0", "0", "0", "1", "1", "1"]


@pytest.mark.parametrize("most", [1, 5, 64])
def test_a_cold_request_is_passed_so_many_times_and_not_once_more(most: int):
    hot = prompt(60)
    simulation = warmed(hot, max_passes=most)
    simulation.add("cold", prompt(60, seed=1), 1)
    passed = 0
    while simulation.requests["cold"].cached is None:
        simulation.add(f"hot{passed}", [*hot, passed], 1)
        simulation.step()
        passed += f"hot{passed}" in simulation.finished
    assert passed == most


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_passed_by_more_of_its_tenant_than_allowed_whatever_comes(seed: int):
    chance = random.Random(seed)
    most = chance.choice([0, 3, 10])
    simulation = Simulation(
        num_pages=150, max_num_seqs=chance.choice([1, 4]), max_passes=most, max_queue=2000
    )
    simulation.check = False
    stems = [prompt(chance.randrange(20, 100), seed=index) for index in range(5)]
    passes: Counter[str] = Counter()
    seats: set[str] = set()

    def count(plan):
        for row in plan.rows:
            request = simulation.requests[row.request_id]
            if request.id not in seats:
                seats.add(request.id)
                # Who was given the tokens to compute its very prefix by one of these is not passed.
                passes.update(
                    each.id
                    for each in simulation.scheduler.waiting
                    if each.arrival < request.arrival
                    and each.tenant == request.tenant
                    and each.behind is None
                )

    simulation.on_plan = count
    for number in range(400):
        stem = chance.choice(stems)[: chance.randrange(1, 100)]
        simulation.add(
            f"r{number}",
            [*stem, *prompt(chance.randrange(1, 30), seed=number)],
            chance.randrange(1, 6),
            tenant=chance.choice("ab"),
            deadline=chance.choice([None, None, float(chance.randrange(100))]),
        )
        if number % 3 == 0:
            simulation.step()
    simulation.run()
    assert simulation.scheduler.totals.preemptions == 0
    assert max(passes.values(), default=0) <= most
    assert simulation.scheduler.totals.cached_tokens > 0


def test_nobody_waits_for_one_whose_prefix_is_being_computed():
    simulation = Simulation(num_pages=200, max_passes=1, long_prefill_token_threshold=8)
    starts = watch_starts(simulation)
    simulation.add("leader", prompt(100), 1)
    simulation.step()
    follower = simulation.add("follower", prompt(100), 1)
    for index in range(3):
        simulation.add(f"other{index}", prompt(5, seed=index), 1)
    simulation.run()
    assert starts == ["leader", "other0", "other1", "other2", "follower"]
    assert follower.cached == 99


def test_the_earliest_deadline_goes_first_and_who_has_none_last():
    simulation = Simulation(num_pages=200, max_num_seqs=1)
    starts = watch_starts(simulation)
    for name, deadline in [("none", None), ("late", 9.0), ("early", 2.0), ("middle", 5.0)]:
        simulation.add(name, prompt(20, seed=len(name)), 1, deadline=deadline)
    simulation.run()
    assert starts == ["early", "middle", "late", "none"]


def test_deadlines_do_not_starve_who_has_none():
    simulation = Simulation(num_pages=200, max_num_seqs=1, max_passes=3)
    patient = simulation.add("patient", prompt(20), 1)
    urgent = 0
    while patient.cached is None:
        simulation.add(f"urgent{urgent}", prompt(20, seed=urgent + 1), 1, deadline=1.0)
        simulation.step()
        urgent += 1
    assert urgent == 3 + 1


def test_what_was_evicted_since_it_was_looked_up_loses_its_advantage():
    hot = prompt(60)
    simulation = warmed(hot)
    starts = watch_starts(simulation)
    simulation.add("running", prompt(20, seed=3), 12)
    simulation.step()
    simulation.add("cold", prompt(40, seed=1), 1)
    simulation.add("hot", [*hot, 1], 1)
    simulation.step()
    simulation.cache.reset()
    simulation.run()
    assert starts == ["running", "cold", "hot"]


def test_a_plan_that_has_no_seat_to_give_looks_nothing_up(monkeypatch: pytest.MonkeyPatch):
    simulation = Simulation(num_pages=200, max_num_seqs=1)
    simulation.add("running", prompt(10), 50)
    simulation.step()
    for index in range(200):
        simulation.add(f"r{index}", prompt(20, seed=index), 1)

    def looked(*_, **__):
        raise AssertionError("it looked something up")

    monkeypatch.setattr(type(simulation.cache), "peek", looked)
    for _ in range(10):
        assert simulation.step() is not None


def test_a_plan_looks_up_no_more_than_it_may_start(monkeypatch: pytest.MonkeyPatch):
    simulation = Simulation(num_pages=400, max_num_seqs=4, max_num_batched_tokens=64)
    for index in range(1000):
        simulation.add(f"r{index}", prompt(20, seed=index), 2)
    looks = 0
    peek = type(simulation.cache).peek

    def counted(*arguments, **named):
        nonlocal looks
        looks += 1
        return peek(*arguments, **named)

    monkeypatch.setattr(type(simulation.cache), "peek", counted)
    for _ in range(1000 // LOOK_UPS + 1):
        looks = 0
        simulation.step()
        assert looks <= LOOK_UPS + 8
    looks = 0
    for _ in range(10):
        simulation.step()
    # Up to four start in a plan; only these are looked at again, and those that they push back.
    assert looks <= 10 * 4 * 2
