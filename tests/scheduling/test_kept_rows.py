"""A request that decodes keeps its row; whatever ends its lease ends the row too."""

from __future__ import annotations

import pytest

from radixserve.scheduling.plan import Row, StepPlan
from radixserve.tokens import pack
from tests.scheduling.simulated import Simulation, expected_output, planned

PROMPT = list(range(10))


def commit(simulation: Simulation, plan: StepPlan) -> None:
    simulation.take(simulation.scheduler.commit(plan, simulation.model.execute(plan)))
    simulation.cache.check()


def test_it_keeps_one_row_which_is_a_token_further_in_each_step():
    simulation = Simulation()
    simulation.add("a", PROMPT, 20)
    prefill = simulation.step()
    assert prefill is not None
    assert prefill.decoding == 0
    rows: list[Row] = []
    for start in range(10, 28):
        plan = planned(simulation)
        assert plan.decoding == 1
        rows += plan.rows
        assert plan.rows[0].start == start
        assert plan.rows[0].tokens == pack(simulation.outputs["a"][-1:])
        commit(simulation, plan)
    assert len({id(row) for row in rows}) == 1
    assert prefill.rows[0] is not rows[0]
    assert prefill.tokens == 10


def test_its_page_row_is_the_one_that_the_lease_goes_on_writing():
    simulation = Simulation(page_size=2)
    request = simulation.add("a", PROMPT, 20)
    simulation.step()
    for _ in range(15):
        plan = planned(simulation)
        [row] = plan.rows
        assert request.lease is not None
        assert row.pages is request.lease.pages
        assert len(row.pages) * 2 >= row.context
        commit(simulation, plan)


def test_decoding_rows_come_first_and_are_counted():
    simulation = Simulation(max_num_batched_tokens=12)
    for name in ("a", "b"):
        simulation.add(name, [ord(name)], 20)
    simulation.step()
    simulation.add("long", list(range(100, 130)), 2)
    plan = planned(simulation)
    assert [(row.request_id, row.count) for row in plan.rows] == [("a", 1), ("b", 1), ("long", 10)]
    assert plan.decoding == 2
    assert plan.tokens == 12


def test_after_a_preemption_it_comes_back_with_a_new_row():
    simulation = Simulation(num_pages=13, scheduling_policy="priority", max_num_seqs=4)
    low = simulation.add("low", list(range(30)), 12, priority=1)
    simulation.step()
    simulation.step()
    old = low.row
    assert old is not None
    simulation.add("high", list(range(100, 130)), 4, priority=0)
    simulation.step()
    assert low.preemptions == 1
    assert low.row is None
    while low.row is None:
        simulation.step()
    assert low.row is not old
    simulation.run()
    # The simulated model has checked all that was read through the new row.
    assert simulation.outputs["low"] == expected_output(list(range(30)), 12)
    simulation.assert_idle()


def test_a_decoding_row_that_is_preempted_while_the_step_is_planned_is_not_in_the_plan():
    simulation = Simulation(num_pages=6, page_size=4, max_num_seqs=2)
    first = simulation.add("first", [1, 2, 3, 4, 5, 6], 12)
    simulation.step()
    second = simulation.add("second", [7, 8, 9], 12)
    while second.preemptions == 0:
        plan = planned(simulation)
        commit(simulation, plan)
    assert [row.request_id for row in plan.rows] == ["first"]
    assert plan.decoding == plan.tokens == 1
    assert first.preemptions == 0
    simulation.run()
    assert simulation.outputs["second"] == expected_output([7, 8, 9], 12)


def test_siblings_have_rows_of_their_own_and_copy_before_they_write():
    simulation = Simulation()
    simulation.add("n/0", PROMPT, 6, seed=1)
    simulation.add("n/1", PROMPT, 6, seed=2, sibling="n/0")
    simulation.step()
    plan = planned(simulation)
    one, other = plan.rows
    assert plan.decoding == 2
    assert one.pages[:2] == other.pages[:2]
    # The shared open block is held until the copies have run, so that both take one.
    assert [(copy.target, copy.tokens) for copy in plan.copies] == [
        (one.pages[2], 2),
        (other.pages[2], 2),
    ]
    commit(simulation, plan)
    simulation.run()
    for index in range(2):
        said = expected_output(PROMPT, 6, salt=index + 1)
        assert simulation.outputs[f"n/{index}"] == said


@pytest.mark.parametrize("again", [False, True])
def test_an_abort_in_flight_ends_a_kept_row_and_lets_the_others_go_on(again: bool):
    simulation = Simulation()
    gone = simulation.add("gone", PROMPT, 20)
    simulation.add("stays", [50, 51], 6)
    for _ in range(3):
        simulation.step()
    plan = planned(simulation)
    assert plan.decoding == 2
    simulation.abort("gone")
    assert gone.row is None
    known = gone.known
    if again:  # nothing of the step that runs belongs to one of the same name that comes meanwhile
        simulation.add("gone", [60, 61], 3)
    commit(simulation, plan)
    assert gone.known == known
    simulation.run()
    assert simulation.outputs["stays"] == expected_output([50, 51], 6)
    if again:
        assert simulation.outputs["gone"] == expected_output([60, 61], 3)
    simulation.assert_idle()


def test_the_totals_count_what_went_through_the_model_also_for_those_who_left():
    simulation = Simulation()
    simulation.add("gone", PROMPT, 20)
    simulation.add("stays", [50, 51], 6)
    simulation.step()
    plan = planned(simulation)
    simulation.abort("gone")
    commit(simulation, plan)
    simulation.run()
    totals = simulation.scheduler.totals
    assert totals.computed_tokens == simulation.model.computed == 10 + 2 + 1 + 5
    assert totals.generated_tokens == 1 + 6
