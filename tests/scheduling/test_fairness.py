"""Nobody waits without bound: not the cold, not the preempted, not who stands by a long prompt."""

from __future__ import annotations

import itertools

import pytest

from tests.scheduling.simulated import Simulation, expected_output, prompt

MOST_PASSES = 64
"""A cold request is overtaken by this many that came later, at most."""


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_cold_request_starts_although_hot_ones_never_stop_coming(policy: str):
    simulation = Simulation(num_pages=200, max_num_seqs=1, scheduling_policy=policy)
    hot = prompt(60)
    simulation.add("warm-up", hot, 1)
    simulation.run()
    for index in range(3):
        simulation.add(f"early{index}", [*hot, index], 2)
    cold = simulation.add("cold", prompt(60, seed=1), 2)
    passed = 0
    for number in itertools.count():
        if cold.cached is not None:
            break
        # There is only one seat, and more hot ones than that come.
        simulation.add(f"hot{number}", [*hot, 100 + number], 2)
        before = set(simulation.scheduler.running)
        simulation.step()
        entered = set(simulation.scheduler.running) - before
        passed += sum(name.startswith("hot") for name in entered)
        assert passed <= MOST_PASSES
        assert simulation.scheduler.totals.computed_tokens < 10_000, "the cold one never starts"
    early = [simulation.requests[f"early{index}"] for index in range(3)]
    assert all(request.cached == 60 for request in early), "the hot ones are not hot"
    simulation.run()
    assert simulation.outputs["cold"] == expected_output(prompt(60, seed=1), 2)


def test_an_answer_that_could_outgrow_the_pool_ends_for_its_length_and_is_computed_once():
    simulation = Simulation(num_pages=13, max_model_len=1000, max_num_batched_tokens=16)
    simulation.add("huge", prompt(30), 900)
    simulation.run()
    assert simulation.finished == {"huge": "length"}
    room = 12 * 4 - 30
    assert simulation.outputs["huge"] == expected_output(prompt(30), room)
    assert simulation.model.computed == 30 + room - 1
    assert simulation.requests["huge"].preemptions == 0
    simulation.assert_idle()


@pytest.mark.parametrize("late", [False, True])
def test_an_answer_that_could_outgrow_the_pool_is_prefilled_again_at_most_once_a_preemption(
    late: bool,
):
    simulation = Simulation(num_pages=13, max_model_len=1000, max_num_batched_tokens=16)
    names = ["small", "huge"] if late else ["huge", "small"]
    for name in names:
        simulation.add(name, prompt(20, seed=len(name)), 900 if name == "huge" else 12)
    prefills = dict.fromkeys(names, 0)

    def count(plan):
        for row in plan.rows:
            prefills[row.request_id] += row.start < 16 <= row.context

    simulation.on_plan = count
    simulation.run()
    assert set(simulation.finished.values()) == {"length"}
    assert len(simulation.outputs["huge"]) == 12 * 4 - 20
    assert all(prefills[name] <= 1 + simulation.requests[name].preemptions for name in names)
    assert simulation.scheduler.totals.preemptions <= 2


def test_of_equals_short_of_pages_each_is_preempted_twice_at_most_and_none_overtakes():
    simulation = Simulation(num_pages=15, max_num_seqs=3)
    prompts = [prompt(12, seed=index) for index in range(9)]
    for index, tokens in enumerate(prompts):
        simulation.add(f"r{index}", tokens, 28)
    simulation.run()
    assert simulation.scheduler.totals.preemptions > 5, "the pages were not short"
    assert all(request.preemptions <= 2 for request in simulation.requests.values())
    assert list(simulation.finished) == [f"r{index}" for index in range(9)]
    for index, tokens in enumerate(prompts):
        assert simulation.outputs[f"r{index}"] == expected_output(tokens, 28)


def test_nobody_is_preempted_a_third_time_however_the_lengths_differ():
    simulation = Simulation(num_pages=25, max_num_seqs=5)
    lengths = [
        (8, 30), (15, 35), (15, 37), (11, 42), (14, 16), (3, 37), (15, 18), (7, 43), (16, 41),
    ]  # fmt: skip
    for index, (length, count) in enumerate(lengths):
        simulation.add(f"r{index}", prompt(length, seed=index), count)
    simulation.run()
    most = max(request.preemptions for request in simulation.requests.values())
    assert most == 2, "the third preemption is what is tested here"
    for index, (length, count) in enumerate(lengths):
        assert simulation.outputs[f"r{index}"] == expected_output(prompt(length, seed=index), count)


def test_a_stream_says_a_token_a_step_while_long_prompts_come_and_no_step_grows():
    simulation = Simulation(
        num_pages=900, max_model_len=1000, max_num_batched_tokens=24, max_num_seqs=6
    )
    simulation.add("stream", prompt(5, seed=1), 150)
    simulation.step()
    for index in range(3):
        simulation.add(f"long{index}", prompt(700, seed=10 + index), 2)
    said, sizes = 1, []
    while "stream" not in simulation.finished:
        plan = simulation.step()
        said += 1
        assert len(simulation.outputs["stream"]) == said, "the stream missed a step"
        sizes.append(plan.tokens)
    assert max(sizes) <= 24
    # The long ones used what the stream left of every step until they were done.
    assert sizes[:85] == [24] * 85
    simulation.run()
    for index in range(3):
        assert simulation.outputs[f"long{index}"] == expected_output(
            prompt(700, seed=10 + index), 2
        )


def test_a_short_prompt_gets_its_first_token_while_a_long_one_is_prefilled():
    simulation = Simulation(
        num_pages=400,
        max_model_len=1200,
        max_num_batched_tokens=24,
        long_prefill_token_threshold=16,
    )
    simulation.add("long", prompt(1000, seed=1), 2)
    simulation.step()
    simulation.add("short", prompt(8, seed=2), 2)
    simulation.step()
    assert simulation.outputs["short"] == expected_output(prompt(8, seed=2), 1)
    assert simulation.requests["long"].generated == 0


def test_another_follower_takes_over_each_time_that_a_leader_leaves():
    simulation = Simulation(
        num_pages=600, max_model_len=600, max_num_batched_tokens=64, max_num_seqs=8
    )
    shared = prompt(500)
    for index in range(8):
        simulation.add(f"r{index}", [*shared, 900 + index], 3)
    for leader in ("r0", "r1", "r2"):
        simulation.step()
        simulation.step()
        assert set(simulation.scheduler.running) == {leader}, "who waits holds nothing"
        simulation.abort(leader)
    simulation.run()
    for index in range(3, 8):
        assert simulation.outputs[f"r{index}"] == expected_output([*shared, 900 + index], 3)
    tail = 4 + 1 + 2  # the open block, the own token, and two of the three answered
    assert simulation.model.computed <= 500 + 8 * tail
    simulation.assert_idle()
