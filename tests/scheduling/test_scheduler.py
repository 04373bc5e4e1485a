"""Continuous batching, chunks, priorities, preemption, early refusal, in-flight sharing."""

from __future__ import annotations

import random

import pytest

from radixserve.errors import ContextLengthError, InvalidRequestError, OverloadedError
from tests.scheduling.simulated import Simulation, expected_output, prompt


def test_a_request_gets_its_tokens_and_leaves_nothing_pinned():
    simulation = Simulation()
    simulation.add("a", prompt(10), 5)
    simulation.run()
    assert simulation.outputs["a"] == expected_output(prompt(10), 5)
    assert simulation.finished["a"] == "length"
    simulation.assert_idle()


def test_prefill_chunks_and_decode_rows_share_one_step():
    simulation = Simulation(max_num_batched_tokens=8)
    simulation.add("stream", prompt(4, seed=1), 20)
    simulation.step()
    simulation.add("long", prompt(40, seed=2), 1)
    mixed = [
        {row.request_id: row.count for row in plan.rows} for plan in iter(simulation.step, None)
    ]
    assert mixed[0] == {"stream": 1, "long": 7}
    # The stream gets its token in each step of the other's prefill.
    assert all(step.get("stream") == 1 for step in mixed[:19])
    assert simulation.outputs["long"] == expected_output(prompt(40, seed=2), 1)


def test_a_long_prefill_does_not_take_the_turn_of_a_stream_that_came_later():
    simulation = Simulation(
        max_num_batched_tokens=8, long_prefill_token_threshold=7, max_model_len=300
    )
    simulation.add("long", prompt(150, seed=2), 1)
    simulation.add("stream", prompt(1, seed=1), 12)
    simulation.step()
    for said in range(1, 12):
        assert len(simulation.outputs["stream"]) == said
        simulation.step()
    assert simulation.finished == {"stream": "length"}


def test_the_threshold_bounds_what_one_prompt_takes_of_a_step():
    simulation = Simulation(max_num_batched_tokens=32, long_prefill_token_threshold=5)
    simulation.add("a", prompt(20, seed=1), 1)
    simulation.add("b", prompt(20, seed=2), 1)
    plan = simulation.step()
    assert [row.count for row in plan.rows] == [5, 5]


def test_no_step_exceeds_the_budget_or_the_seats_however_much_is_reused():
    simulation = Simulation(num_pages=300, max_num_batched_tokens=64, max_num_seqs=64)
    shared = prompt(100)
    simulation.add("warm", shared, 1)
    simulation.run()
    for index in range(64):
        simulation.add(f"hot{index}", [*shared, index], 3)
    seats = []
    simulation.on_plan = lambda plan: seats.append(len(plan.rows))
    simulation.run()  # the simulated model asserts the budget
    assert max(seats) <= 64
    assert all(
        request.cached == 100 for name, request in simulation.requests.items() if name != "warm"
    )


def test_first_come_first_served_ignores_priorities_under_fcfs():
    simulation = Simulation(max_num_seqs=1)
    simulation.add("first", prompt(5, seed=1), 2, priority=5)
    simulation.add("second", prompt(5, seed=2), 2, priority=-5)
    simulation.run()
    assert list(simulation.finished) == ["first", "second"]


def test_the_lower_priority_number_goes_first_under_the_priority_policy():
    simulation = Simulation(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in [("low", 1), ("high", -1), ("normal", 0)]:
        simulation.add(name, prompt(5, seed=priority), 2, priority=priority)
    simulation.run()
    assert list(simulation.finished) == ["high", "normal", "low"]


def test_a_high_priority_arrival_takes_a_seat_from_a_lower_one_but_not_from_an_equal():
    simulation = Simulation(max_num_seqs=2, scheduling_policy="priority")
    simulation.add("low", prompt(5, seed=1), 10, priority=1)
    simulation.add("normal", prompt(5, seed=2), 10, priority=0)
    simulation.step()
    simulation.add("equal", prompt(5, seed=3), 10, priority=1)
    simulation.step()
    assert set(simulation.scheduler.running) == {"low", "normal"}
    simulation.add("high", prompt(5, seed=4), 10, priority=0)
    simulation.step()
    assert set(simulation.scheduler.running) == {"high", "normal"}
    simulation.run()
    assert all(
        simulation.outputs[name] == expected_output(prompt(5, seed=seed), 10)
        for name, seed in [("low", 1), ("normal", 2), ("equal", 3), ("high", 4)]
    )


def test_a_high_priority_arrival_preempts_when_the_pages_are_short():
    simulation = Simulation(num_pages=13, scheduling_policy="priority")
    simulation.add("low", prompt(30, seed=1), 10, priority=1)
    simulation.step()
    simulation.add("high", prompt(30, seed=2), 10, priority=0)
    simulation.step()
    assert set(simulation.scheduler.running) == {"high"}
    simulation.run()
    assert simulation.outputs["low"] == expected_output(prompt(30, seed=1), 10)
    simulation.assert_idle()


def test_what_can_never_fit_is_refused_when_it_arrives():
    simulation = Simulation(num_pages=11, page_size=4, max_model_len=1000)
    with pytest.raises(ContextLengthError, match="maximum context length is 40 tokens"):
        simulation.add("long", prompt(40))
    simulation.add("fits", prompt(39), 50)
    simulation.run()
    assert len(simulation.outputs["fits"]) == 1
    assert simulation.finished["fits"] == "length"


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequestError, match="empty"):
        Simulation().add("empty", [])


def test_the_queue_is_bounded():
    simulation = Simulation(max_queue=2, max_num_seqs=3)
    for name in "abcde":
        simulation.add(name, prompt(3))
    with pytest.raises(OverloadedError):
        simulation.add("f", prompt(3))
    # Three of them have seats now, which is as many as were counted before.
    simulation.step()
    with pytest.raises(OverloadedError):
        simulation.add("f", prompt(3))
    simulation.run()
    simulation.add("f", prompt(3))
    simulation.run()
    assert simulation.outputs["f"] == expected_output(prompt(3), 4)
    assert simulation.requests["f"].cached == 2


def test_preempted_requests_keep_their_place_and_are_preempted_at_most_twice():
    simulation = Simulation(num_pages=13, page_size=4, max_num_seqs=4)
    for index in range(4):
        simulation.add(f"r{index}", prompt(8, seed=index), 24)
    simulation.run()
    assert simulation.scheduler.totals.preemptions > 0
    for index in range(4):
        assert simulation.outputs[f"r{index}"] == expected_output(prompt(8, seed=index), 24)
        assert simulation.requests[f"r{index}"].preemptions <= 2
    assert next(iter(simulation.finished)) == "r0"
    simulation.assert_idle()


def test_recomputation_under_overload_is_bounded():
    simulation = Simulation(num_pages=40, page_size=4, max_num_seqs=8, max_num_batched_tokens=64)
    for index in range(16):
        simulation.add(f"r{index}", prompt(20, seed=index), 40)
    simulation.run()
    useful = 16 * (20 + 40)
    assert simulation.scheduler.totals.computed_tokens <= 2 * useful


def test_cached_tokens_are_reported_as_of_the_first_start_however_often_it_is_preempted():
    simulation = Simulation(num_pages=13, page_size=4, max_num_seqs=4)
    for index in range(4):
        simulation.add(f"r{index}", prompt(8, seed=index), 24)
    simulation.run()
    assert all(request.cached == 0 for request in simulation.requests.values())
    assert simulation.scheduler.totals.cached_tokens == 0


def test_k_identical_cold_prompts_cost_one_prefill():
    simulation = Simulation(
        num_pages=600, page_size=4, max_num_batched_tokens=128, max_model_len=600
    )
    for index in range(8):
        simulation.add(f"r{index}", prompt(500), 3)
    simulation.run()
    recomputed = simulation.model.computed - 500 - 8 * 2
    assert recomputed <= 8 * 4  # at most the open block each
    assert all(out == expected_output(prompt(500), 3) for out in simulation.outputs.values())
    simulation.assert_idle()


def test_a_follower_takes_over_when_the_leader_is_aborted():
    simulation = Simulation(num_pages=200, page_size=4, max_num_batched_tokens=16)
    for index in range(3):
        simulation.add(f"r{index}", prompt(100), 2)
    simulation.step()
    simulation.step()
    assert set(simulation.scheduler.running) == {"r0"}
    simulation.abort("r0")
    simulation.step()
    assert set(simulation.scheduler.running) == {"r1"}
    simulation.run()
    assert simulation.outputs["r2"] == expected_output(prompt(100), 2)
    assert simulation.model.computed <= 100 + 2 * (4 + 2)
    simulation.assert_idle()


def test_a_leader_runs_at_the_highest_priority_of_its_followers():
    simulation = Simulation(
        num_pages=200, page_size=4, max_num_batched_tokens=16, scheduling_policy="priority"
    )
    leader = simulation.add("leader", prompt(100), 2, priority=5)
    simulation.step()
    simulation.add("follower", prompt(100), 2, priority=-1)
    simulation.step()
    assert leader.priority == -1


def test_requests_in_different_namespaces_neither_share_nor_wait_for_each_other():
    simulation = Simulation(num_pages=200, page_size=4, max_num_batched_tokens=64)
    simulation.add("a", prompt(40), 2, namespace=b"a")
    simulation.add("b", prompt(40), 2, namespace=b"b")
    simulation.step()
    assert set(simulation.scheduler.running) == {"a", "b"}
    simulation.run()
    simulation.add("a2", prompt(40), 2, namespace=b"a")
    simulation.run()
    assert simulation.requests["b"].cached == 0
    assert simulation.requests["a2"].cached == 39


def test_without_a_prefix_cache_nothing_is_reused_and_nothing_waits():
    simulation = Simulation(prefix_cache=False, num_pages=200)
    simulation.add("a", prompt(10), 3)
    simulation.add("b", prompt(10), 3)
    simulation.step()
    assert len(simulation.scheduler.running) == 2
    simulation.run()
    assert simulation.model.computed == 2 * 12
    assert simulation.cache.pool.free == 199


def test_siblings_compute_their_prompt_once_and_get_their_own_tokens():
    simulation = Simulation(num_pages=200, page_size=4)
    simulation.add("n/0", prompt(30), 6, seed=1)
    for index in range(1, 4):
        simulation.add(f"n/{index}", prompt(30), 6, seed=index + 1, sibling="n/0")
    simulation.run()
    assert simulation.model.computed == 30 + 4 * 5
    for index in range(4):
        said = expected_output(prompt(30), 6, salt=index + 1)
        assert simulation.outputs[f"n/{index}"] == said
    assert len({tuple(out) for out in simulation.outputs.values()}) == 4
    simulation.assert_idle()


def test_siblings_that_find_no_seat_run_later_on_what_the_first_left():
    simulation = Simulation(num_pages=200, page_size=4, max_num_seqs=2)
    simulation.add("n/0", prompt(30), 6)
    for index in range(1, 4):
        simulation.add(f"n/{index}", prompt(30), 6, sibling="n/0")
    simulation.run()
    assert all(out == expected_output(prompt(30), 6) for out in simulation.outputs.values())
    assert simulation.scheduler.totals.prompt_tokens == 30


@pytest.mark.parametrize("moment", ["queued", "admitted", "mid-chunk", "decoding", "planned"])
def test_an_abort_at_any_moment_gives_everything_back(moment):
    simulation = Simulation(num_pages=100, page_size=4, max_num_batched_tokens=8)
    simulation.add("a", prompt(30), 5)
    steps = {"queued": 0, "admitted": 1, "mid-chunk": 2, "decoding": 5, "planned": 2}[moment]
    for _ in range(steps):
        simulation.step()
    if moment == "planned":
        plan = simulation.scheduler.plan()
        simulation.abort("a")
        simulation.add("b", prompt(10, seed=9), 2)
        simulation.scheduler.commit(plan, simulation.model.execute(plan))
    else:
        simulation.abort("a")
    simulation.run()
    simulation.assert_idle()
    assert simulation.scheduler.totals.finished["abort"] == 1
    # What was computed before is right, and is reused.
    simulation.add("again", prompt(30), 5)
    simulation.run()
    assert simulation.outputs["again"] == expected_output(prompt(30), 5)
    assert (simulation.requests["again"].cached > 0) == (moment not in ("queued",))


def test_a_failed_step_publishes_nothing_and_fails_only_its_own_requests():
    simulation = Simulation(num_pages=100, page_size=4, max_num_seqs=1)
    simulation.add("a", prompt(10), 3)
    simulation.add("b", prompt(10), 3)
    plan = simulation.scheduler.plan()
    simulation.take(simulation.scheduler.fail(plan, "the step broke"))
    assert simulation.finished == {"a": "error"}
    simulation.cache.check()
    assert simulation.cache.tree.pages == 0
    simulation.run()
    assert simulation.outputs["b"] == expected_output(prompt(10), 3)
    simulation.assert_idle()


def test_a_stop_token_ends_a_request_only_after_the_minimum():
    tokens = expected_output(prompt(10), 6)
    simulation = Simulation()
    simulation.add("a", prompt(10), 6, stop_token_ids=(tokens[1],))
    simulation.run()
    assert simulation.outputs["a"] == tokens[:2]
    assert simulation.finished["a"] == "stop"


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_requests_aborts_and_tiny_pools_ends_with_right_answers(seed):
    """Random traffic: shared prefixes, namespaces, priorities, siblings, aborts, preemption."""
    chance = random.Random(seed)
    simulation = Simulation(
        num_pages=chance.choice([16, 24, 60]),
        page_size=chance.choice([1, 2, 4]),
        max_num_seqs=chance.choice([1, 3, 8]),
        max_num_batched_tokens=chance.choice([8, 16, 40]),
        long_prefill_token_threshold=chance.choice([0, 3]),
        scheduling_policy=chance.choice(["fcfs", "priority"]),
        prefix_cache=chance.random() < 0.85,
    )
    room = simulation.scheduler.capacity
    stems = [prompt(chance.randrange(1, room), seed=100 + index) for index in range(4)]
    wanted = {}
    live = []
    for step in range(400):
        if chance.random() < 0.25 and step < 300:
            stem = chance.choice(stems)
            tokens = stem[: chance.randrange(1, len(stem) + 1)]
            tokens = (tokens + prompt(chance.randrange(0, 4), seed=step))[: room - 1]
            count = chance.randrange(1, 12)
            names = [f"{step}/{index}" for index in range(chance.choice([1, 1, 1, 3]))]
            if tokens:
                for name in names:
                    sibling = names[0] if name != names[0] else None
                    simulation.add(
                        name,
                        tokens,
                        count,
                        sibling=sibling,
                        namespace=chance.choice([b"", b"x"]) if len(names) == 1 else b"",
                        priority=chance.randrange(-1, 2) if len(names) == 1 else 0,
                    )
                    wanted[name] = expected_output(tokens, min(count, room - len(tokens)))
                    live.append(name)
        if live and chance.random() < 0.05:
            victim = live.pop(chance.randrange(len(live)))
            if victim not in simulation.finished:
                simulation.abort(victim)
        if chance.random() < 0.01:
            simulation.cache.reset()
            simulation.cache.check()
        simulation.step()
    simulation.run()
    for name, tokens in wanted.items():
        if simulation.finished[name] != "abort":
            assert simulation.outputs[name] == tokens
    assert all(request.preemptions <= 2 for request in simulation.requests.values())
    simulation.assert_idle()
