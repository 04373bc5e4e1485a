"""Each reason for which a prompt, or a part of it, was computed."""

from __future__ import annotations

import msgspec
import pytest

from radixserve.cache.ghosts import Eviction
from radixserve.explain.pace import PrefillPace
from radixserve.explain.reason import Explanation, Found, explain
from radixserve.explain.trail import Alike, Record, State, Wiped
from radixserve.tokens import pack

PAGE = 16


def earlier(length: int = 100, *, mode: str = "on", epoch: int = 0, answer: int = 0) -> Record:
    return Record(
        id="before",
        tenant="",
        namespace=b"",
        mode=mode,
        epoch=epoch,
        began=0.0,
        length=length,
        body={},
        tokens=pack(range(length)),
        answer=pack(range(answer)),
    )


def told(
    *,
    prompt: int = 200,
    cached: int,
    common: int = 0,
    record: Record | None = None,
    state: State = "done",
    evicted: Eviction | None = None,
    bypass: str | None = None,
    wiped: tuple[Wiped, float] | None = None,
) -> Explanation:
    found = Found(
        prompt=prompt,
        cached=cached,
        page_size=PAGE,
        evicted=evicted,
        bypass=bypass,
        began=10.0,
    )
    alike = Alike(record or earlier(), common, state) if common else None
    return explain(found, alike, wiped)


def parts(explanation: Explanation) -> list[tuple[str, int, int]]:
    return [(part.reason, part.start, part.tokens) for part in explanation.parts]


def test_a_prompt_that_was_found_but_for_its_last_token_needs_no_reason():
    hit = told(prompt=100, cached=99, common=100)
    assert hit.reason is None
    assert hit.parts == []


def test_nothing_alike_was_asked():
    assert parts(told(cached=0)) == [("cold", 0, 200)]
    assert told(cached=0).reason == "cold"


def test_a_head_that_is_only_the_templates_is_cold_and_still_told():
    found = Found(prompt=200, cached=24, page_size=PAGE)
    few = explain(found, Alike(earlier(), 25, "done"), None, like=False)
    assert parts(few) == [("cold", 24, 176)]
    assert (few.alike, few.common_tokens) == ("before", 25)


def test_it_parts_from_what_was_asked():
    assert parts(told(cached=37, common=37)) == [("diverged", 37, 163)]


def test_what_is_new_behind_all_that_was_asked_is_no_miss():
    extended = told(cached=100, common=100)
    assert parts(extended) == [("extended", 100, 100)]
    assert extended.reason is None
    answered = told(cached=120, common=120, record=earlier(answer=20))
    assert parts(answered) == [("extended", 120, 80)]


def test_an_answer_that_comes_back_otherwise_parts():
    rewritten = told(cached=100, common=100, record=earlier(answer=20))
    assert parts(rewritten) == [("diverged", 100, 100)]


def test_what_was_evicted_says_when_and_whether_for_ones_own_sake():
    gone = told(cached=32, common=80, evicted=Eviction(2.5, True))
    assert parts(gone) == [("evicted", 32, 48), ("diverged", 80, 120)]
    assert (gone.seconds_ago, gone.own_pressure) == (2.5, True)
    unknown = told(cached=0, common=100)
    assert parts(unknown) == [("evicted", 0, 100), ("extended", 100, 100)]
    assert unknown.reason == "evicted"
    assert (unknown.seconds_ago, unknown.own_pressure) == (None, None)


@pytest.mark.parametrize(
    ("mode", "state", "detail"),
    [
        ("off", "done", "cache mode off"),
        ("read-only", "done", "cache mode read-only"),
        ("on", "running", "still running"),
        ("on", "aborted", "aborted"),
        ("on", "failed", "failed"),
    ],
)
def test_what_was_never_left_in_the_cache(mode: str, state: State, detail: str):
    never = told(cached=0, common=100, record=earlier(mode=mode), state=state)
    assert parts(never)[0] == ("never_cached", 0, 100)
    assert never.detail == detail


def test_the_engine_was_started_again():
    again = told(cached=0, common=100, record=earlier(epoch=-1), evicted=Eviction(1.0, True))
    assert parts(again)[0] == ("restarted", 0, 100)
    assert again.seconds_ago is None


def test_a_part_of_a_block_that_could_not_be_copied():
    rounded = told(cached=32, common=40)
    assert parts(rounded) == [("below_granularity", 32, 8), ("diverged", 40, 160)]


def test_what_was_purged_says_when():
    gone = told(cached=0, wiped=("purged", 4.0))
    assert parts(gone) == [("purged", 0, 200)]
    assert gone.seconds_ago == 6.0
    assert told(cached=0, wiped=("reset", 11.0)).seconds_ago == 0.0


def test_a_request_that_does_not_look_says_so():
    past = told(cached=0, common=100, bypass="prompt_logprobs")
    assert parts(past) == [("bypass", 0, 200)]
    assert past.detail == "prompt_logprobs"


def test_parts_and_what_was_cached_add_up_to_the_prompt():
    for cached in (0, 15, 32, 99):
        for common in (0, 1, 40, 100, 200):
            explanation = told(cached=cached, common=common)
            last = int(common == 200)  # known, and computed even so
            assert sum(part.tokens for part in explanation.parts) == 200 - cached - last
            assert msgspec.json.decode(msgspec.json.encode(explanation))["parts"]


def test_time_is_estimated_from_what_was_measured():
    pace = PrefillPace()
    assert pace.seconds(100) is None
    pace.note(3, 1.0)  # too few to say anything
    assert pace.seconds(100) is None
    pace.note(1000, 2.0)
    assert pace.seconds(100) == pytest.approx(0.2)
    for _ in range(200):
        pace.note(1000, 4.0)
    assert pace.seconds(100) == pytest.approx(0.4, rel=0.01)
