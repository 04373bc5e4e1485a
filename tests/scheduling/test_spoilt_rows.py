"""A row whose logits are no numbers ends its request, and nothing of its KV is used again."""

from __future__ import annotations

import pytest

from radixserve.scheduling.plan import Sampled, StepPlan
from radixserve.tokens import pack
from tests.scheduling.simulated import Simulation, planned

NOT_A_NUMBER = "the model's output is not a number"
PROMPT = list(range(20))


def spoil(simulation: Simulation, plan: StepPlan) -> None:
    """Every row that samples in ``plan`` fails alone; the others are as they are."""
    sampled = simulation.model.execute(plan)
    broken = [
        (Sampled(0, error=NOT_A_NUMBER),) * (1 + len(row.forks)) if row.sampling else tokens
        for row, tokens in zip(plan.rows, sampled, strict=True)
    ]
    simulation.take(simulation.scheduler.commit(plan, broken))
    simulation.cache.check()


@pytest.mark.parametrize("budget", [64, 7])
def test_what_a_spoilt_request_computed_is_not_reused(budget: int):
    simulation = Simulation(num_pages=100, max_num_batched_tokens=budget, max_num_seqs=4)
    simulation.add("a", PROMPT, 3)
    while not simulation.finished:
        spoil(simulation, planned(simulation))
    assert simulation.finished == {"a": "error"}
    assert simulation.cache.tree.pages == 0


def test_it_takes_the_cached_prefix_along_since_the_fault_may_lie_there():
    simulation = Simulation(num_pages=100)
    simulation.add("first", PROMPT, 1)
    simulation.run()
    assert simulation.cache.tree.pages > 0
    simulation.add("second", [*PROMPT, 50, 51, 52, 53, 54], 3)
    spoil(simulation, planned(simulation))
    assert simulation.finished["second"] == "error"
    assert simulation.cache.peek(pack([*PROMPT, 9]), b"").tokens == 0


def test_what_others_hold_stays_until_they_end():
    simulation = Simulation(num_pages=100)
    simulation.add("holder", PROMPT, 9)
    simulation.step()
    simulation.add("spoilt", [*PROMPT, 50, 51, 52, 53, 54], 3)
    plan = planned(simulation)
    sampled = list(simulation.model.execute(plan))
    sampled[[row.request_id for row in plan.rows].index("spoilt")] = (
        Sampled(0, error=NOT_A_NUMBER),
    )
    simulation.take(simulation.scheduler.commit(plan, sampled))
    simulation.cache.check()
    simulation.run()
    assert simulation.finished == {"spoilt": "error", "holder": "length"}


def test_its_siblings_end_with_it():
    simulation = Simulation(num_pages=100)
    simulation.add("a", PROMPT, 3)
    simulation.add("b", PROMPT, 3, sibling="a")
    spoil(simulation, planned(simulation))
    assert simulation.finished == {"a": "error", "b": "error"}
    assert simulation.scheduler.idle
