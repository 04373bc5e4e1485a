"""More work than pages: everybody finishes with the right answer, and little is computed twice."""

from __future__ import annotations

import random

import pytest

from tests.scheduling.simulated import Simulation, expected_output, prompt


def test_five_hundred_requests_share_prefixes_in_a_full_pool_and_are_preempted():
    simulation = Simulation(
        num_pages=60, max_num_seqs=10, max_num_batched_tokens=40, scheduling_policy="priority"
    )
    simulation.check = False
    chance = random.Random(11)
    stems = [prompt(chance.randrange(8, 70), seed=index) for index in range(12)]
    wanted = {}
    for index in range(500):
        stem = chance.choice(stems)
        tokens = stem[: chance.randrange(4, len(stem) + 1)] + prompt(3, seed=1000 + index)
        count = chance.randrange(1, 40)
        wanted[f"r{index}"] = (tokens, count)
    arrivals = iter(wanted.items())
    full = steps = 0
    while len(simulation.finished) < 500:
        for name, (tokens, count) in (next(arrivals, (None, ([], 0))) for _ in range(2)):
            if name is not None:
                simulation.add(name, tokens, count, priority=chance.choice([0, 0, 0, -1]))
        assert simulation.step() is not None, "work is waiting and nothing is planned"
        steps += 1
        full += simulation.cache.pool.free == 0
        if steps % 20 == 0:
            simulation.cache.check()
    for name, (tokens, count) in wanted.items():
        assert simulation.outputs[name] == expected_output(tokens, count)
    totals = simulation.scheduler.totals
    assert totals.preemptions > 20
    assert totals.cached_tokens > 3000
    assert full > steps / 2, "the pool was not full"
    simulation.assert_idle()


def test_ten_prompts_that_fill_the_pool_each_evict_what_is_cold_and_none_fails():
    simulation = Simulation(num_pages=11, max_num_seqs=4)
    prompts = [prompt(30, seed=index) for index in range(10)]
    for index, tokens in enumerate(prompts[:5]):
        simulation.add(f"r{index}", tokens, 5)
        simulation.run()
    for index, tokens in enumerate(prompts[5:], 5):
        simulation.add(f"r{index}", tokens, 5)
    simulation.run()
    assert set(simulation.finished.values()) == {"length"}
    for index, tokens in enumerate(prompts):
        assert simulation.outputs[f"r{index}"] == expected_output(tokens, 5)
    assert simulation.scheduler.totals.preemptions == 0, "cold pages were there to be had"
    assert simulation.cache.evicted > 50


@pytest.mark.parametrize("sessions", [4, 8])
def test_sessions_that_do_not_fit_together_all_resume_at_once_and_finish(sessions: int):
    simulation = Simulation(num_pages=61, max_num_batched_tokens=64, max_num_seqs=8)
    length = 2 * 240 // sessions  # the pool holds half of them
    histories = [prompt(length, seed=index) for index in range(sessions)]
    for turn in range(3):
        # Those that came last go first, for they are the ones that may still be warm.
        for index in reversed(range(sessions)) if turn % 2 else range(sessions):
            simulation.add(f"{turn}/{index}", histories[index], 6)
        simulation.run()
        for index, history in enumerate(histories):
            answer = simulation.outputs[f"{turn}/{index}"]
            assert answer == expected_output(history, 6)
            histories[index] = [*history, *answer, *prompt(3, seed=100 * turn + index)]
    later = [each for name, each in simulation.requests.items() if not name.startswith("0/")]
    assert sum(request.cached for request in later) > 0, "nobody resumed from the cache"
    assert simulation.cache.evicted > 0, "all fitted"
    simulation.assert_idle()


def test_a_forced_preemption_costs_the_work_of_one_request_and_no_throughput_after_it():
    simulation = Simulation(
        num_pages=402,
        max_num_seqs=9,
        max_num_batched_tokens=64,
        max_model_len=1600,
        scheduling_policy="priority",
    )
    simulation.check = False
    for index in range(8):
        simulation.add(f"stream{index}", prompt(40, seed=index), 150)
    said = {}
    for step in range(260):
        if step == 40:
            before = sum(said[at] - said[at - 1] for at in range(20, 40)) / 20
            simulation.add("urgent", prompt(1100, seed=99), 4, priority=-1)
        if not simulation.scheduler.running and step:
            break
        simulation.step()
        said[step] = simulation.scheduler.totals.generated_tokens
        if "urgent" in simulation.finished:
            said.setdefault("end", step)
    assert simulation.scheduler.totals.preemptions > 0, "nobody was preempted"
    end = said["end"]
    after = (said[end + 50] - said[end + 30]) / 20
    assert before == 8
    assert after >= 0.8 * before
    simulation.run()
    for index in range(8):
        answer = simulation.outputs[f"stream{index}"]
        assert answer == expected_output(prompt(40, seed=index), 150)


def test_with_half_as_much_again_as_fits_little_is_computed_twice():
    simulation = Simulation(num_pages=81, max_num_seqs=8, max_num_batched_tokens=64)
    requests = {f"r{index}": (prompt(20, seed=index), 40) for index in range(48)}
    # Eight run, and together they need one and a half times the 320 tokens of the pool.
    assert 8 * (20 + 40) == 1.5 * 320
    for name, (tokens, count) in requests.items():
        simulation.add(name, tokens, count)
    simulation.run()
    useful = 48 * (20 + 40 - 1)
    assert simulation.scheduler.totals.preemptions > 0
    assert simulation.model.computed <= 1.25 * useful
    assert all(simulation.outputs[name] == expected_output(*requests[name]) for name in requests)
