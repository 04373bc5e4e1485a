"""Text that was made to be slow to read is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from radixserve.text.parsing.formats import reasoning_formats, tool_formats
from radixserve.text.parsing.parser import Formats

FORMATS = {
    **{f"tools {each.names[0]}": Formats(each, None) for each in tool_formats()},
    **{f"reasoning {each.names[0]}": Formats(None, each) for each in reasoning_formats()},
}
HANG = 0.5
"""Seconds for 10 kB in one piece: ten times what it may take."""


def hostile(formats: Formats, size: int) -> list[str]:
    """Texts of about ``size`` characters that never come to an end."""
    texts = [" " * size, "\n" * size, '{"' * (size // 2)]
    for marker in formats.markers[:6]:
        texts.append(((marker[:-1] or marker) * size)[:size])
        texts.append((marker * size)[:size])
        texts += [marker + each * (size // len(each)) for each in (" ", "{", "f\n")]
        texts.append(f'{marker}{{"arguments": "' + '\\"' * (size // 2))
        texts.append(f'{marker}{{"name": "f", "arguments": ' + '{"' * (size // 2))
    return texts


def calls_during(work: Callable[[], None]) -> int:
    """Calls of functions, Python's own among them."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def read(formats: Formats, text: str, size: int) -> None:
    parser = formats.parser({"f": {}})
    for start in range(0, len(text), size):
        parser.push(text[start : start + size])
    parser.finish(complete=True)


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS.keys())
def test_ten_kilobytes_are_read_at_once(formats: Formats):
    for text in hostile(formats, 10_000):
        begun = time.thread_time()
        read(formats, text, len(text))
        assert time.thread_time() - begun < HANG, text[:50]


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS.keys())
def test_twice_the_text_is_twice_the_work(formats: Formats):
    for one, two in zip(hostile(formats, 80), hostile(formats, 160), strict=True):
        for piece in (1, len(two)):
            once = calls_during(partial(read, formats, one, piece))
            twice = calls_during(partial(read, formats, two, piece))
            assert twice <= 2.2 * once + 60, one[:50]


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS.keys())
def test_no_more_is_kept_than_may_yet_become_something(formats: Formats):
    # What is kept is copied with each piece that comes, so that it has to be short.
    for text in hostile(formats, 300):
        parser = formats.parser({"f": {}})
        for character in text:
            parser.push(character)
            for stage in getattr(parser, "_stages", [parser]):
                assert len(stage._text) - stage._start <= 256


def test_a_megabyte_is_streamed_token_by_token():
    formats = FORMATS["tools hermes"]
    parser = formats.parser({})
    parser.push('<tool_call>{"name": "f", "arguments": {"code": "')
    said = 0
    for _ in range(250_000):
        said += sum(len(event.text) for event in parser.push("word"))
    assert said == 1_000_000
