"""Answers with a form: who waits for it, what ends them, and that it survives preemption."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from radixserve.scheduling.plan import Row, Sampled, StepPlan
from tests.scheduling.simulated import Simulation, expected_output

PROMPT = list(range(20))


@dataclass
class Stub:
    """Refuses the token that would be the ``refused``-th, and is complete after ``length``."""

    refused: int = 1000
    length: int = 1000
    ready: bool = True
    accepted: list[int] = field(default_factory=list)

    @property
    def may_end(self) -> bool:
        return self.complete

    @property
    def complete(self) -> bool:
        return len(self.accepted) >= self.length

    def allowed(self) -> bytes:
        return b"\xff" * 125

    def accept(self, token: int) -> bool:
        if len(self.accepted) == self.refused:
            return False
        self.accepted.append(token)
        return True


def give(simulation: Simulation, name: str, stub: Stub) -> Stub:
    simulation.requests[name].matcher = stub
    return stub


@pytest.mark.parametrize("refused", [0, 1, 5])
def test_a_token_that_the_grammar_refuses_ends_its_request_in_that_step_alone(refused: int):
    simulation = Simulation(num_pages=100, max_num_seqs=4)
    simulation.add("stuck", PROMPT, 12)
    simulation.add("other", [*PROMPT[:9], 77], 12)
    stub = give(simulation, "stuck", Stub(refused=refused))
    simulation.run()
    assert simulation.finished == {"stuck": "error", "other": "length"}
    assert len(stub.accepted) == refused
    assert simulation.outputs["other"] == expected_output([*PROMPT[:9], 77], 12)
    simulation.cache.check()


def test_what_the_grammar_makes_complete_ends_at_its_last_token_and_keeps_it():
    simulation = Simulation(num_pages=100)
    simulation.add("whole", PROMPT, 30)
    stub = give(simulation, "whole", Stub(length=7))
    simulation.run()
    assert simulation.finished == {"whole": "stop"}
    assert simulation.outputs["whole"] == stub.accepted == expected_output(PROMPT, 7)


def test_completeness_at_the_limit_is_a_stop():
    simulation = Simulation(num_pages=100)
    simulation.add("whole", PROMPT, 7)
    give(simulation, "whole", Stub(length=7))
    simulation.run()
    assert simulation.finished == {"whole": "stop"}


def test_only_the_request_whose_grammar_is_being_compiled_waits_for_it():
    simulation = Simulation(num_pages=100, max_num_seqs=4)
    simulation.add("waits", PROMPT, 3)
    simulation.add("goes", [1, 2, 3], 3)
    stub = give(simulation, "waits", Stub(ready=False))
    while simulation.scheduler.running or "goes" not in simulation.finished:
        simulation.step()
    assert simulation.finished == {"goes": "length"}
    assert simulation.scheduler.plan() is None
    stub.ready = True
    simulation.run()
    assert simulation.outputs["waits"] == stub.accepted


def test_a_preempted_request_goes_on_where_its_grammar_stood():
    simulation = Simulation(num_pages=16, page_size=4, max_num_seqs=4)
    prompts = {name: [number, *PROMPT[:9]] for number, name in enumerate("abcd", 100)}
    for name, prompt in prompts.items():
        simulation.add(name, prompt, 16)
    stubs = {name: give(simulation, name, Stub()) for name in prompts}
    simulation.run()
    assert simulation.scheduler.totals.preemptions >= 2
    for name, prompt in prompts.items():
        assert stubs[name].accepted == simulation.outputs[name] == expected_output(prompt, 16)


def test_the_rows_of_a_request_carry_its_matcher():
    simulation = Simulation(num_pages=100)
    simulation.add("a", PROMPT, 3)
    stub = give(simulation, "a", Stub())
    rows: list[Row] = []
    execute = simulation.model.execute

    def noted(plan: StepPlan) -> list[tuple[Sampled, ...]]:
        rows.extend(plan.rows)
        return execute(plan)

    simulation.model.execute = noted  # type: ignore[method-assign]
    simulation.run()
    assert {id(row.matcher) for row in rows} == {id(stub)}
