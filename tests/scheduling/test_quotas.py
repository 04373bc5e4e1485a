"""Whatever tenants were promised, everything that fits the pool ends, and with the right answer."""

from __future__ import annotations

import random

import pytest

from radixserve.tenant import Terms
from radixserve.tokens import pack
from tests.scheduling.simulated import Simulation, expected_output

TENANTS = ("a", "b", "c", "d")


def _terms(chance: random.Random) -> dict[str, Terms]:
    """Any mix whose guarantees are at most the whole pool, also such as leave nothing over."""
    cuts = sorted(chance.random() for _ in TENANTS[1:])
    scale = chance.choice((0.5, 1.0, 1.0))
    shares = [(b - a) * scale for a, b in zip([0.0, *cuts], [*cuts, 1.0], strict=True)]
    return {
        tenant: Terms(
            guaranteed=share, maximum=chance.choice((1.0, share, 0.0)), weight=chance.choice((1, 9))
        )
        for tenant, share in zip(TENANTS, shares, strict=True)
        if chance.random() < 0.8
    }


def _warm(simulation: Simulation, chance: random.Random) -> None:
    """Everybody fills the pool with what is guaranteed to them, and more."""
    for round_ in range(2):
        for tenant in TENANTS:
            tokens = [chance.randrange(1000) for _ in range(60)]
            simulation.add(f"{tenant}{round_}", tokens, 2, namespace=tenant.encode(), tenant=tenant)
            simulation.run()


@pytest.mark.parametrize("seed", range(12))
def test_no_mix_of_shares_keeps_a_request_that_fits_from_its_end(seed: int) -> None:
    chance = random.Random(seed)
    simulation = Simulation(num_pages=41, max_num_seqs=chance.choice((2, 6)))
    simulation.cache.set_terms(_terms(chance))
    _warm(simulation, chance)
    wanted = {}
    for index in range(30):
        tenant = chance.choice((*TENANTS, "nobody"))
        # Up to the whole pool: 40 pages of 4 tokens.
        length = chance.choice((3, 20, 60, 120))
        tokens = [chance.randrange(3) for _ in range(length)]
        name = f"r{index}"
        wanted[name] = (tokens, chance.randrange(1, 160 - length))
        simulation.add(name, *wanted[name], namespace=tenant.encode(), tenant=tenant)
        if chance.random() < 0.5:
            simulation.step()
        if chance.random() < 0.1:
            simulation.cache.set_terms(_terms(chance))
    simulation.run()
    for name, (tokens, count) in wanted.items():
        assert simulation.finished[name] == "length"
        assert simulation.outputs[name] == expected_output(tokens, count)
    simulation.assert_idle()


def test_a_stranger_is_served_though_all_pages_are_guaranteed_to_others_and_cached() -> None:
    simulation = Simulation(num_pages=41)
    simulation.cache.set_terms({"a": Terms(guaranteed=0.5), "b": Terms(guaranteed=0.5)})
    for tenant in ("a", "b"):
        simulation.add(tenant, list(range(78)), 2, namespace=tenant.encode(), tenant=tenant)
        simulation.run()
    assert simulation.cache.available_to("c") == 0
    simulation.add("c", [7] * 30, 4, namespace=b"c", tenant="c")
    simulation.run()
    assert simulation.outputs["c"] == expected_output([7] * 30, 4)
    kept = simulation.cache.peek(pack([*range(78), -1]), b"a").tokens
    assert kept > 40, "no more was taken than was needed"
    simulation.assert_idle()


def test_nobody_is_preempted_for_pages_that_stay_guaranteed_to_its_tenant() -> None:
    simulation = Simulation(num_pages=41, max_num_batched_tokens=64)
    simulation.cache.set_terms({"a": Terms(guaranteed=0.5)})
    simulation.add("c", [7] * 60, 40, namespace=b"c", tenant="c")
    simulation.add("c2", [8] * 20, 20, namespace=b"c", tenant="c")
    simulation.add("a", list(range(40)), 20, namespace=b"a", tenant="a")
    simulation.run()
    requests = simulation.requests
    assert requests["a"].preemptions == 0
    assert requests["c2"].preemptions > 0
    assert simulation.outputs["c"] == expected_output([7] * 60, 40)
    simulation.assert_idle()
