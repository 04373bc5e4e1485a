"""What KV in 8 bits costs in quality, keys and values apart.

    python -m bench.kv_quality [--quick] [--model MODEL] [--text FILE] [--out bench/results]

Two questions, in fp32 arithmetic, so that nothing but the codes makes a difference:

- *Facts*: numbers stand at the beginning of long prompts and are asked for at the end. How likely
  is the right answer, and is each of its tokens the likeliest?
- *Text*: how far are the distributions of the next token from those of exact KV, on each token of a
  text (Kullback-Leibler divergence), and how often is the likeliest token another?

``--text`` takes your own file. Results are written as JSON and PNG.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

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
VARIANTS: dict[str, tuple[Code, Code]] = {
    "keys in int8": ("int8", "none"),
    "values in int8": ("none", "int8"),
    "int8": ("int8", "int8"),
    "keys in fp8_e4m3": ("fp8_e4m3", "none"),
    "values in fp8_e4m3": ("none", "fp8_e4m3"),
    "fp8_e4m3": ("fp8_e4m3", "fp8_e4m3"),
}
THINGS = ("lamp", "door", "bridge", "garden", "engine", "clock", "tower", "river")
COLOURS = ("red", "green", "white", "black", "yellow", "blue")


class Rounded(ReferenceAttention):
    """The reference, on keys and values that went through their codes and back."""

    def __init__(self, kv: torch.Tensor, codes: tuple[Code, Code]):
        super().__init__(kv)
        self._codes = codes

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See ``ReferenceAttention.append``."""
        through = [
            vectors if code == "none" else dequantize(*quantize(vectors, code)).to(vectors.dtype)
            for vectors, code in zip((key, value), self._codes, strict=True)
        ]
        super().append(layer, *through)


@dataclass
class Model:
    """A model that is run with several kinds of KV at once."""

    decoder: Decoder
    geometry: KvGeometry
    tokenizer: Tokenizer

    def logprobs(
        self, tokens: bytes, variants: dict[str, tuple[Code, Code]]
    ) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """The distributions behind each token, chunk by chunk: position of the first, and fp32
        [tokens, vocabulary] for each variant."""
        count = len(tokens) // TOKEN_BYTES
        pages = array("i", range(1, 2 + count // PAGE))
        backends = {
            name: Rounded(
                KvStorage(self.geometry, len(pages) + 1, PAGE, torch.device("cpu")).kv, codes
            )
            for name, codes in variants.items()
        }
        for start in range(0, count, CHUNK):
            part = tokens[start * TOKEN_BYTES : (start + CHUNK) * TOKEN_BYTES]
            batch = paged_batch(StepPlan(1, [Row("r", part, start, pages, SamplingParams())]), PAGE)
            batch.sample_rows = torch.arange(len(batch.token_ids))
            yield (
                start,
                {
                    name: self.decoder.logits(batch, backend).float().log_softmax(-1)
                    for name, backend in backends.items()
                },
            )


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
    sums = {name: Sums() for name in ("exact", *VARIANTS)}
    for _ in tqdm(range(prompts), desc=f"facts, {length:,} tokens", disable=None):
        things = rng.sample([f"{c} {t}" for c in COLOURS for t in THINGS], 4)
        numbers = [str(rng.randrange(1000, 10_000)) for _ in things]
        told = "".join(
            f"The number of the {thing} is {number}.\n"
            for thing, number in zip(things, numbers, strict=True)
        )
        asked = rng.randrange(len(things))
        begin = model.tokenizer.encode(told)
        question = f"\n\nAs said at the beginning, the number of the {things[asked]} is"
        end = model.tokenizer.encode(question, add_special_tokens=False)
        answer = model.tokenizer.encode(f" {numbers[asked]}", add_special_tokens=False)
        room = length * TOKEN_BYTES - len(begin) - len(end) - len(answer)
        at = rng.randrange(max(1, (len(filler) - room) // TOKEN_BYTES)) * TOKEN_BYTES
        prompt = begin + filler[at : at + max(0, room)] + end + answer
        first = (len(prompt) - len(answer)) // TOKEN_BYTES - 1
        for name, (logprob, right) in _answered(model, prompt, first).items():
            sums[name].add(answer_logprob=logprob, answer_likeliest=right)
    return {"tokens": length, "prompts": prompts} | {
        name: each.means() for name, each in sums.items()
    }


def _answered(model: Model, prompt: bytes, first: int) -> dict[str, tuple[float, float]]:
    """For each variant: mean logprob of the tokens behind position ``first``, and the share of them
    that is the likeliest."""
    ids = torch.frombuffer(bytearray(prompt), dtype=torch.int32).numpy().byteswap()
    variants: dict[str, tuple[Code, Code]] = {"exact": ("none", "none"), **VARIANTS}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for start, logprobs in model.logprobs(prompt, variants):
        for position in range(max(first, start), min(start + CHUNK, len(ids) - 1)):
            wanted = int(ids[position + 1])
            for name, rows in logprobs.items():
                row = rows[position - start]
                found[name].append((float(row[wanted]), float(int(row.argmax()) == wanted)))
    return {
        name: (fmean(p for p, _ in pairs), fmean(r for _, r in pairs))
        for name, pairs in found.items()
    }


def text(model: Model, content: str, most: int) -> dict[str, Any]:
    """How far the distributions on each token of ``content`` are from those of exact KV."""
    tokens = model.tokenizer.encode(content)[: most * TOKEN_BYTES]
    variants: dict[str, tuple[Code, Code]] = {"exact": ("none", "none"), **VARIANTS}
    divergences: dict[str, list[torch.Tensor]] = {name: [] for name in VARIANTS}
    agreed: dict[str, list[torch.Tensor]] = {name: [] for name in VARIANTS}
    count = len(tokens) // TOKEN_BYTES
    with tqdm(total=count, desc="text", unit="token", disable=None) as bar:
        for _, logprobs in model.logprobs(tokens, variants):
            exact = logprobs.pop("exact")
            for name, rows in logprobs.items():
                divergences[name].append((exact.exp() * (exact - rows)).sum(-1))
                agreed[name].append(exact.argmax(-1) == rows.argmax(-1))
            bar.update(len(exact))
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
    wanted: list[tuple[str, Callable[[str], float | None]]] = []
    if results["text"]:
        for key, title in (
            ("divergence_mean", "mean KL divergence of the next token (nats)"),
            ("same_likeliest", "same likeliest token as exact KV"),
        ):
            wanted.append((title, lambda name, key=key: results["text"].get(name, {}).get(key)))
    for entry in results["facts"]:
        title = f"logprob of facts asked for after {entry['tokens']:,} tokens"
        wanted.append((title, lambda name, entry=entry: entry.get(name, {}).get("answer_logprob")))
    figure, axes = plot.panels(len(wanted), columns=2, title="KV in 8 bits")
    for panel, (title, value) in zip(axes, wanted, strict=True):
        names = [name for name in ("exact", *VARIANTS) if value(name) is not None]
        plot.style(panel, title=title)
        panel.barh(names[::-1], [value(name) for name in names[::-1]], color=plot.COLOURS[0])
        low = min(value(name) or 0.0 for name in names)
        if low > 0.5:
            panel.set_xlim(low - (1 - low), 1)
    return plot.save(figure, path)


def main() -> None:
    """Measure; write JSON and PNG, also after Ctrl-C."""
    options = _options()
    results: dict[str, Any] = {"model": options.model or "the demo model", "facts": [], "text": {}}
    status = 0
    try:
        torch.set_grad_enabled(False)
        config = EngineConfig(
            model=options.model, dtype="float32", device="cpu", attention_backend="reference"
        )
        files = prepare(config)
        described = describe(files.model, config)
        decoder = load(described)
        model = Model(
            decoder, survey(decoder, described.max_model_len), Tokenizer.load(files.tokenizer)
        )
        content = options.text.read_text(encoding="utf-8") if options.text else _filler()
        results["text"] = text(model, content, 256 if options.quick else 2048)
        lengths, prompts = ((256,), 2) if options.quick else ((512, 1024, 2048), 8)
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
    parser.add_argument("--quick", action="store_true", help="a minute instead of some ten")
    parser.add_argument("--model", help="as radixserve serve takes it; default: the demo model")
    parser.add_argument("--text", type=Path, help="your own text, UTF-8")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
