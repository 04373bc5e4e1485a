"""The probes find nothing, and would find something if there were anything."""

from __future__ import annotations

import pytest

from bench.tenants import isolation
from bench.tenants.isolation import Tally, probe


def test_six_thousand_random_probes_of_other_tenants_find_nothing_and_their_controls_all_hit():
    tally = probe(6000, seed=3)
    assert tally.sound
    assert tally.controls == tally.probes == 6000
    assert tally.public > 500


def test_the_probes_see_it_when_tenants_are_not_kept_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "_namespace", lambda tenant, salt: b"")
    tally = probe(500, seed=3)
    assert tally.leaks > 100
    assert not tally.sound


def test_a_control_that_misses_is_not_sound():
    assert Tally(probes=1, controls=1).sound
    assert not Tally(probes=1, controls=0).sound
    assert not Tally(probes=1, controls=1, shared_pages=1).sound


def test_a_namespace_costs_something():
    assert isolation.namespace_cost(repeats=2, batch=10) > 0
