"""However an answer is cut into pieces, it says the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.text.parsing.formats import reasoning_formats, tool_formats
from radixserve.text.parsing.parser import Formats
from tests.text.parsing.reading import read
from tests.text.parsing.samples import SAMPLES, Sample


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.fixture(params=SAMPLES.values(), ids=SAMPLES.keys())
def sample(request: pytest.FixtureRequest) -> Sample:
    return request.param


def test_each_family_is_read_as_it_is_written(sample: Sample):
    found = read(sample.formats, [sample.text], opened=sample.opened)
    assert found.parsed() == sample.calls
    assert found.content == sample.content
    assert found.reasoning == sample.reasoning


def test_pieces_of_any_size_say_the_same(sample: Sample):
    whole = read(sample.formats, [sample.text], opened=sample.opened)
    for size in range(1, 13):
        assert read(sample.formats, cut(sample.text, size), opened=sample.opened) == whole


def test_two_pieces_say_the_same_wherever_they_part(sample: Sample):
    whole = read(sample.formats, [sample.text], opened=sample.opened)
    for place in range(len(sample.text)):
        pieces = [sample.text[:place], sample.text[place:]]
        assert read(sample.formats, pieces, opened=sample.opened) == whole


def test_an_answer_that_is_cut_anywhere_gives_the_beginning_of_the_whole(sample: Sample):
    whole = read(sample.formats, [sample.text], opened=sample.opened)
    for place in range(len(sample.text)):
        found = read(sample.formats, [sample.text[:place]], opened=sample.opened, complete=False)
        assert len(found.calls) <= len(whole.calls)
        for part, full in zip(found.calls, whole.calls, strict=False):
            assert part[0] == full[0]
            assert full[1].startswith(part[1])


FORMATS = [
    Formats(tools, reasoning)
    for tools in (None, *tool_formats())
    for reasoning in (None, *reasoning_formats())
]
PIECES = [
    *(marker for formats in FORMATS for marker in formats.markers),
    *'{}[]":,; \n\\',
    '{"name": "run", "arguments": {',
    '"arguments"',
    "run",
    "\n\n",
    "null",
    "to=functions.run",
]


@settings(deadline=None)
@given(
    formats=st.sampled_from(FORMATS),
    words=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=30),
    opened=st.booleans(),
    complete=st.booleans(),
    data=st.data(),
)
def test_what_no_model_would_write_says_the_same_however_it_is_cut(
    formats: Formats, words: list[str], opened: bool, complete: bool, data: st.DataObject
):
    text = "".join(words)
    whole = read(formats, [text], opened=opened, complete=complete)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends = [*places, len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert read(formats, pieces, opened=opened, complete=complete) == whole
    assert read(formats, text, opened=opened, complete=complete) == whole
