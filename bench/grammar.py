"""What a grammar costs: tokens a second with and without one, in one run, and the time of a mask.

    python -m bench.grammar [--requests 8] [--tokens 96] [--repeats 3]

Both answer the same prompts with the same number of tokens: the schema asks for more than the limit
lets through, and those without one ignore the end of the answer.
They alternate, so that a machine that others share slows both. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median
from time import perf_counter
from typing import Any

from bench.machine import machine
from radixserve.engine.llm import LLM
from radixserve.scheduling.grammar import Grammar
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.grammar import GrammarCompiler

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "story": {"type": "string", "minLength": 2000},
    },
    "required": ["name", "age", "story"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(PERSON))
TEXT = '{"name": "Ann of the hill", "age": 31, "story": "Once upon a time there was a tree, '


def tokens_a_second(llm: LLM, grammar: Grammar | None, requests: int, tokens: int) -> float:
    """Of ``requests`` answers of ``tokens`` tokens, on prompts that are cached."""
    settings = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True, grammar=grammar)
    prompts = [f"Tell me who number {number} is, as JSON: " for number in range(requests)]
    start = perf_counter()
    outputs = llm.generate(prompts, settings)
    spent = perf_counter() - start
    return sum(output.usage.completion_tokens for output in outputs) / spent


def mask_costs(llm: LLM, repeats: int) -> dict[str, float]:
    """Microseconds of a mask, with its automaton made already and not, and of moving on by a token;
    milliseconds of compiling."""
    table = llm.tokenizer.table()
    assert table is not None
    compiler = GrammarCompiler(table)
    start = perf_counter()
    compiled = compiler.compile(GRAMMAR.kind, GRAMMAR.text)
    compiling = perf_counter() - start
    tokens = list(table.backend.encode(TEXT, add_special_tokens=False).ids)
    found: dict[str, list[float]] = {"first_mask": [], "mask": [], "accept": []}
    for repeat in range(1 + repeats):
        matcher = compiled.deep_copy()
        for token in tokens:
            start = perf_counter()
            matcher.compute_bitmask()
            made = perf_counter()
            assert matcher.consume_token(token)
            found["mask" if repeat else "first_mask"].append(made - start)
            found["accept"].append(perf_counter() - made)
    return {
        "compile_ms": compiling * 1e3,
        **{f"{name}_us": 1e6 * sum(spent) / len(spent) for name, spent in found.items()},
        "longest_first_mask_us": 1e6 * max(found["first_mask"]),
    }


def run(model: str | None, requests: int, tokens: int, repeats: int) -> dict[str, Any]:
    llm = LLM(model)
    ratios, rates = [], []
    for repeat in range(1 + repeats):  # the first one fills the cache and the automaton
        free = tokens_a_second(llm, None, requests, tokens)
        formed = tokens_a_second(llm, GRAMMAR, requests, tokens)
        if repeat:
            ratios.append(formed / free)
            rates.append((free, formed))
    return {
        "machine": machine(),
        "model": llm.name,
        "requests": requests,
        "tokens": tokens,
        "ratio": median(ratios),
        "tokens_a_second": rates,
        **mask_costs(llm, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.grammar", description=__doc__)
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found = run(options.model, options.requests, options.tokens, options.repeats)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
