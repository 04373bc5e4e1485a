"""A public prefix is computed once, whoever comes first, and by each what follows it."""

from __future__ import annotations

import random

import pytest

from radixserve.tokens import pack
from tests.scheduling.simulated import Simulation, expected_output, prompt

SYSTEM = prompt(100, seed=1)
TENANTS = ("a", "b", "c", "d")


def simulation(**settings: int) -> Simulation:
    made = Simulation(num_pages=300, max_num_batched_tokens=32, **settings)
    made.cache.set_public([pack(SYSTEM)])
    made.model.public = pack(SYSTEM)
    return made


def ask(made: Simulation, tenant: str, tail: list[int], name: str = "") -> None:
    made.add(name or tenant, [*SYSTEM, *tail], 4, namespace=tenant.encode(), tenant=tenant)


def test_tenants_that_come_at_once_compute_a_public_prefix_once():
    made = simulation()
    for tenant in TENANTS:
        ask(made, tenant, [7, 8, 9])
    made.run()
    for tenant in TENANTS:
        assert made.outputs[tenant] == expected_output([*SYSTEM, 7, 8, 9], 4)
    # Of each: the three tokens that follow, and three of its own answer.
    assert made.model.computed == 100 + 4 * 6
    assert [made.requests[each].cached for each in TENANTS] == [0, 100, 100, 100]
    made.assert_idle()


def test_what_follows_is_not_waited_for_where_another_tenant_computes_it():
    made = simulation()
    tail = list(range(60))
    for tenant in TENANTS:
        ask(made, tenant, tail)
    made.run()
    assert made.model.computed == 100 + 4 * (60 + 3)
    made.assert_idle()


def test_a_follower_of_another_tenant_takes_over_when_the_leader_is_aborted():
    made = simulation()
    for tenant in ("a", "b"):
        ask(made, tenant, [7])
    made.step()
    assert list(made.scheduler.running) == ["a"]
    made.abort("a")
    made.run()
    assert made.outputs["b"] == expected_output([*SYSTEM, 7], 4)
    assert made.requests["b"].cached == 32
    made.assert_idle()


@pytest.mark.parametrize("seed", range(4))
def test_prefixes_that_become_public_and_private_under_load_never_give_a_wrong_answer(seed: int):
    chance = random.Random(seed)
    made = simulation(max_num_seqs=4)
    wanted = {}
    for index in range(40):
        tenant = chance.choice(TENANTS)
        tail = [chance.randrange(3) for _ in range(chance.randrange(1, 30))]
        wanted[f"r{index}"] = [*SYSTEM, *tail]
        ask(made, tenant, tail, f"r{index}")
        if chance.random() < 0.5:
            made.step()
        if chance.random() < 0.2:
            # Whatever is computed from here on is another's: the oracle has to be told.
            made.run()
            on = not made.model.public
            made.model.public = pack(SYSTEM) if on else b""
            made.cache.set_public([made.model.public])
    made.run()
    for name, tokens in wanted.items():
        assert made.outputs[name] == expected_output(tokens, 4)
    made.assert_idle()
