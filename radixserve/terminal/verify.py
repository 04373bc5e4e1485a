"""``radixserve verify``: does reuse change an answer? Requests with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from radixserve.config import Dtype
from radixserve.errors import ConfigError, InvalidRequestError
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import unpack

if TYPE_CHECKING:
    from radixserve.engine.llm import LLM, RequestOutput

DEFAULT_MAX_TOKENS = 32
TOLERANCES = {"float32": 1e-3}
COARSE = 0.15
"""Tolerance in 16 bits, in nats: what another batch around a request changes."""


class Asked(msgspec.Struct, kw_only=True):
    """A line of the file: the body of a chat completion or of a completion."""

    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first token at which two answers part."""

    request: int
    """Line of the file, from 1."""
    token: int
    """Position in the answer, from 0."""
    without: str
    reused: str
    gap: float
    """How much likelier, in nats, the chosen token was than the other where nothing was reused."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` shows."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Of the run that found the cache warm."""
    largest: float
    """Largest distance of the logprobs of one token, in nats, before answers part."""
    differences: list[Difference]
    tolerance: float

    @property
    def sound(self) -> bool:
        """Whether reuse changed nothing beyond the tolerance, and there was some."""
        near = all(each.gap <= self.tolerance for each in self.differences)
        return near and self.largest <= self.tolerance and self.cached_tokens > 0


def read(path: Path) -> list[Asked]:
    """The requests in ``path``, one JSON object a line.

    Raises:
        ConfigError: it cannot be read, or a line is no request; the message names the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
    asked = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            each = msgspec.json.decode(line, type=Asked)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"Line {number} of {path} is no request: {error}.") from error
        if (each.messages is None) == (each.prompt is None):
            raise ConfigError(f"Line {number} of {path} needs either messages or prompt.")
        asked.append(each)
    if not asked:
        raise ConfigError(f"There are no requests in {path}.")
    return asked


def compare(llm: LLM, asked: Sequence[Asked], tolerance: float, *, progress: bool) -> Comparison:
    """Run ``asked`` without the cache, then with it, cold and warm.

    Raises:
        InvalidRequestError: the model cannot take one of them.
    """
    prompts = [_prompt(llm, number, each) for number, each in enumerate(asked, 1)]
    sampling = [
        SamplingParams(
            max_tokens=each.max_tokens,
            temperature=each.temperature,
            top_p=each.top_p,
            seed=each.seed,
            logprobs=5,
        )
        for each in asked
    ]
    without = llm.generate(prompts, sampling, cache="off", progress=progress)
    differences: list[Difference] = []
    largest = 0.0
    for _ in ("cold", "warm"):
        reused = llm.generate(prompts, sampling, progress=progress)
        for number, (one, other) in enumerate(zip(without, reused, strict=True), 1):
            distance, difference = _part(number, one, other)
            largest = max(largest, distance)
            if difference is not None:
                differences.append(difference)
    return Comparison(
        requests=len(asked),
        prompt_tokens=sum(each.usage.prompt_tokens for each in reused),
        cached_tokens=sum(each.usage.cached_tokens for each in reused),
        largest=largest,
        differences=differences,
        tolerance=tolerance,
    )


def _prompt(llm: LLM, number: int, asked: Asked) -> list[int]:
    try:
        if asked.messages is not None:
            return unpack(llm.tokenizer.encode_chat(asked.messages))
        if isinstance(asked.prompt, str):
            return unpack(llm.tokenizer.encode(asked.prompt))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"Request {number}: {error.message}") from error
    return asked.prompt or []


def _part(number: int, one: RequestOutput, other: RequestOutput) -> tuple[float, Difference | None]:
    """The largest distance of logprobs until the answers part, and where that is."""
    largest = 0.0
    [a], [b] = one.completions, other.completions
    for position, (left, right) in enumerate(zip(a.logprobs, b.logprobs, strict=False)):
        if a.token_ids[position] == b.token_ids[position]:
            largest = max(largest, abs(left.logprob - right.logprob))
            continue
        rival = next((each.logprob for each in left.top if each.bytes == right.bytes), None)
        gap = float("inf") if rival is None else abs(left.logprob - rival)
        return largest, Difference(
            request=number, token=position, without=left.token, reused=right.token, gap=gap
        )
    return largest, None


def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A directory, a GGUF file or a Hugging Face id. Without one: the demo model."
        ),
    ] = None,
    requests: Annotated[
        Path,
        typer.Option(
            help="JSON lines: bodies of chat completions (messages) or completions (prompt)."
        ),
    ] = ...,  # type: ignore[assignment]
    dtype: Annotated[Dtype, typer.Option(help="float32 is exact.")] = "auto",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Then not a bit may differ.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Show that reuse changes no answer: the same requests without the cache, cold and warm.

    Compares tokens and logprobs, and prints where answers part first. In 16 bits two tokens that
    are as good as equally likely may change places, as they do when anything else in the batch
    changes; with float32 or --deterministic nothing may. Ends with status 1 if reuse changed
    something, or if there was none.
    """
    from radixserve.engine.llm import LLM

    asked = read(requests)
    llm = LLM(model, dtype=dtype, deterministic=deterministic)
    exact = TOLERANCES.get(llm.core.runner.info.dtype, COARSE)
    tolerance = 0.0 if deterministic else exact
    console = Console(stderr=True)
    found = compare(llm, asked, tolerance, progress=console.is_terminal)
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        _show(found, Console(highlight=False))
    if not found.sound:
        raise typer.Exit(1)


def _show(found: Comparison, console: Console) -> None:
    table = Table(show_header=False)
    for name, value in (
        ("requests", found.requests),
        ("prompt tokens", found.prompt_tokens),
        ("reused in the warm run", found.cached_tokens),
        ("largest distance of a logprob", f"{found.largest:.2g} nats"),
        ("allowed", f"{found.tolerance:.2g} nats"),
        ("answers that part", len(found.differences)),
    ):
        table.add_row(name, str(value))
    console.print(table)
    if found.differences:
        first = found.differences[0]
        console.print(
            f"First: request {first.request}, token {first.token}: {first.without!r} without the "
            f"cache, {first.reused!r} with it; {first.gap:.3g} nats lay between them.",
            markup=False,
        )
    if not found.cached_tokens:
        console.print("Nothing was reused: the prompts are shorter than two tokens.")
    console.print("Reuse changes nothing." if found.sound else "Reuse changes answers.")
