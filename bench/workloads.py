"""What clients send: conversations of prompts in token ids, drawn from seeds.

The shapes are those of the official tools (vLLM's prefix repetition, SGLang's generated shared
prefix and multi-turn, Poisson arrivals as in Kwon et al., SOSP 2023), scaled down by the caller.
Answers inside a history are drawn too, not taken from the model, so that every run sends the same.
"""

from __future__ import annotations

import bisect
import math
import pydoc_data.topics
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from radixserve.tokens import TOKEN_BYTES, pack

VOCABULARY = range(1_000, 30_000)
"""Token ids that prompts are drawn from: plain ones of every model with a vocabulary of 30,000."""

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal token counts of a chat data set, by their means."""

    prompt: float
    output: float
    spread: float = 0.9
    """Standard deviation of the logarithm."""

    def scaled(self, factor: float) -> Lengths:
        return Lengths(self.prompt * factor, self.output * factor, self.spread)

    def draw(self, rng: random.Random, *, longest: int) -> tuple[int, int]:
        """Prompt and output tokens of one request, each 1 to ``longest``."""
        shift = self.spread**2 / 2
        prompt = rng.lognormvariate(math.log(self.prompt) - shift, self.spread)
        output = rng.lognormvariate(math.log(self.output) - shift, self.spread)
        return _within(round(prompt), longest), _within(round(output), longest)


SHAREGPT = Lengths(161, 338)
ALPACA = Lengths(19, 58)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: a prompt in token ids and how many tokens to answer."""

    prompt: list[int]
    output: int
    pause: float = 0.0
    """Seconds from the answer before to this request."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of one client, each sent after the answer to the one before it."""

    turns: list[Turn]
    start: float = 0.0
    """Seconds from the start of the run to the first turn."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations, at most ``concurrency`` requests of them in flight (0: no limit)."""

    name: str
    conversations: list[Conversation]
    concurrency: int = 0
    scale: str = ""
    """In words: how it differs from the original."""
    turns: list[Turn] = field(init=False)

    def __post_init__(self) -> None:
        turns = [turn for each in self.conversations for turn in each.turns]
        object.__setattr__(self, "turns", turns)


def drawn(seed: object, count: int) -> list[int]:
    """``count`` token ids; the same for the same ``seed``. O(count)."""
    return random.Random(repr(seed)).choices(VOCABULARY, k=count)


def shared_tokens(prompts: Iterable[Sequence[int]]) -> list[int]:
    """For each prompt, the tokens that some prompt before it begins with, at most its length - 1.

    This is what an unbounded cache of prompts could reuse. O(prompts · (log prompts + tokens)).
    """
    before: list[bytes] = []
    shared = []
    for prompt in prompts:
        packed = pack(prompt)
        place = bisect.bisect_left(before, packed)
        # In order of bytes, the longest common head is with one of the two neighbours.
        best = max(
            (_common(packed, each) for each in before[max(0, place - 1) : place + 1]), default=0
        )
        shared.append(min(best, len(prompt) - 1))
        before.insert(place, packed)
    return shared


def prefix_repetition(
    *, prefixes: int, prompts: int, prefix: int, suffix: int, output: int, seed: int = 0
) -> Workload:
    """vLLM's ``prefix_repetition``: ``prompts`` over a few common prefixes, shuffled."""
    turns = [
        Turn(
            drawn((seed, "prefix", n % prefixes), prefix) + drawn((seed, "suffix", n), suffix),
            output,
        )
        for n in range(prompts)
    ]
    random.Random(seed).shuffle(turns)
    scale = f"{prefixes} prefixes of {prefix}, suffix {suffix}, output {output} (10, 256, 256, 128)"
    return Workload("prefix-repetition", _apart(turns), concurrency=8, scale=scale)


def generated_shared_prefix(
    *, groups: int, per_group: int, system: int, question: int, output: int, seed: int = 0
) -> Workload:
    """SGLang's ``generated-shared-prefix``: groups of questions, a system prompt each."""
    turns = [
        Turn(drawn((seed, "system", g), system) + drawn((seed, "q", g, n), question), output)
        for g in range(groups)
        for n in range(per_group)
    ]
    random.Random(seed).shuffle(turns)
    scale = f"{groups} x {per_group}, {system}/{question}/{output} (64 x 16, 2048/128/256)"
    return Workload("shared-prefix", _apart(turns), concurrency=16, scale=scale)


def multi_turn(
    *, clients: int, rounds: int, request: int, output: int, stagger: float, seed: int = 0
) -> Workload:
    """SGLang's hierarchical-cache benchmark: each round sends the whole history and a request."""
    conversations = []
    rng = random.Random(seed)
    start = 0.0
    for client in range(clients):
        history: list[int] = []
        turns = []
        for n in range(rounds):
            history = history + drawn((seed, "ask", client, n), request)
            turns.append(Turn(history, output))
            history = history + drawn((seed, "answer", client, n), output)
        conversations.append(Conversation(turns, start))
        start += rng.expovariate(1 / stagger)
    scale = f"{clients} clients, {rounds} rounds, {request}/{output} (256, 5, 512/64)"
    return Workload("multi-turn", conversations, scale=scale)


def rag(
    encode: Encode, *, requests: int, chunk: int, question: int, output: int, seed: int = 0
) -> Workload:
    """Questions over the documents of ``pydoc_data.topics``, with their best chunks in front.

    Three documents take 60 % of the requests, the others follow Zipf's law. 2 to 4 chunks of at
    most ``chunk`` tokens come after a common instruction, in the order of the document.
    """
    documents = [
        _chunks(encode(text), chunk) for _, text in sorted(pydoc_data.topics.topics.items())
    ]
    documents = sorted((each for each in documents if len(each) > 3), key=len, reverse=True)
    hot, rest = documents[:3], documents[3:]
    weights = [1 / rank for rank in range(1, len(rest) + 1)]
    rng = random.Random(seed)
    system = encode(
        "Answer from the passages below, and say so when they do not hold the answer.\n"
    )
    turns = []
    for n in range(requests):
        document = rng.choice(hot) if rng.random() < 0.6 else rng.choices(rest, weights)[0]
        # The best passages of a document are few: its first ones stand for them.
        chosen = sorted(rng.sample(range(min(5, len(document))), rng.randint(2, 4)))
        passages = [token for index in chosen for token in document[index]]
        turns.append(Turn(system + passages + drawn((seed, "question", n), question), output))
    scale = f"{requests} requests, chunks of {chunk} tokens at most (512), output {output}"
    return Workload("rag", _apart(turns), concurrency=8, scale=scale)


def poisson(
    lengths: Lengths, *, requests: int, rate: float, longest: int, name: str, seed: int = 0
) -> Workload:
    """Requests that share nothing, with exponential gaps; ``rate`` is a second, inf all at once."""
    rng = random.Random(seed)
    start = 0.0
    conversations = []
    for n in range(requests):
        prompt, output = lengths.draw(rng, longest=longest)
        conversations.append(Conversation([Turn(drawn((seed, name, n), prompt), output)], start))
        start += rng.expovariate(1.0) / rate
    scale = f"means {lengths.prompt:g} in, {lengths.output:g} out, at most {longest} each"
    return Workload(name, conversations, scale=scale)


def unshared(*, requests: int, prompt: int, output: int, seed: int = 0) -> Workload:
    """Prompts that have no token in common at their start."""
    turns = [
        # The first token says which prompt it is, so that not even chance makes two alike.
        Turn([VOCABULARY[n], *drawn((seed, "unshared", n), prompt - 1)], output)
        for n in range(requests)
    ]
    return Workload("unshared", _apart(turns), concurrency=8, scale=f"{prompt} in, {output} out")


def renamed(workload: Workload, seed: object) -> Workload:
    """The same workload in other token ids, so that no cache has any of it.

    The ids are exchanged for each other, drawn from ``seed``: what prompts share stays the same.
    """
    ids = sorted({token for turn in workload.turns for token in turn.prompt}.union(VOCABULARY))
    other = dict(zip(ids, random.Random(repr(seed)).sample(ids, len(ids)), strict=True))
    conversations = [
        Conversation(
            [replace(turn, prompt=[other[t] for t in turn.prompt]) for turn in each.turns],
            each.start,
        )
        for each in workload.conversations
    ]
    return replace(workload, conversations=conversations)


def arriving(workload: Workload, rate: float, seed: object) -> Workload:
    """Its conversations as a Poisson process of ``rate`` a second, with no limit in flight.

    The process is conditioned on as many arrivals as there are in ``count / rate`` seconds: those
    are uniform draws in order, so that a short run too has the rate that it says.
    """
    rng = random.Random(repr(seed))
    count = len(workload.conversations)
    moments = sorted(rng.uniform(0, count / rate) for _ in range(count))
    conversations = [
        replace(each, start=start)
        for each, start in zip(workload.conversations, moments, strict=True)
    ]
    return replace(workload, conversations=conversations, concurrency=0)


def _apart(turns: list[Turn]) -> list[Conversation]:
    return [Conversation([turn]) for turn in turns]


def _chunks(tokens: list[int], size: int) -> list[list[int]]:
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]


def _within(value: int, longest: int) -> int:
    return min(max(value, 1), longest)


def _common(left: bytes, right: bytes) -> int:
    """Tokens that both begin with; bisection over memcmp. O(tokens)."""
    low, high = 0, min(len(left), len(right)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[: middle * TOKEN_BYTES] == right[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
