"""Tenants that wait share the work by their weights, and nobody banks what they did not ask for."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from radixserve.scheduling.account import Account, Share
from radixserve.scheduling.turns import Turns
from radixserve.tenant import Terms
from tests.scheduling.simulated import Simulation, expected_output, prompt


class Backlogged:
    """Tenants that always have requests waiting: of each, how long its prompts and answers are."""

    def __init__(self, shapes: dict[str, tuple[int, int]], **settings):
        settings.setdefault("max_num_seqs", 4)
        self.simulation = Simulation(num_pages=400, max_queue=10_000, **settings)
        self.simulation.check = False
        self.shapes = shapes
        self.asked = 0

    def top_up(self) -> None:
        waiting = Counter(request.tenant for request in self.simulation.scheduler.waiting)
        for tenant, (length, count) in self.shapes.items():
            for _ in range(8 - waiting[tenant]):
                self.asked += 1
                self.simulation.add(
                    f"{tenant}{self.asked}",
                    prompt(length, seed=self.asked),
                    count,
                    namespace=tenant.encode(),
                    tenant=tenant,
                )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.top_up()
            assert self.simulation.step() is not None

    def shares(self) -> dict[str, Share]:
        return {each.tenant: each for each in self.simulation.scheduler.accounts.shares()}

    def service(self) -> dict[str, int]:
        return {tenant: each.service for tenant, each in self.shares().items()}

    @property
    def slack(self) -> float:
        """How far two that wait may be apart: the paper's bound, and one turn."""
        largest = max(max(length, 2 * 4 * count) for length, count in self.shapes.values())
        return 2 * largest + self.simulation.config.max_num_batched_tokens


@pytest.mark.parametrize(
    "shapes",
    [
        {"a": (20, 4), "b": (20, 4)},
        {"many short": (5, 2), "few long": (150, 40)},
        {"long prompts": (150, 1), "long answers": (2, 40), "both": (90, 30)},
    ],
)
def test_tenants_that_always_wait_are_served_alike_however_they_cut_their_work(shapes):
    tenants = Backlogged(shapes)
    tenants.run(100)
    before = tenants.service()
    tenants.run(800)
    after = tenants.service()
    grown = [after[tenant] - before[tenant] for tenant in shapes]
    assert max(grown) - min(grown) <= tenants.slack
    assert min(grown) > 2 * tenants.slack, "too little was done to tell"


def test_weights_are_shares_of_the_work():
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    tenants = Backlogged(dict.fromkeys(weights, (20, 4)))
    tenants.simulation.scheduler.set_terms(
        {tenant: Terms(weight=weight) for tenant, weight in weights.items()}
    )
    tenants.run(900)
    virtual = [each.service / each.weight for each in tenants.shares().values()]
    assert max(virtual) - min(virtual) <= tenants.slack
    assert min(virtual) > 2 * tenants.slack


def test_new_weights_count_from_now_on():
    tenants = Backlogged({"a": (20, 4), "b": (20, 4)})
    tenants.run(400)
    before = tenants.service()
    tenants.simulation.scheduler.set_terms({"a": Terms(weight=3.0)})
    tenants.run(800)
    after = tenants.service()
    assert (after["a"] - before["a"]) / (after["b"] - before["b"]) == pytest.approx(3, rel=0.15)


def test_who_comes_late_gets_its_share_from_then_on_and_nothing_for_the_time_before():
    tenants = Backlogged({"early": (20, 4)})
    tenants.run(400)
    tenants.shapes["late"] = (20, 4)
    before = tenants.service()["early"]
    tenants.run(400)
    after = tenants.service()
    assert abs(after["late"] - (after["early"] - before)) <= tenants.slack


def test_who_was_away_gets_nothing_for_it():
    tenants = Backlogged({"a": (20, 4), "b": (20, 4)})
    tenants.run(300)
    away = tenants.shapes.pop("b")
    tenants.run(400)
    tenants.shapes["b"] = away
    before = tenants.service()
    tenants.run(400)
    after = tenants.service()
    grown = [after[tenant] - before[tenant] for tenant in "ab"]
    assert abs(grown[0] - grown[1]) <= tenants.slack


def test_who_asks_for_little_gets_all_of_it_at_once():
    tenants = Backlogged({"heavy": (60, 4)}, max_num_seqs=2)
    tenants.run(50)
    for number in range(20):
        light = tenants.simulation.add(f"light{number}", prompt(5, seed=number), 1, tenant="light")
        tenants.top_up()
        steps = 0
        while light.cached is None:
            assert tenants.simulation.step() is not None
            steps += 1
        # A seat has to come free, and no more.
        assert steps <= 60 / 32 + 4 + 2


def test_seats_and_tokens_are_given_to_whoever_wants_them_while_others_do_not():
    alone = Backlogged({"only": (20, 4)})
    alone.run(500)
    beside = Backlogged({"only": (20, 4)})
    beside.simulation.add("visitor", prompt(5), 1, tenant="visitor")
    beside.run(500)
    assert alone.service()["only"] - beside.service()["only"] <= 50


@pytest.mark.parametrize("seed", range(4))
def test_no_seat_and_no_token_is_left_while_somebody_could_start(seed: int):
    chance = random.Random(seed)
    simulation = Simulation(num_pages=2000, max_num_seqs=6, max_num_batched_tokens=40)
    simulation.check = False
    for number in range(150):
        tenant = chance.choice("abc")
        simulation.add(
            f"r{number}",
            prompt(chance.randrange(1, 80), seed=number),
            chance.randrange(1, 8),
            tenant=tenant,
            namespace=tenant.encode(),
        )
    scheduler = simulation.scheduler
    while scheduler.waiting:
        plan = scheduler.plan()
        assert plan.tokens == 40 or len(scheduler.running) == 6 or not scheduler.waiting
        simulation.take(scheduler.commit(plan, simulation.model.execute(plan)))


def test_what_is_cached_costs_its_tenant_nothing():
    simulation = Simulation(num_pages=200)
    simulation.add("first", prompt(60), 1, tenant="a")
    simulation.run()
    simulation.add("again", prompt(60), 1, tenant="a")
    simulation.run()
    assert simulation.requests["again"].cached == 59
    (share,) = simulation.scheduler.accounts.shares()
    assert share.service == 60 + 2 * 1 + 1 + 2 * 1


def test_several_answers_to_a_prompt_pay_for_it_once():
    simulation = Simulation(num_pages=200)
    simulation.add("n/0", prompt(30), 6, tenant="a")
    for index in range(1, 4):
        simulation.add(f"n/{index}", prompt(30), 6, tenant="a", sibling="n/0")
    simulation.run()
    (share,) = simulation.scheduler.accounts.shares()
    assert share.service == 30 + 2 * 4 * 6
    assert (share.started, share.waiting) == (4, 0)


def test_an_abort_gives_nothing_back_and_leaves_nobody_in_line():
    simulation = Simulation(num_pages=200, max_num_batched_tokens=8)
    simulation.add("running", prompt(30), 5, tenant="a")
    simulation.step()
    simulation.add("waiting", prompt(30, seed=1), 5, tenant="b")
    simulation.abort("running")
    simulation.abort("waiting")
    assert {each.tenant: each.service for each in simulation.scheduler.accounts.shares()} == {
        "a": 8,
        "b": 0,
    }
    simulation.add("next", prompt(10, seed=2), 2, tenant="c")
    simulation.run()
    assert simulation.outputs["next"] == expected_output(prompt(10, seed=2), 2)
    assert all(each.waiting == 0 for each in simulation.scheduler.accounts.shares())


def test_what_is_computed_again_after_a_preemption_is_not_paid_twice():
    simulation = Simulation(num_pages=13, page_size=4, max_num_seqs=4)
    for index in range(4):
        simulation.add(f"r{index}", prompt(8, seed=index), 24, tenant="ab"[index % 2])
    simulation.run()
    totals = simulation.scheduler.totals
    assert totals.preemptions > 0
    assert totals.computed_tokens > 4 * (8 + 23), "nothing was computed again"
    assert [each.service for each in simulation.scheduler.accounts.shares()] == [
        2 * (8 + 2 * 24)
    ] * 2


def test_who_was_preempted_comes_before_newcomers_of_all_tenants():
    simulation = Simulation(num_pages=13, page_size=4, max_num_seqs=4)
    simulation.add("old", prompt(8, seed=1), 24, tenant="a")
    second = simulation.add("second", prompt(8, seed=2), 24, tenant="a")
    while not second.preemptions:
        simulation.step()
    simulation.add("new", prompt(2, seed=3), 1, tenant="b")
    simulation.run()
    assert next(iter(simulation.finished)) == "old"
    assert simulation.outputs["second"] == expected_output(prompt(8, seed=2), 24)
    assert simulation.outputs["new"] == expected_output(prompt(2, seed=3), 1)


def test_a_class_comes_before_every_other_whatever_its_tenants_have_had():
    simulation = Simulation(num_pages=400, max_num_seqs=1, scheduling_policy="priority")
    for index in range(3):
        simulation.add(f"served{index}", prompt(60, seed=index), 5, tenant="a")
    simulation.run()
    simulation.add("low", prompt(5, seed=10), 1, tenant="b", priority=1)
    simulation.add("high", prompt(60, seed=11), 1, tenant="a", priority=0)
    simulation.run()
    assert list(simulation.finished)[-2:] == ["high", "low"]


def test_lag_is_how_far_one_is_ahead_of_the_least_served_that_waits():
    simulation = Simulation(num_pages=400, max_num_seqs=1, max_num_batched_tokens=100)
    simulation.add("a", prompt(60), 10, tenant="a")
    simulation.add("b", prompt(60, seed=1), 10, tenant="b")
    simulation.step()
    shares = {each.tenant: each for each in simulation.scheduler.accounts.shares()}
    assert shares["b"].lag == 0
    assert shares["a"].lag == 62
    assert shares["b"].waiting == 1
    simulation.run()
    shares = {each.tenant: each for each in simulation.scheduler.accounts.shares()}
    assert [shares["a"].lag, shares["b"].lag] == [0, 0]
    assert shares["a"].waited < shares["b"].waited


def test_a_turn_lasts_a_quantum_and_ends_when_somebody_begins_to_wait():
    turns = Turns(quantum=10)
    a, b, c = (Account(name) for name in "abc")
    turns.join(a)
    turns.join(b)
    assert turns.next() is a
    a.prefilled += 9
    assert turns.next() is a
    a.prefilled += 1
    assert turns.next() is b
    c.lift(b.virtual)
    turns.join(c)
    assert turns.next() is c, "it had no turn yet, and b has had one"
    turns.leave(c)
    assert turns.next() is b
    turns.leave(b)
    turns.leave(a)
    assert turns.next() is None


def test_among_many_tenants_only_those_whose_counters_grew_are_looked_at():
    keyed = 0

    class Counted(Account):
        __slots__ = ()

        @property
        def virtual(self):
            nonlocal keyed
            keyed += 1
            return super().virtual

    turns = Turns(quantum=1)
    accounts = [Counted(f"{number:04}") for number in range(1000)]
    for account in accounts:
        turns.join(account)
    keyed = 0
    for account in accounts:
        assert turns.next() is account
        account.prefilled += 5
    # Each is looked at when it gets the turn, when that ends and when its place is put right.
    assert keyed <= 8 * 1000


def test_a_thousand_tenants_with_one_request_each_are_served_as_they_came():
    simulation = Simulation(num_pages=400, max_num_seqs=4, max_num_batched_tokens=64)
    simulation.check = False
    for number in range(1000):
        simulation.add(f"{number}", prompt(6, seed=number), 1, tenant=f"tenant{number:04}")
    simulation.run()
    assert len(simulation.finished) == 1000
    assert list(simulation.finished) == [f"{number}" for number in range(1000)]


def test_tenants_served_alike_of_whom_nobody_can_begin_are_passed_over_once_a_plan():
    turns = Turns(quantum=10)
    a, b, c = (Account(name) for name in "abc")
    for each in (a, b, c):
        turns.join(each)
    seen = []
    while (account := turns.next()) is not None:
        seen.append(account)
        turns.pass_over(account)
    assert seen == [a, b, c]
    turns.leave(b)
    turns.begin()
    assert {turns.next(), turns.least()} <= {a, c}
    turns.leave(a)
    turns.leave(c)
    assert turns.next() is None


def test_tenants_who_all_wait_for_one_prefill_do_not_hold_up_a_plan():
    """Each waits for the leader of its own prompt, and they have been served the same."""
    simulation = Simulation(num_pages=200, page_size=4, max_num_batched_tokens=8, max_num_seqs=8)
    for tenant in "abc":
        for name in "12":
            prompt = [ord(tenant), *range(20, 60)]
            simulation.add(tenant + name, prompt, 2, tenant=tenant, namespace=tenant.encode())
    simulation.run()
    assert all(len(output) == 2 for output in simulation.outputs.values())
