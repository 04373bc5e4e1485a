"""What runs and waits, in tokens that are still to be computed."""

from __future__ import annotations

import random

import pytest

from radixserve.scheduling.load import LOOKS, pending_tokens
from tests.scheduling.simulated import Simulation, prompt


def busy(**settings) -> Simulation:
    """One request runs and keeps the only seat."""
    settings = {"num_pages": 400, "max_num_seqs": 1, **settings}
    simulation = Simulation(**settings)
    simulation.add("busy", prompt(20, seed=99), 100)
    simulation.step()
    return simulation


def pending(simulation: Simulation) -> int:
    return pending_tokens(simulation.scheduler)


def test_prompts_that_are_cached_weigh_little():
    simulation = Simulation(num_pages=400, max_num_seqs=1)
    simulation.add("first", prompt(80), 1)
    simulation.run()
    simulation.add("busy", prompt(20, seed=99), 100)
    simulation.step()
    assert pending(simulation) == 0
    for number in range(20):
        simulation.add(f"hot {number}", [*prompt(80), 500 + number], 1)
    assert pending(simulation) == 20
    simulation.add("cold", prompt(80, seed=1), 1)
    assert pending(simulation) == 20 + 80


def test_what_prompts_begin_with_counts_once_and_what_they_end_with_each_time():
    simulation = busy()
    for number in range(10):
        simulation.add(f"r{number}", [*prompt(40), *prompt(30, seed=1 + number)], 1)
    assert pending(simulation) == 40 + 10 * 30


def test_a_running_prefill_counts_with_what_is_left_of_it_and_its_followers_with_their_ends():
    simulation = Simulation(num_pages=400)
    simulation.add("running", prompt(100), 1)
    assert pending(simulation) == 100
    simulation.step()
    assert pending(simulation) == 100 - 32
    simulation.add("follower", [*prompt(100), *range(7)], 1)
    assert pending(simulation) == 100 - 32 + 7


def test_the_answers_to_one_prompt_count_once():
    simulation = busy()
    simulation.add("a", prompt(30), 1)
    simulation.add("b", prompt(30), 1, sibling="a")
    assert pending(simulation) == 30


def test_tenants_do_not_share():
    simulation = busy()
    for name in "ab":
        simulation.add(name, prompt(30), 1, namespace=name.encode(), tenant=name)
    assert pending(simulation) == 60


def test_without_the_cache_everything_counts():
    simulation = busy(prefix_cache=False)
    simulation.add("a", prompt(30), 1)
    simulation.add("b", prompt(30, seed=1), 1)
    assert pending(simulation) == 60


@pytest.mark.parametrize("cached", [0, 60])
def test_of_many_that_were_not_looked_up_the_rest_is_taken_to_be_like_the_first(cached: int):
    simulation = Simulation(num_pages=4000, max_num_seqs=1, max_queue=1000)
    simulation.add("first", prompt(60)[:cached] or [1], 1)
    simulation.run()
    simulation.add("busy", prompt(20, seed=99), 100)
    simulation.step()
    many = 3 * LOOKS
    for number in range(many):
        simulation.add(f"r{number}", [*prompt(60)[:cached], *prompt(12, seed=1 + number)], 1)
    assert pending(simulation) == many * 12


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_is_then_computed(seed: int):
    """Where nothing is evicted, and nothing came before what was asked about."""
    chance = random.Random(seed)
    simulation = Simulation(num_pages=800, max_num_seqs=chance.choice([1, 3]))
    stems = [prompt(4 * chance.randrange(2, 15), seed=index) for index in range(3)]
    for number in range(30):
        stem, tail = chance.choice(stems), prompt(chance.randrange(1, 30), seed=100 + number)
        simulation.add(f"r{number}", [*stem, *tail], 1)
        for _ in range(chance.randrange(2)):
            simulation.step()
    expected = pending(simulation)
    before = simulation.model.computed
    simulation.run()
    computed = simulation.model.computed - before
    # Heads shorter than a block are shared by some orders of starting and not by others.
    assert computed * 0.9 <= expected <= computed * 1.1
