"""What KV and weights in 8 bits cost in quality: keys, values and weights apart.

    python -m bench.kv_quality [--quick] [--model MODEL] [--text FILE] [--out bench/results]

Two questions, in fp32 arithmetic, so that nothing but the codes makes a difference:

- *Facts*: numbers stand at the beginning of long prompts and are asked for at the end. How likely
  is the right answer, and is each of its tokens the likeliest?
- *Text*: how far are the distributions of the next token from those of the exact model, on each
  token of a text (Kullback-Leibler divergence), and how often is the likeliest token another?

Keys, values and weights go through their codes and back, rounded as the kernels round them. As a
yardstick, the exact model is also run in bf16. ``--text`` takes your own file. Results are written
as JSON and PNG.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import random
import sys
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from bench import plot
from radixserve.attention.arrays import paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.errors import RadixServeError
from radixserve.kernels.kv_codes import Code, dequantize, quantize
from radixserve.model.decoder import Decoder
from radixserve.model.kv_storage import KvGeometry, KvStorage
from radixserve.model.loader import describe
from radixserve.model.survey import survey
from radixserve.model.transformers_model import load
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.text.tokenizer import Tokenizer
from radixserve.tokens import TOKEN_BYTES

PAGE = 16
CHUNK = 256
Weights = Literal["none", "int8", "bf16"]


class Variant(NamedTuple):
    """What is rounded."""

    weights: Weights = "none"
    """``bf16``: everything is computed in it."""
    keys: Code = "none"
    values: Code = "none"


VARIANTS = {
    "exact": Variant(),
    "bf16": Variant("bf16"),
    "keys in int8": Variant(keys="int8"),
    "values in int8": Variant(values="int8"),
    "KV in int8": Variant(keys="int8", values="int8"),
    "keys in fp8_e4m3": Variant(keys="fp8_e4m3"),
    "values in fp8_e4m3": Variant(values="fp8_e4m3"),
    "KV in fp8_e4m3": Variant(keys="fp8_e4m3", values="fp8_e4m3"),
    "weights in int8": Variant("int8"),
    "weights and KV in int8": Variant("int8", "int8", "int8"),
}
THINGS = ("lamp", "door", "bridge", "garden", "engine", "clock", "tower", "river")
COLOURS = ("red", "green", "white", "black", "yellow", "blue")
FACTS = 8
"""That a prompt tells; each is asked for."""


class Rounded(ReferenceAttention):
    """The reference, on keys and values that went through their codes and back."""

    def __init__(self, kv: torch.Tensor, *codes: Code):
        super().__init__(kv)
        self._codes = codes

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See ``ReferenceAttention.append``."""
        through = [
            vectors if code == "none" else _through(vectors, code)
            for vectors, code in zip((key, value), self._codes, strict=True)
        ]
        super().append(layer, *through)


def _through(vectors: torch.Tensor, code: Code) -> torch.Tensor:
    return dequantize(*quantize(vectors, code)).to(vectors.dtype)


@dataclass
class Model:
    """A model in several kinds of arithmetic."""

    decoders: dict[Weights, Decoder]
    geometry: KvGeometry
    tokenizer: Tokenizer

    @classmethod
    def load(cls, name: str | None) -> Model:
        """``name`` as radixserve serve takes it.

        Raises:
            RadixServeError, OSError: it cannot be loaded.
        """
        config = EngineConfig(
            model=name, dtype="float32", device="cpu", attention_backend="reference"
        )
        files = prepare(config)
        described = describe(files.model, config)
        exact, coded = load(described), load(described)
        for layer in coded.model.modules():
            if isinstance(layer, torch.nn.Linear):  # also a table that is the head as well
                layer.weight.copy_(_through(layer.weight, "int8"))
        narrow = load(describe(files.model, replace(config, dtype="bfloat16")))
        return cls(
            {"none": exact, "int8": coded, "bf16": narrow},
            survey(exact, described.max_model_len),
            Tokenizer.load(files.tokenizer),
        )

    def contexts(self, tokens: int) -> dict[str, Context]:
        """One for each variant, with room for ``tokens``."""
        return {name: Context(self, variant, tokens) for name, variant in VARIANTS.items()}


class Context:
    """KV of one sequence under one variant."""

    def __init__(self, model: Model, variant: Variant, tokens: int):
        self._decoder = model.decoders[variant.weights]
        dtype = torch.bfloat16 if variant.weights == "bf16" else torch.float32
        self._pages = array("i", range(1, 2 + tokens // PAGE))
        storage = KvStorage(
            replace(model.geometry, dtype=dtype), len(self._pages) + 1, PAGE, torch.device("cpu")
        )
        self._backend = Rounded(storage.kv, variant.keys, variant.values)

    def feed(self, tokens: bytes, start: int, keep: slice = slice(0)) -> torch.Tensor:
        """Log-probabilities, fp32 [kept tokens, vocabulary], of what follows each of ``tokens``.

        ``tokens`` stand behind ``start`` others; what stood there before is overwritten.
        """
        kept = []
        for at in range(0, len(tokens) // TOKEN_BYTES, CHUNK):
            part = tokens[at * TOKEN_BYTES : (at + CHUNK) * TOKEN_BYTES]
            row = Row("r", part, start + at, self._pages, SamplingParams())
            batch = paged_batch(StepPlan(1, [row]), PAGE)
            wanted = range(len(tokens) // TOKEN_BYTES)[keep]
            batch.sample_rows = torch.tensor(
                [i for i in range(len(batch.token_ids)) if at + i in wanted], dtype=torch.int64
            )
            kept.append(self._decoder.logits(batch, self._backend).float().log_softmax(-1))
        return torch.cat(kept)


@dataclass
class Sums:
    """What one variant showed so far."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: fmean(values) for name, values in self.values.items()}


def facts(model: Model, length: int, prompts: int) -> dict[str, Any]:
    """Numbers at the beginning of prompts of about ``length`` tokens, asked for at the end."""
    rng = random.Random(length)
    filler = model.tokenizer.encode(_filler(), add_special_tokens=False)
    sums = {name: Sums() for name in VARIANTS}
    for _ in tqdm(range(prompts), desc=f"facts, {length:,} tokens", disable=None):
        things = rng.sample([f"{c} {t}" for c in COLOURS for t in THINGS], FACTS)
        numbers = [str(rng.randrange(1000, 10_000)) for _ in things]
        told = "".join(
            f"The number of the {thing} is {number}.\n"
            for thing, number in zip(things, numbers, strict=True)
        )
        begin = model.tokenizer.encode(told)
        room = max(0, length * TOKEN_BYTES - len(begin))
        at = rng.randrange(max(1, (len(filler) - room) // TOKEN_BYTES)) * TOKEN_BYTES
        prompt = begin + filler[at : at + room]
        contexts = model.contexts(length + 100)
        for context in contexts.values():
            context.feed(prompt, 0)
        for thing, number in zip(things, numbers, strict=True):
            for name, (logprob, right) in _answers(model, contexts, prompt, thing, number).items():
                sums[name].add(answer_logprob=logprob, answer_likeliest=right)
    return {"tokens": length, "questions": prompts * FACTS} | {
        name: each.means() for name, each in sums.items()
    }


def _answers(
    model: Model, contexts: dict[str, Context], prompt: bytes, thing: str, number: str
) -> dict[str, tuple[float, float]]:
    """For each variant: the mean logprob of the tokens of ``number``, asked for behind ``prompt``,
    and the share of them that is the likeliest."""
    question = f"\n\nAs said at the beginning, the number of the {thing} is"
    asked = model.tokenizer.encode(question, add_special_tokens=False)
    answer = model.tokenizer.encode(f" {number}", add_special_tokens=False)
    ids = torch.from_numpy(np.frombuffer(answer, ">i4").astype(np.int64))
    found = {}
    for name, context in contexts.items():
        rows = context.feed(asked + answer, len(prompt) // TOKEN_BYTES, slice(-len(ids) - 1, -1))
        right = (rows.argmax(-1) == ids).float().mean()
        found[name] = float(rows.gather(1, ids[:, None]).mean()), float(right)
    return found


def text(model: Model, content: str, most: int) -> dict[str, Any]:
    """How far the distributions on each token of ``content`` are from those of the exact model."""
    tokens = model.tokenizer.encode(content)[: most * TOKEN_BYTES]
    count = len(tokens) // TOKEN_BYTES
    contexts = model.contexts(count)
    divergences: dict[str, list[torch.Tensor]] = {name: [] for name in VARIANTS}
    agreed: dict[str, list[torch.Tensor]] = {name: [] for name in VARIANTS}
    for start in tqdm(range(0, count, CHUNK), desc="text", disable=None):
        part = tokens[start * TOKEN_BYTES : (start + CHUNK) * TOKEN_BYTES]
        exact = contexts["exact"].feed(part, start, slice(None))
        for name, context in contexts.items():
            rows = exact if name == "exact" else context.feed(part, start, slice(None))
            divergences[name].append((exact.exp() * (exact - rows)).sum(-1))
            agreed[name].append(exact.argmax(-1) == rows.argmax(-1))
    shown: dict[str, Any] = {"tokens": count}
    for name in VARIANTS:
        all_of_it = torch.cat(divergences[name])
        shown[name] = {
            "divergence_mean": float(all_of_it.mean()),
            "divergence_p99": float(all_of_it.quantile(0.99)),
            "same_likeliest": float(torch.cat(agreed[name]).float().mean()),
        }
    return shown


def _filler() -> str:
    return "\n\n".join(pydoc_data.topics.topics.values())


def draw(results: dict[str, Any], path: Path) -> Path:
    """One panel a number, a bar for each variant."""
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("mean KL divergence of the next token (nats)", "divergence_mean", results["text"]),
        ("same likeliest token as the exact model", "same_likeliest", results["text"]),
    ]
    for entry in results["facts"]:
        title = f"logprob of facts asked for after {entry['tokens']:,} tokens"
        wanted.append((title, "answer_logprob", entry))
    figure, axes = plot.panels(len(wanted), columns=2, title="KV and weights in 8 bits")
    names = list(VARIANTS)[::-1]
    for panel, (title, key, entry) in zip(axes, wanted, strict=True):
        plot.style(panel, title=title)
        values = [entry[name][key] for name in names]
        if key == "divergence_mean":  # from a hundred-thousandth to a tenth; none is no bar
            panel.set_xscale("log")
        if key == "same_likeliest":
            panel.set_xlim(2 * min(values) - 1, 1)
        panel.barh(names, values, color=plot.COLOURS[0])
    return plot.save(figure, path)


def main() -> None:
    """Measure; write JSON and PNG, also after Ctrl-C."""
    options = _options()
    results: dict[str, Any] = {"model": options.model or "the demo model", "facts": [], "text": {}}
    status = 0
    try:
        torch.set_grad_enabled(False)
        model = Model.load(options.model)
        content = options.text.read_text(encoding="utf-8") if options.text else _filler()
        results["text"] = text(model, content, 256 if options.quick else 2048)
        lengths, prompts = ((256,), 1) if options.quick else ((512, 1024, 2048), 3)
        for length in lengths:
            results["facts"].append(facts(model, length, prompts))
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was measured so far is kept\n")
        status = 130
    except (RadixServeError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"Error: {error}\n")
        status = 1
    if results["text"]:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"kv_quality{'-quick' if options.quick else ''}.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        draw(results, path)
    sys.stdout.write(json.dumps(results) + "\n")
    sys.exit(status)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kv_quality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a minute instead of some 15")
    parser.add_argument("--model", help="as radixserve serve takes it; default: the demo model")
    parser.add_argument("--text", type=Path, help="your own text, UTF-8")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
