"""What is counted as reused, and what seats and pools make of it."""

from __future__ import annotations

import pytest

from tests.scheduling.simulated import Simulation


def alone(number: int, length: int) -> list[int]:
    """A prompt that has no token in common with those of other numbers."""
    return list(range(1000 * number, 1000 * number + length))


def counted(simulation: Simulation) -> tuple[int, int]:
    totals = simulation.scheduler.totals
    return totals.prompt_tokens, totals.cached_tokens


def test_prompts_that_share_nothing_hit_nothing_however_often_they_step_back():
    simulation = Simulation(num_pages=13, max_num_seqs=4)
    for number in range(6):
        simulation.add(f"r{number}", alone(number, 8), 24)
    simulation.run()
    assert simulation.scheduler.totals.preemptions > 0
    assert counted(simulation) == (6 * 8, 0)


@pytest.mark.parametrize("length", [29, 32, 100])
@pytest.mark.parametrize("at_once", [False, True])
def test_of_equal_prompts_all_but_the_first_hit_and_are_counted_once(length: int, at_once: bool):
    simulation = Simulation(num_pages=400)
    for number in range(6):
        simulation.add(f"r{number}", alone(0, length), 4)
        if not at_once:
            simulation.run()
    simulation.run()
    assert counted(simulation) == (6 * length, 5 * (length - 1))


def test_several_answers_to_a_prompt_count_it_once():
    simulation = Simulation(num_pages=400, max_num_seqs=2)
    for number in range(4):
        simulation.add(f"r{number}", alone(0, 30), 4, sibling="r0" if number else None)
    simulation.run()
    assert counted(simulation) == (30, 0)


def test_what_is_in_common_with_others_is_reused_to_the_token():
    for shared in range(1, 13):
        simulation = Simulation()
        simulation.add("first", alone(0, 20), 1)
        simulation.run()
        simulation.add("second", alone(0, shared) + alone(1, 5), 1)
        simulation.run()
        assert simulation.requests["second"].cached == shared


@pytest.mark.parametrize(("spare", "warm"), [(0, True), (-1, False)])
def test_more_conversations_than_seats_all_stay_warm_where_the_pool_holds_them(
    spare: int, warm: bool
):
    """In a pool that lacks room for one of them they push each other out in turn."""
    seats, length = 4, 37
    talks = seats + 1
    pages = -(-(length + 3) // 4)
    simulation = Simulation(
        num_pages=1 + (talks + spare) * pages + 1, max_num_seqs=seats, max_passes=0
    )
    for turn in range(2):
        for talk in range(talks):
            simulation.add(f"{turn} {talk}", alone(talk, length), 3)
            simulation.run()
    reused = [simulation.requests[f"1 {talk}"].cached for talk in range(talks)]
    assert (min(reused) == length - 1) == warm
    assert warm or max(reused) < length // 4
    simulation.assert_idle()
