"""Special tokens that mark what an answer is: hidden from clients, shown to whoever reads them."""

from __future__ import annotations

from pathlib import Path

from radixserve.engine.answer import Answer
from radixserve.engine.frontend import TextRequest
from radixserve.engine.messages import GenerationDelta, Usage
from radixserve.scheduling.plan import Sampled
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack, unpack
from tests.text.tiny import SPECIALS, byte_level, tiny_tokenizer_dir

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
MARKERS = ("<tool_call>", "</tool_call>")


def answered(tokenizer: Tokenizer, text: str, markers: tuple[str, ...]) -> str:
    """What a client gets of an answer whose tokens are those of ``text``."""
    request = TextRequest(
        id="a", prompt=pack([5]), sampling=SamplingParams(max_tokens=99), markers=markers
    )
    answer = Answer(0, request, tokenizer)
    tokens = unpack(tokenizer.encode(text, add_special_tokens=False))
    said = [
        answer.take(
            GenerationDelta(
                id=answer.id,
                sampled=(Sampled(token),),
                finish="length" if place == len(tokens) else None,
                usage=Usage(1, place, 0),
            )
        )
        for place, token in enumerate(tokens, start=1)
    ]
    return "".join(delta.text for delta in said)


def test_the_markers_of_a_format_are_shown_and_other_special_tokens_are_not(tmp_path: Path):
    backend = byte_level(specials=(*SPECIALS, *MARKERS))
    tokenizer = Tokenizer.load(tiny_tokenizer_dir(tmp_path, backend=backend))
    text = f"Ok<|im_start|>{CALL}"
    assert answered(tokenizer, text, MARKERS) == f"Ok{CALL}"
    assert answered(tokenizer, text, ()) == 'Ok{"name": "f", "arguments": {}}'
