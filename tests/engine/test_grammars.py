"""Answers of a form, through the whole engine: each valid, whatever the batch around it does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llguidance
import pytest

from radixserve.engine.core import EngineCore
from radixserve.engine.grammars import KEPT, Grammars, Standing
from radixserve.engine.llm import LLM, Completion
from radixserve.engine.messages import GenerationRequest
from radixserve.errors import InvalidRequestError
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text import grammar
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import pack
from tests.engine.forms import PERSON, is_person
from tests.model import tiny

FORMS: dict[str, tuple[Grammar, Callable[[str], Any]]] = {
    "json schema": (PERSON, is_person),
    "regex": (Grammar("regex", r"\d{3}-\d{4}"), re.compile(r"[0-9]{3}-[0-9]{4}").fullmatch),
    "choice": (Grammar("choice", '["yes", "no", "maybe"]'), ["yes", "no", "maybe"].__contains__),
    "gbnf": (
        Grammar("grammar", 'root ::= "<" [a-z] [a-z]? ">" root | "."'),
        re.compile(r"(<[a-z]{1,2}>)*\.").fullmatch,
    ),
    "lark": (Grammar("grammar", 'start: "x" "y"?'), ["x", "xy"].__contains__),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with the tiny tokenizer, and logits for more tokens than that has."""
    return tiny.speaking(tmp_path_factory.mktemp("tiny"), vocab_size=280)


def made(directory: Path, **settings: Any) -> LLM:
    settings = {"num_pages": 400, "page_size": 4, **settings}
    return LLM(str(directory), dtype="float32", threads=1, **settings)


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return made(directory)


def params(wanted: Grammar = PERSON, **settings: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 150, "seed": 1, "grammar": wanted, **settings})


def ended(completion: Completion) -> bool:
    assert completion.finish_reason in ("stop", "length")
    assert completion.stop_reason is None
    return completion.finish_reason == "stop"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_that_ends_has_its_form(llm: LLM, form: str, temperature: float):
    wanted, valid = FORMS[form]
    settings = [params(wanted, seed=seed, temperature=temperature) for seed in range(12)]
    outputs = llm.generate(["Tell me."] * 12, settings)
    whole = [output for output in outputs if ended(output.completions[0])]
    assert len(whole) >= 6 or temperature == 0.0
    assert all(valid(output.text) for output in whole), [output.text for output in whole]
    if form in ("json schema", "regex", "choice", "lark"):
        assert len(whole) == 12


def test_forks_have_each_their_own_place_in_the_grammar(llm: LLM):
    llm.reset_prefix_cache()
    [output] = llm.generate("Fork, please", params(), n=4)
    texts = [completion.text for completion in output.completions]
    assert all(map(is_person, texts))
    assert len(set(texts)) == 4
    for index, text in enumerate(texts):
        [alone] = llm.generate("Fork, please", params(seed=1 + index))
        assert alone.text == text
        assert alone.usage.cached_tokens > 0


def test_reuse_changes_no_answer_of_a_form(directory: Path):
    llm = made(directory)
    asked = "A long prompt that will be in the cache: who is it?"
    [cold] = llm.generate(asked, params())
    [warm] = llm.generate(asked, params())
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 1
    assert warm.text == cold.text
    assert is_person(warm.text)


def test_preempted_answers_are_those_of_requests_alone(directory: Path):
    prompts = [f"{name} is who?" for name in ("Ann", "Bob", "Cleo", "Dora")]
    expected = [made(directory).generate(each, params())[0].text for each in prompts]
    short = made(directory, num_pages=30, max_num_seqs=4)
    outputs = short.generate(prompts, params())
    assert short.stats().preemptions >= 2
    assert [output.text for output in outputs] == expected
    assert all(map(is_person, expected))


def test_others_in_the_batch_are_answered_as_without_it(llm: LLM):
    plain = SamplingParams(max_tokens=20, seed=5, ignore_eos=True)
    [alone] = llm.generate("And you?", plain)
    mixed = llm.generate(["And you?", "Who?"], [plain, params()])
    assert mixed[0].text == alone.text
    assert is_person(mixed[1].text)


def test_a_bias_lifts_no_token_that_does_not_follow(llm: LLM):
    newline, brace = 3 + ord("\n"), 3 + ord("}")
    [output] = llm.generate("Who?", params(logit_bias={newline: 100.0, brace: 100.0}))
    assert is_person(output.text)
    outside = re.sub(r'"(\\.|[^"\\])*"', '""', output.text)
    assert 1 <= max(map(len, re.findall(r"\s+", outside))) <= 8


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_answer_ends_where_it_may_and_the_model_says_so(llm: LLM, ignore_eos: bool):
    pairs = Grammar("regex", "(ab)+")
    [output] = llm.generate(
        "ab", params(pairs, max_tokens=9, logit_bias={2: 100.0}, ignore_eos=ignore_eos)
    )
    assert output.text == ("ababababa" if ignore_eos else "ab")
    [longer] = llm.generate("ab", params(pairs, logit_bias={2: 100.0}, min_tokens=5))
    assert longer.text == "ababab"
    assert longer.completions[0].finish_reason == "stop"


def test_a_stop_token_is_chosen_only_where_the_answer_may_end(llm: LLM):
    letter = 3 + ord("b")
    letters = Grammar("regex", "a[bc]{3}b*")
    [output] = llm.generate("x", params(letters, stop_token_ids=(letter,), temperature=0.0))
    assert output.text == "accc"
    assert output.completions[0].stop_reason in (letter, None)


def test_logprobs_are_the_models_own_and_finite(llm: LLM):
    [output] = llm.generate("Who?", params(FORMS["choice"][0], logprobs=5))
    [completion] = output.completions
    assert len(completion.logprobs) == len(completion.token_ids)
    assert all(-1e4 < each.logprob <= 0.0 for each in completion.logprobs)


def test_a_grammar_that_is_not_valid_is_refused_before_any_work(llm: LLM):
    steps = llm.stats().steps
    with pytest.raises(InvalidRequestError, match="missing expression") as raised:
        llm.generate("x", params(Grammar("regex", "*a")))
    assert (raised.value.param, raised.value.code) == ("grammar", "invalid_json_schema")
    assert llm.stats().steps == steps


def test_a_grammar_that_gets_too_complex_ends_its_answer_and_no_other(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
):
    limits = llguidance.LLParserLimits(max_items_in_row=20, verbose_errors=False)
    monkeypatch.setattr(grammar, "LIMITS", limits)
    ambiguous = params(Grammar("grammar", 'start: start start | "x" | "y"'), logit_bias={2: -100.0})
    core = llm.core
    core.add(GenerationRequest(id="ambiguous", tokens=pack([5, 6]), sampling=ambiguous))
    core.add(GenerationRequest(id="person", tokens=pack([5, 6]), sampling=params()))
    ends = {}
    while not core.idle:
        ends |= {delta.id: delta for delta in core.step() if delta.finish is not None}
    assert ends["person"].finish == "stop"
    assert ends["ambiguous"].finish == "error"
    assert "its grammar" in ends["ambiguous"].error


def test_a_model_whose_tokens_are_no_text_says_so():
    with pytest.raises(InvalidRequestError, match="cannot have a form"):
        Grammars(None).matcher(PERSON)


def test_a_grammar_is_compiled_once_while_it_is_in_use(directory: Path):
    grammars = Grammars(Tokenizer.load(directory).table())
    first = grammars.matcher(PERSON)
    for number in range(KEPT - 1):
        grammars.matcher(Grammar("choice", json.dumps([str(number)])))
        assert grammars.matcher(PERSON)._compiled is first._compiled
    for number in range(KEPT):
        grammars.matcher(Grammar("choice", json.dumps([f"again {number}"])))
    assert grammars.matcher(PERSON)._compiled is not first._compiled
    assert len(grammars._kept) == KEPT


def test_large_grammars_are_kept_in_smaller_numbers(directory: Path):
    grammars = Grammars(Tokenizer.load(directory).table())
    for number in range(40):
        grammars.matcher(Grammar("regex", f"{number}" + "a" * 200_000))
    assert len(grammars._kept) == 20


def test_an_engine_waits_for_no_compilation(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    ready = False
    monkeypatch.setattr(Standing, "ready", property(lambda self: ready))
    core: EngineCore = llm.core
    plain = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    core.add(GenerationRequest(id="form", tokens=pack([5, 6]), sampling=params()))
    core.add(GenerationRequest(id="plain", tokens=pack([7, 8, 9]), sampling=plain))
    deltas = [delta for _ in range(4) for delta in core.step()]
    assert [delta.id for delta in deltas] == ["plain"] * 4
    assert [core.step() for _ in range(300)] == [[]] * 300
    ready = True
    deltas = []
    while not core.idle:
        deltas += core.step()
    assert {delta.id for delta in deltas} == {"form"}
    tokens = [each.token for delta in deltas for each in delta.sampled]
    assert is_person(llm.tokenizer.decode(tokens))
