"""Steps that are planned while one is computed bring the tokens that they bring one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from radixserve.cache.pages import PagePool
from radixserve.errors import EngineDeadError
from tests.engine.overlapped import RaceError
from tests.engine.watched import Watched, random_engine, traffic
from tests.scheduling.simulated import expected_output, prompt


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_any_traffic_gets_the_tokens_it_gets_without_overlap(first: int):
    seen: Counter[str] = Counter()
    for seed in range(first, first + 40):
        chance = random.Random(seed)
        watched = random_engine(chance, seed)
        traffic(watched, chance)
        seen.update(watched.finished.values())
        seen["behind"] += watched.model.behind
        seen["unknown"] += watched.model.unknown
        seen["preemptions"] += watched.core.stats().preemptions
        assert "error" not in watched.finished.values()
        assert all(request.preemptions <= 2 for request in watched.core.scheduler.running.by_rank())
    for what in ("stop", "length", "abort", "preemptions"):
        assert seen[what] > 20, f"{what} was not tried"
    assert seen["unknown"] > 1000
    assert seen["behind"] > 1000


@pytest.mark.parametrize("fault", ["launch_fault", "collect_fault", "row_fault"])
@pytest.mark.parametrize("first", range(0, 90, 30))
def test_a_fault_ends_those_it_hits_and_nobody_else(fault: str, first: int):
    seen: Counter[str] = Counter()
    for seed in range(first, first + 30):
        chance = random.Random(seed)
        watched = random_engine(chance, seed, **{fault: 0.05})
        traffic(watched, chance)  # every answer that ends is checked to be whole
        seen.update(watched.finished.values())
    assert seen["error"] > 20
    assert seen["stop"] + seen["length"] > 100


def test_every_decoding_step_is_planned_while_the_one_before_is_computed():
    watched = Watched()
    watched.add("a", prompt(10), 20)
    watched.add("b", prompt(7, seed=1), 20)
    steps = watched.run()
    assert watched.model.behind == 19
    assert watched.model.unknown == 2 * 19
    assert steps == 21
    assert watched.model.computed == 10 + 7 + 2 * 19


def test_the_first_call_brings_nothing_and_each_later_one_the_step_before():
    watched = Watched()
    watched.add("a", prompt(5), 3)
    assert watched.step() == []
    for _ in range(2):
        [delta] = watched.step()
        assert delta.finish is None
    assert not watched.core.idle
    [delta] = watched.step()
    assert delta.finish == "length"
    assert watched.core.idle
    assert watched.step() == []


def test_nothing_is_computed_beyond_the_last_token_that_is_known_to_be_the_last():
    watched = Watched()
    watched.add("a", prompt(6), 5)
    watched.run()
    assert watched.model.computed == 6 + 4


def test_a_stop_costs_one_token_that_nobody_sees():
    answer = expected_output(prompt(6), 5)
    watched = Watched(page_size=2)
    watched.add("a", prompt(6), 50, stop_token_ids=(answer[3],))
    watched.run()
    assert watched.outputs["a"] == answer[:4]
    assert watched.finished["a"] == "stop"
    assert watched.model.computed == 6 + 3 + 1
    stats = watched.core.stats()
    assert stats.generated_tokens == 4
    # What it computed behind its stop is in no page that others find.
    assert watched.core.cache.tree.pages * 2 <= 6 + 4
    watched.assert_nothing_is_left()


def test_the_pages_of_a_token_that_nobody_sees_rest_until_its_step_has_ended():
    answer = expected_output(prompt(6), 5)
    watched = Watched(page_size=1)
    watched.add("a", prompt(6), 50, stop_token_ids=(answer[0],))
    watched.step()
    [delta] = watched.step()
    assert delta.finish == "stop"
    assert not watched.core.idle
    assert watched.core.cache.pool.quarantined == 1
    watched.step()
    assert watched.core.idle
    watched.assert_nothing_is_left()


@pytest.mark.parametrize("after", range(1, 8))
def test_an_abort_after_any_step_gives_everything_back(after: int):
    watched = Watched(max_num_batched_tokens=8)
    watched.add("gone", prompt(20), 30)
    watched.add("stays", prompt(3, seed=1), 12)
    for _ in range(after):
        watched.step()
    watched.abort("gone")
    watched.core.cache.check()
    watched.run()
    assert watched.finished == {"gone": "abort", "stays": "length"}
    watched.assert_nothing_is_left()


@pytest.mark.parametrize("fails", [False, True])
def test_one_that_comes_back_under_the_name_of_another_gets_nothing_of_it(fails: bool):
    answer = expected_output(prompt(6), 5)
    watched = Watched()
    watched.add("a", prompt(6), 50, stop_token_ids=(answer[2],))
    while "a" not in watched.finished:
        watched.model._collect_fault = float(fails and len(watched.outputs["a"]) == 2)
        watched.step()
    watched.model._collect_fault = 0.0
    assert not watched.core.idle  # its row is still being computed
    del watched.finished["a"]
    watched.add("a", prompt(9, seed=5), 6)
    watched.run()
    assert watched.outputs["a"] == expected_output(prompt(9, seed=5), 6)
    watched.assert_nothing_is_left()


def test_answers_to_one_prompt_fork_off_between_two_steps():
    watched = Watched(page_size=4)
    watched.add("n/0", prompt(10), 6, seed=1)
    for index in range(1, 4):
        watched.add(f"n/{index}", prompt(10), 6, seed=index + 1, sibling="n/0")
    watched.run()
    assert watched.model.computed == 10 + 4 * 5
    assert watched.model.unknown == 4 * 4, "only the step that they fork in is waited for"
    watched.assert_nothing_is_left()


def test_seats_of_answers_that_are_about_to_fork_are_kept_for_them():
    watched = Watched(max_num_seqs=3)
    for index in range(3):
        watched.add(f"n/{index}", prompt(10), 6, seed=index, sibling="n/0" if index else None)
    watched.step()
    watched.add("other", prompt(5, seed=9), 6)
    watched.step()
    assert set(watched.core.scheduler.running) == {"n/0", "n/1", "n/2"}
    watched.run()
    watched.assert_nothing_is_left()


@pytest.mark.parametrize("budget", [16, 64])
def test_identical_cold_prompts_cost_one_prefill_also_while_it_is_computed(budget: int):
    watched = Watched(num_pages=300, max_num_batched_tokens=budget, max_num_seqs=8)
    for index in range(6):
        watched.add(f"r{index}", prompt(60), 3)
    watched.run()
    # At most its open block is computed again for each.
    assert watched.model.computed <= 60 + 6 * (4 + 2)
    watched.assert_nothing_is_left()


def test_chunks_of_a_long_prompt_follow_each_other_without_a_gap():
    watched = Watched(max_num_batched_tokens=8)
    watched.add("long", prompt(64), 2)
    steps = watched.run()
    assert watched.model.computed == 64 + 1
    assert watched.model.behind == 8
    assert steps == 10


def test_a_step_with_penalties_is_collected_before_the_next_is_planned():
    watched = Watched()
    watched.add("a", prompt(6), 5, presence_penalty=0.5)
    watched.add("b", prompt(6, seed=1), 9)
    watched.run()
    assert watched.model.unknown == 3, "once the one with penalties has left"
    watched.assert_nothing_is_left()


def test_where_pages_are_short_the_next_step_waits_and_then_preempts():
    watched = Watched(num_pages=13, max_num_seqs=4)
    for index in range(4):
        watched.add(f"r{index}", prompt(8, seed=index), 24)
    watched.run()
    assert watched.core.stats().preemptions > 0
    assert next(iter(watched.finished)) == "r0"
    assert watched.model.unknown > 20
    watched.assert_nothing_is_left()


def test_one_that_finds_no_page_is_not_left_behind_by_those_that_need_none():
    watched = Watched(
        num_pages=62, page_size=1, max_num_batched_tokens=16, long_prefill_token_threshold=2
    )
    watched.add("first", prompt(4), 20)
    watched.step()
    watched.add("long", prompt(50, seed=1), 2)
    steps = 0
    while "first" not in watched.finished:
        watched.step()
        steps += 1
    assert watched.core.stats().preemptions == 1
    assert steps <= 20 + 4
    watched.run()
    watched.assert_nothing_is_left()


def test_a_launch_that_fails_leaves_what_the_step_before_brought(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    watched.add("a", prompt(6), 20)
    watched.step()
    watched.step()
    watched.model._launch_fault = 1.0
    token, error = watched.step()
    assert len(token.sampled) == 1
    assert (error.finish, error.error) == (
        "error",
        "The step that computed this failed: no memory for this step",
    )
    assert watched.core.idle
    watched.assert_nothing_is_left()
    assert "no memory for this step" in caplog.text


def test_a_step_that_fails_takes_its_requests_out_of_the_step_behind_it():
    watched = Watched()
    watched.add("a", prompt(6), 20)
    watched.step()
    watched.model._collect_fault = 1.0
    watched.step()
    watched.model._collect_fault = 0.0
    watched.add("b", prompt(6, seed=1), 5)
    [error] = watched.step()  # launches both, and finds that the step before has failed
    assert (error.id, error.finish) == ("a", "error")
    watched.run()
    assert watched.finished["b"] == "length"
    watched.assert_nothing_is_left()


@pytest.mark.parametrize("when", ["launch", "collect"])
def test_a_device_that_is_lost_ends_the_engine(when: str, monkeypatch: pytest.MonkeyPatch):
    def lost(*_: object) -> None:
        raise EngineDeadError("gone")

    watched = Watched()
    watched.add("a", prompt(6), 20)
    watched.step()
    if when == "launch":
        monkeypatch.setattr(watched.model, "launch", lost)
    else:
        monkeypatch.setattr(watched.model, "run_to", lost)
    with pytest.raises(EngineDeadError):
        watched.step()


def test_where_steps_are_computed_at_once_nothing_is_launched(monkeypatch: pytest.MonkeyPatch):
    watched = Watched()
    monkeypatch.setattr(watched.model, "launch", None)
    watched.add("a", prompt(6), 4)
    assert len(watched.step()) == 1
    watched.run()
    assert watched.model.behind == 0
    assert watched.outputs["a"] == expected_output(prompt(6), 4)


def test_the_stand_in_notices_tokens_that_are_not_waited_for(caplog: pytest.LogCaptureFixture):
    watched = Watched()
    watched.model.deaf = watched.planted = True
    watched.add("a", prompt(6), 4)
    watched.run()
    assert "tokens are read that have not been chosen yet" in (watched.errors["a"] or "")
    assert RaceError.__name__ in caplog.text


def test_the_stand_in_notices_a_page_that_comes_back_too_early(monkeypatch: pytest.MonkeyPatch):
    give_back = PagePool.give_back

    def at_once(pool: PagePool, pages: Iterable[int], *, unused: bool = False) -> int:
        return give_back(pool, pages, unused=True)

    monkeypatch.setattr(PagePool, "give_back", at_once)
    errors = set()
    for seed in range(40):
        chance = random.Random(seed)
        watched = random_engine(chance, seed)
        watched.planted = True
        traffic(watched, chance)
        errors.update(watched.errors.values())
    assert any(error and "while the step before uses it" in error for error in errors)
