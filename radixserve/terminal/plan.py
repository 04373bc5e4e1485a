"""``radixserve plan``: what fits into a memory, and why."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from radixserve.errors import ConfigError, printable
from radixserve.terminal.capacity import BITS, Plan, Question, Room, capacity
from radixserve.terminal.options import option
from radixserve.terminal.shape import Details, Sizes, read, shape, within
from radixserve.terminal.sizes import both, byte_rate, byte_size, decimal, quantity, short

CONTEXT = 8192
"""Tokens of a request when neither the model nor an option says."""
SIZES, MEMORY, REQUESTS = "Model", "Memory and speed", "Requests"


class Line(NamedTuple):
    """One line of the table: what it is, how much, and how that comes about."""

    what: str
    value: str
    how: str


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A config.json, a model's directory or a Hugging Face id. Without one, or to "
            "change what it says, give sizes."
        ),
    ] = None,
    layers: Annotated[int | None, option(SIZES, "Layers that keep keys and values.")] = None,
    hidden_size: Annotated[int | None, option(SIZES, "Width between layers.")] = None,
    heads: Annotated[int | None, option(SIZES, "Query heads.")] = None,
    kv_heads: Annotated[int | None, option(SIZES, "Default: as many as --heads.")] = None,
    head_dim: Annotated[int | None, option(SIZES, "Default: hidden size / heads.")] = None,
    vocab_size: Annotated[int | None, option(SIZES, "Rows of the embeddings.")] = None,
    intermediate_size: Annotated[int | None, option(SIZES, "Width inside the MLP.")] = None,
    parameters: Annotated[
        str | None,
        option(SIZES, "70B, 134.5M. Default: counted, for Llama and its kin.", metavar="NUMBER"),
    ] = None,
    dtype: Annotated[str, option(SIZES, f"Weights: {', '.join(BITS)}.")] = "bf16",
    kv_dtype: Annotated[
        str | None, option(SIZES, "Keys and values. Default: as --dtype, but at least 16 bits.")
    ] = None,
    memory: Annotated[
        str | None, option(MEMORY, "Of one card: 80GB, 24GiB.", metavar="SIZE")
    ] = None,
    utilization: Annotated[
        float, option(MEMORY, "Share of it for weights and KV; the rest is for activations.")
    ] = 0.92,
    weights_memory: Annotated[
        str | None,
        option(
            MEMORY,
            "All weights, over all cards. Default: parameters times --dtype.",
            metavar="SIZE",
        ),
    ] = None,
    tensor_parallel: Annotated[int, option(MEMORY, "Cards that share it.")] = 1,
    bandwidth: Annotated[
        str | None,
        option(
            MEMORY,
            "Of one card's memory, 2TB/s: shows how fast it can decode at most.",
            metavar="RATE",
        ),
    ] = None,
    context: Annotated[
        int | None,
        option(
            REQUESTS,
            "Longest request, prompt and answer, in tokens.",
            "--context",
            "--max-model-len",
            show_default=f"the model's, or {CONTEXT:,}",
        ),
    ] = None,
    requests: Annotated[
        str | None,
        option(
            REQUESTS,
            "How long requests really are, in tokens: 500, or 180,650,90.",
            metavar="LENGTHS",
            show_default="--context",
        ),
    ] = None,
    page_size: Annotated[int, option(REQUESTS, "Tokens a page.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="All numbers, as JSON.")] = False,
) -> None:
    """Work out how many requests fit into a memory, and say how.

    [bold]radixserve plan meta-llama/Llama-3.1-8B --memory 80GB --context 8192[/]

    [bold]radixserve plan --layers 32 --kv-heads 8 --head-dim 128[/] shows what one token takes.
    Nothing is loaded but config.json.
    """
    within("--context", context)
    sizes, details = (Sizes(), Details()) if model is None else read(model, context)
    given = Sizes(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        intermediate_size=intermediate_size,
    )
    known = None if parameters is None else quantity(parameters, name="--parameters")
    question = Question(
        shape=shape(given.over(sizes), details, known),
        context=context or details.max_model_len or CONTEXT,
        requests=_lengths(requests),
        dtype=dtype,
        kv_dtype=kv_dtype,
        page_size=page_size,
        tensor_parallel=tensor_parallel,
        weights=_bytes("--weights-memory", weights_memory),
        memory=_bytes("--memory", memory),
        utilization=utilization,
        bandwidth=None if bandwidth is None else byte_rate(bandwidth, name="--bandwidth"),
    )
    answer = capacity(question, details.name, _warnings(question, details))
    warn = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in answer.warnings:
        warn.print(Text.assemble(("Warning: ", "bold yellow"), warning))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        show(answer, Console(highlight=False))


def show(answer: Plan, console: Console) -> None:
    """The plan for people: each line says what it is and how it comes about."""
    cards = "one card" if answer.tensor_parallel == 1 else f"{answer.tensor_parallel} cards"
    console.print(Text(f"{printable(answer.model)} on {cards}", style="bold"))
    table = Table("", "", "how it is computed", box=None, header_style="dim", pad_edge=False)
    table.columns[2].style = "dim"
    sections = [_model_lines(answer), _request_lines(answer)]
    if answer.room is not None:
        sections.append(_room_lines(answer, answer.room))
    for lines in sections:
        for line in lines:
            table.add_row(*(Text(cell) for cell in line))
        table.add_row()
    console.print(table)
    if answer.bandwidth is not None and answer.decode:
        _show_decode(answer, answer.bandwidth, console)
    console.print(
        "A prefix that requests share takes its pages once: what they reuse leaves room for more "
        "of them."
    )


def _model_lines(answer: Plan) -> list[Line]:
    cards, kv_heads = answer.tensor_parallel, answer.kv_heads_per_card
    card = "" if cards == 1 else " on each card"
    lines = []
    if answer.parameters is not None:
        lines.append(Line("parameters", f"{answer.parameters:,}", answer.parameters_counted))
    if answer.weights is not None and answer.weights_per_card is not None:
        how = f"parameters · {_element(answer.dtype)}"
        if answer.weights_given:
            how = "as given"
        if cards > 1:
            how += f": {both(answer.weights)} over {cards} cards"
        lines.append(Line(f"weights{card}", both(answer.weights_per_card), how))
    if cards > 1:
        how = f"{answer.kv_heads} KV heads over {cards} cards"
        if cards > answer.kv_heads:
            how += f": {cards // answer.kv_heads} cards hold the same one, more cards save no KV"
        lines.append(Line(f"KV heads{card}", f"{kv_heads}", how))
    plural = "" if kv_heads == 1 else "s"
    product = f"{answer.layers} layers · {kv_heads} KV head{plural} · head size {answer.head_dim}"
    how = f"key and value (2) · {product} · {_element(answer.kv_dtype)}"
    token = answer.token_per_card
    lines.append(Line(f"KV of a token{card}", f"{token:,} B\n{both(token)}", how))
    if answer.heads is not None and answer.heads > answer.kv_heads and cards == 1:
        times = answer.heads // answer.kv_heads
        how = f"{answer.heads} KV heads, one for each query head: {times} times as much"
        lines.append(Line("  without sharing heads", both(token * times), how))
    return lines


def _request_lines(answer: Plan) -> list[Line]:
    mix, page = answer.mix, answer.page_size
    lines = [
        Line(
            f"KV of a request of {answer.context:,} tokens",
            both(answer.request_per_card),
            f"{answer.context:,} tokens · {answer.token_per_card:,} B",
        ),
        Line("  in pages", f"{answer.request_pages:,}", f"{answer.context:,} / {page}, rounded up"),
    ]
    if mix.lengths != [answer.context]:
        many = len(mix.lengths)
        what = "the request" if many == 1 else f"the {many:,} requests"
        mean = "" if many == 1 else f", {short(mix.tokens / many)} each on average"
        lines += [
            Line(what, f"{mix.tokens:,} tokens", f"the sum of --requests{mean}"),
            Line(
                "  reserved at whole length",
                f"{mix.reserved_slots:,} slots",
                f"{many:,} · {answer.context:,}; {mix.reserved_used:.1%} of them used",
            ),
            Line(
                "  paged",
                f"{mix.paged_slots:,} slots",
                f"{mix.pages:,} pages · {page}; {mix.paged_used:.1%} of them used",
            ),
        ]
    return lines


def _room_lines(answer: Plan, room: Room) -> list[Line]:
    mix = answer.mix
    page = answer.token_per_card * answer.page_size
    each, mean = mix.pages / len(mix.lengths), short(mix.tokens / len(mix.lengths))
    return [
        Line(
            "usable of a card" if answer.tensor_parallel > 1 else "usable memory",
            both(room.usable),
            f"{decimal(room.memory)} · {room.utilization:g}; the rest is for activations",
        ),
        Line(
            "left for KV",
            both(room.kv),
            f"{decimal(room.usable)} less {decimal(room.usable - room.kv)} of weights",
        ),
        Line(
            "tokens",
            f"{room.tokens:,}",
            f"{decimal(room.kv)} / {answer.token_per_card:,} B a token",
        ),
        Line("pages", f"{room.pages:,}", f"{decimal(room.kv)} / {page:,} B a page"),
        Line(
            "requests, reserved at whole length",
            f"{room.reserved_requests:,}",
            f"{room.tokens:,} tokens / {answer.context:,} = {room.tokens / answer.context:,.1f}",
        ),
        Line(
            "requests, paged",
            f"{room.paged_requests:,}",
            f"{room.pages - 1:,} pages (one is scratch) / {short(each)} = "
            f"{(room.pages - 1) / each:,.1f}, at {mean} tokens each",
        ),
    ]


def _show_decode(answer: Plan, bandwidth: int, console: Console) -> None:
    tokens = short(answer.mix.tokens / len(answer.mix.lengths))
    console.print(
        f"Decoding at {both(bandwidth)} a second: at most, since each step reads all weights once, "
        f"and the KV of each request, {tokens} tokens:"
    )
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("batch", "a step reads weights", "and KV", "steps/s", "tokens/s"):
        table.add_column(name, justify="right")
    for step in answer.decode:
        table.add_row(
            f"{step.batch:,}",
            both(step.weight_bytes),
            both(step.kv_bytes),
            short(step.steps_per_second),
            short(step.tokens_per_second),
        )
    console.print(table)
    console.print()


def _warnings(question: Question, details: Details) -> list[str]:
    longest = details.max_model_len
    if longest is None or question.context <= longest:
        return details.warnings
    return [
        *details.warnings,
        f"--context {question.context} is more than the {longest} tokens that {details.name} was "
        "made for.",
    ]


def _lengths(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--requests {text!r} is no list of lengths: write 500, or 180,650,90."
        ) from error


def _bytes(option: str, text: str | None) -> int | None:
    return None if text is None else byte_size(text, name=option, bare=False)


def _element(dtype: str) -> str:
    return f"{BITS[dtype] / 8:g} B ({dtype})"
