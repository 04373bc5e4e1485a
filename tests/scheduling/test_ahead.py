"""What is surely computed before a request begins: never more than what then is."""

from __future__ import annotations

import random

import pytest

from radixserve.scheduling.ahead import tokens_before
from radixserve.scheduling.request import Request
from tests.scheduling.simulated import Simulation, prompt

PART = 3
"""Tokens of a block that may be copied."""


def before(simulation: Simulation, request: Request) -> int:
    return tokens_before(simulation.scheduler, request)


def test_alone_it_is_what_is_not_cached_of_its_prompt():
    simulation = Simulation(num_pages=200)
    simulation.add("first", prompt(60), 1)
    assert before(simulation, simulation.requests["first"]) == 60 - PART
    simulation.run()
    again = simulation.add("again", [*prompt(60), *range(20)], 1)
    assert before(simulation, again) == 20 - PART
    simulation.run()
    assert again.cached == 60


def test_running_prefills_come_first():
    simulation = Simulation(num_pages=200)
    simulation.add("running", prompt(100), 1)
    simulation.step()
    other = simulation.add("other", prompt(20, seed=1), 1)
    assert before(simulation, other) == (100 - 32) + 20 - PART


def test_what_is_being_computed_already_counts_once():
    simulation = Simulation(num_pages=200)
    simulation.add("running", prompt(100), 1)
    simulation.step()
    same = simulation.add("same", prompt(100), 1)
    assert before(simulation, same) == 100 - 32


def test_who_waits_counts_where_it_surely_goes_before():
    simulation = Simulation(
        num_pages=200, max_num_seqs=2, scheduling_policy="priority", max_num_batched_tokens=200
    )
    simulation.add("running", prompt(20), 50)
    simulation.step()
    simulation.add("better", prompt(40, seed=1), 1, priority=-1, deadline=9.0)
    simulation.add("earlier", prompt(30, seed=2), 1, deadline=1.0)
    simulation.add("same as that", prompt(30, seed=2), 1, deadline=1.0)
    simulation.add("later", prompt(30, seed=3), 1, deadline=3.0)
    simulation.add("whenever", prompt(30, seed=4), 1)
    simulation.add("stranger", prompt(30, seed=5), 1, tenant="other", deadline=1.0)
    for request in simulation.scheduler.waiting:
        simulation.scheduler.in_flight.reusable(request)
    asked = simulation.add("asked", prompt(10, seed=6), 1, deadline=2.0)
    assert before(simulation, asked) == 40 + 30 + 10 - 3 * PART


@pytest.mark.parametrize("seed", range(8))
def test_never_more_than_what_is_then_computed(seed: int):
    chance = random.Random(seed)
    simulation = Simulation(
        num_pages=400, max_num_seqs=chance.choice([1, 4]), max_num_batched_tokens=24
    )
    simulation.check = False
    stems = [prompt(chance.randrange(20, 90), seed=index) for index in range(3)]
    foretold: dict[str, tuple[int, int]] = {}
    totals = simulation.scheduler.totals
    for number in range(120):
        stem = chance.choice(stems)
        request = simulation.add(
            f"r{number}",
            [*stem[: chance.randrange(1, len(stem))], *prompt(chance.randrange(1, 9), seed=number)],
            chance.randrange(1, 5),
            tenant=chance.choice("ab"),
            deadline=chance.choice([None, 1.0, 2.0, 3.0]),
        )
        foretold[request.id] = (totals.computed_tokens, before(simulation, request))
        for _ in range(chance.randrange(3)):
            if not simulation.scheduler.idle:
                simulation.step()
                for name in [each for each in foretold if simulation.outputs[each]]:
                    since, least = foretold.pop(name)
                    assert totals.computed_tokens - since >= least
    assert totals.cached_tokens > 0
