"""How many requests fit into a memory, and how fast they can be decoded at most."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from radixserve.config import LARGEST_PAGE
from radixserve.errors import ConfigError
from radixserve.terminal.shape import Shape, within
from radixserve.terminal.sizes import both

BITS = {
    "fp32": 32, "float32": 32, "bf16": 16, "bfloat16": 16, "fp16": 16, "float16": 16,
    "fp8": 8, "int8": 8, "int4": 4,
}  # fmt: skip
BATCHES = (1, 8, 32, 128, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned. Memory and bandwidth are a card's; sizes are in bytes or tokens.

    ``requests`` are the tokens, prompt and answer, of the requests to expect; each is reserved
    ``context`` tokens where memory is reserved for whole lengths.

    Raises:
        ConfigError: a value, or two together, cannot be.
    """

    shape: Shape
    context: int
    requests: tuple[int, ...]
    dtype: str = "bf16"
    kv_dtype: str | None = None
    page_size: int = 16
    tensor_parallel: int = 1
    weights: int | None = None
    """Of all cards; None counts the parameters."""
    memory: int | None = None
    utilization: float = 0.92
    bandwidth: int | None = None

    def __post_init__(self) -> None:
        for option, name in (("--dtype", self.dtype), ("--kv-dtype", self.kv_dtype)):
            if name is not None and name not in BITS:
                raise ConfigError(f"{option} {name!r} is not known: use one of {', '.join(BITS)}.")
        within("--context", self.context)
        within("--page-size", self.page_size, LARGEST_PAGE)
        within("--tensor-parallel", self.tensor_parallel)
        for length in self.requests:
            within("--requests: each", length)
            if length > self.context:
                raise ConfigError(
                    f"--requests: {length} tokens are more than --context {self.context}."
                )
        if not 0.0 < self.utilization <= 1.0:
            raise ConfigError(
                f"--utilization must be above 0 and at most 1, not {self.utilization}."
            )
        cards = self.tensor_parallel
        for option, heads in (("--heads", self.shape.heads), ("--kv-heads", self.shape.kv_heads)):
            split = heads is None or heads % cards == 0
            if not split and (option == "--heads" or cards % self.shape.kv_heads):
                raise ConfigError(
                    f"--tensor-parallel {cards} does not divide {option} {heads} evenly."
                )

    @property
    def weight_bits(self) -> int:
        return BITS[self.dtype]

    @property
    def cache_dtype(self) -> str:
        """KV is kept as the weights are, but for weights of fewer than 16 bits."""
        return self.kv_dtype or (self.dtype if self.weight_bits >= 16 else "bf16")


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of given lengths side by side; slots hold one token each."""

    lengths: list[int]
    tokens: int
    reserved_slots: int
    reserved_used: float
    """Share of the reserved slots that hold a token."""
    pages: int
    paged_slots: int
    paged_used: float


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """One card's memory; sizes are in bytes."""

    memory: int
    utilization: float
    usable: int
    kv: int
    tokens: int
    pages: int
    """One of them is scratch and holds no request."""
    reserved_requests: int
    paged_requests: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step of ``batch`` requests, bound by what it reads."""

    batch: int
    weight_bytes: int
    kv_bytes: int
    steps_per_second: float
    tokens_per_second: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; sizes are in bytes."""

    model: str
    layers: int
    heads: int | None
    kv_heads: int
    head_dim: int
    dtype: str
    kv_dtype: str
    tensor_parallel: int
    page_size: int
    context: int
    parameters: int | None
    parameters_counted: str
    weights: int | None
    weights_given: bool
    weights_per_card: int | None
    token: int
    """Keys and values of one token, counted once."""
    kv_heads_per_card: int
    token_per_card: int
    request_per_card: int
    """A request of ``context`` tokens."""
    request_pages: int
    mix: Mix
    room: Room | None
    bandwidth: int | None
    decode: list[Step]
    warnings: list[str]


def capacity(question: Question, model: str, warnings: list[str]) -> Plan:
    """Answer ``question``.

    Raises:
        ConfigError: the weights are not known and needed, or leave no room for KV.
    """
    shape, cards = question.shape, question.tensor_parallel
    kv_bits = BITS[question.cache_dtype]
    head_bits = shape.layers * 2 * shape.head_dim * kv_bits
    # With more cards than KV heads, several cards hold a copy of the same one.
    card_heads = max(shape.kv_heads // cards, 1)
    token = head_bits * card_heads // 8
    weights = question.weights
    if weights is None and shape.parameters is not None:
        weights = -(-shape.parameters * question.weight_bits // 8)
    if weights is None and (question.memory is not None or question.bandwidth is not None):
        raise ConfigError(
            "How large are the weights? Give --parameters 70B or --weights-memory 140GB."
        )
    card_weights = None if weights is None else -(-weights // cards)
    mix = _mix(question)
    room = None
    if question.memory is not None and card_weights is not None:
        room = _room(question, card_weights, token, mix)
        if room.paged_requests == 0:
            warnings = [*warnings, _too_long(question, room)]
    decode = []
    if question.bandwidth is not None and card_weights is not None:
        decode = _decode(question.bandwidth, card_weights, token, mix, room)
    return Plan(
        model=model,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=question.dtype,
        kv_dtype=question.cache_dtype,
        tensor_parallel=cards,
        page_size=question.page_size,
        context=question.context,
        parameters=shape.parameters,
        parameters_counted=shape.counted,
        weights=weights,
        weights_given=question.weights is not None,
        weights_per_card=card_weights,
        token=head_bits * shape.kv_heads // 8,
        kv_heads_per_card=card_heads,
        token_per_card=token,
        request_per_card=question.context * token,
        request_pages=-(-question.context // question.page_size),
        mix=mix,
        room=room,
        bandwidth=question.bandwidth,
        decode=decode,
        warnings=warnings,
    )


def _mix(question: Question) -> Mix:
    lengths = list(question.requests) or [question.context]
    tokens = sum(lengths)
    reserved = len(lengths) * question.context
    pages = sum(-(-length // question.page_size) for length in lengths)
    return Mix(
        lengths=lengths,
        tokens=tokens,
        reserved_slots=reserved,
        reserved_used=tokens / reserved,
        pages=pages,
        paged_slots=pages * question.page_size,
        paged_used=tokens / (pages * question.page_size),
    )


def _room(question: Question, weights: int, token: int, mix: Mix) -> Room:
    memory = question.memory or 0
    usable = round(memory * question.utilization)
    kv = usable - weights
    page = token * question.page_size
    if kv < 2 * page:
        raise ConfigError(
            f"--memory {both(memory)} at --utilization {question.utilization:g} leaves "
            f"{both(usable)}: too little for weights of {both(weights)} a card and two KV pages of "
            f"{both(page)}. Take more --memory or --tensor-parallel, or fewer bits in --dtype."
        )
    pages = kv // page
    return Room(
        memory=memory,
        utilization=question.utilization,
        usable=usable,
        kv=kv,
        tokens=kv // token,
        pages=pages,
        reserved_requests=kv // token // question.context,
        paged_requests=(pages - 1) * len(mix.lengths) // mix.pages,
    )


def _too_long(question: Question, room: Room) -> str:
    return (
        f"Not one such request fits: at most {(room.pages - 1) * question.page_size:,} tokens do. "
        "Lower --context, or take more --memory or --tensor-parallel."
    )


def _decode(bandwidth: int, weights: int, token: int, mix: Mix, room: Room | None) -> list[Step]:
    batches = set(BATCHES)
    if room is not None:
        batches = {each for each in batches if each <= room.paged_requests}
        batches |= {room.paged_requests} - {0}
    steps = []
    for batch in sorted(batches):
        kv = batch * mix.tokens * token // len(mix.lengths)
        rate = bandwidth / (weights + kv)
        steps.append(
            Step(
                batch=batch,
                weight_bytes=weights,
                kv_bytes=kv,
                steps_per_second=rate,
                tokens_per_second=batch * rate,
            )
        )
    return steps
