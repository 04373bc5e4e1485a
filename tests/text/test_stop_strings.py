from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import InvalidRequestError
from radixserve.text.stop_strings import MAX_TOTAL_LENGTH, StopStrings

texts = st.text(alphabet="ab<é", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab<é", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The text up to the first stop string to be completed, of several the longest."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def could_become_a_stop(text: str, stops: Sequence[str]) -> str:
    """The longest end of ``text`` that begins a stop string without being one."""
    for start in range(len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[start:]
    return ""


@given(data=st.data(), text=texts, stops=stop_lists, include=st.booleans())
def test_any_chunking_is_cut_where_the_whole_text_is(
    data: st.DataObject, text: str, stops: list[str], include: bool
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    subject = StopStrings(stops, include)
    shown = "".join(map(subject.push, chunks)) + subject.finish()
    assert (shown, subject.matched) == naive(text, stops, include)


@given(text=texts, stops=stop_lists)
def test_only_what_could_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    subject = StopStrings(stops)
    shown = ""
    for end, character in enumerate(text, start=1):
        shown += subject.push(character)
        if subject.matched is not None:
            return
        assert shown + could_become_a_stop(text[:end], stops) == text[:end]


def test_nothing_comes_after_a_match() -> None:
    subject = StopStrings(["END"])
    assert subject.push("one E") == "one "
    assert subject.push("ND two") == ""
    assert subject.push("three") == ""
    assert subject.finish() == ""
    assert subject.matched == "END"


def test_the_rest_is_shown_when_generation_ends_otherwise() -> None:
    subject = StopStrings(["</answer>"])
    assert subject.push("yes</ans") == "yes"
    assert subject.finish() == "</ans"
    assert subject.matched is None


def test_text_without_stop_strings_passes_through() -> None:
    subject = StopStrings([])
    assert subject.push("anything") == "anything"
    assert subject.finish() == ""


@pytest.mark.parametrize("piece", ["a", "aaab", "x" * 9])
def test_each_character_is_looked_at_once_however_long_the_answer(piece: str) -> None:
    class Counting(list[int]):
        reads = 0

        def __getitem__(self, index: int) -> int:  # type: ignore[override]
            Counting.reads += 1
            return super().__getitem__(index)

    subject = StopStrings(["a" * 1000 + "!", "aab!", "b!", "!" * 8])
    automaton = subject._automaton
    assert automaton is not None
    automaton.suffix = Counting(automaton.suffix)
    for _ in range(16_000):
        subject.push(piece)
        assert len(subject._held) <= 1001
    assert Counting.reads <= 16_000 * len(piece)


def test_stop_strings_that_cannot_work_are_refused() -> None:
    for stops in (["ok", ""], ["x" * (MAX_TOTAL_LENGTH + 1)], ["xy"] * MAX_TOTAL_LENGTH):
        with pytest.raises(InvalidRequestError) as caught:
            StopStrings(stops)
        assert caught.value.param == "stop"
