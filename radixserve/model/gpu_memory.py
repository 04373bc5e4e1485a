"""How many KV pages a GPU holds beside the weights and the largest step, and why so many."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from radixserve.attention.arrays import paged_batch
from radixserve.config import MOST_OF_A_GPU, EngineConfig
from radixserve.errors import ConfigError
from radixserve.model.device_sampler import Choices, Draw
from radixserve.model.execution import Executable
from radixserve.model.kv_storage import MOST_PAGES, KvGeometry, KvStorage
from radixserve.model.sampler import sample
from radixserve.model.scorer import Scoring
from radixserve.scheduling.plan import MAX_SCORED, Row, StepPlan
from radixserve.scheduling.sampling import MAX_LOGPROBS, SamplingParams
from radixserve.tokens import pack

log = logging.getLogger(__name__)

FEWEST_PAGES = 2
GIB = 1 << 30
DRIVER = 2 * GIB
"""More than a driver and a CUDA context hold: beyond it there is somebody else."""

DEAREST = SamplingParams(seed=0, top_p=0.5, logprobs=0, min_tokens=1, stop_token_ids=(0,))
"""The settings that take most memory to sample with."""

Step = Callable[[], object]


class DeviceMemory(Protocol):
    """What can be read of a GPU's memory. All in bytes."""

    name: str

    def whole(self) -> tuple[int, int]:
        """(free, total), whoever holds the rest."""

    def reserved(self) -> int:
        """What the allocator of this process holds."""

    def peak(self) -> int:
        """The most that ``reserved`` has been since ``trim``."""

    def trim(self) -> None:
        """Give back what the allocator holds and does not use, and begin a new ``peak``."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Who needs what of a GPU's memory, in bytes."""

    device: str
    total: int
    others: int
    """Held before this engine loaded anything: other processes, the driver, our CUDA context."""
    weights: int
    workspace: int
    """Of attention and libraries, inside the allocator and outside."""
    activations: int
    """The peak of the largest step above all that stays."""
    graphs: int

    @property
    def ours(self) -> int:
        """All that this engine needs before it has a KV page."""
        return self.weights + self.workspace + self.activations + self.graphs

    def left(self, utilization: float) -> int:
        """Bytes for KV pages if this engine takes ``utilization`` of the whole; may be below 0.

        What others hold takes nothing from that share as long as the GPU has enough for both.
        """
        share = int(self.total * utilization)
        there = int(self.total * MOST_OF_A_GPU) - self.others
        return min(share, there) - self.ours


def page_count(config: EngineConfig, geometry: KvGeometry, claims: Claims) -> int:
    """How many pages to allocate, the scratch page included.

    ``num_pages`` if it is set, else ``kv_memory`` is filled, else all that
    ``gpu_memory_utilization`` leaves, but at most ``MOST_PAGES``.

    Raises:
        ConfigError: that does not fit; the message says what to lower, and to how much.
    """
    page = geometry.token_bytes * config.page_size
    most = claims.left(MOST_OF_A_GPU) // page
    if config.num_pages is not None:
        pages, setting = config.num_pages, f"num_pages {config.num_pages}"
        lower = f"num_pages to {most}"
    elif config.kv_memory is not None:
        pages, setting = config.kv_memory // page, f"kv_memory {config.kv_memory}"
        lower = f"kv_memory to {most * page} bytes"
    else:
        pages = min(claims.left(config.gpu_memory_utilization) // page, MOST_PAGES)
        if pages < FEWEST_PAGES:
            raise ConfigError(_shortage(config, claims, page))
        return pages
    if pages < FEWEST_PAGES:
        raise ConfigError(
            f"{setting} does not hold {FEWEST_PAGES} KV pages of {config.page_size} tokens: give "
            f"it at least {FEWEST_PAGES * page} bytes, or make page_size smaller."
        )
    if most < FEWEST_PAGES:
        raise ConfigError(_shortage(config, claims, page))
    if pages > most:
        raise ConfigError(
            f"{setting} needs {_gib(pages * page)} of {claims.device}, which has "
            f"{_gib(most * page)} left for KV: lower {lower}. {_needs(config, claims)}"
        )
    return pages


def arithmetic(config: EngineConfig, geometry: KvGeometry, claims: Claims, pages: int) -> str:
    """One line that says where the memory goes."""
    tokens = (pages - 1) * config.page_size
    kv = pages * geometry.token_bytes * config.page_size
    total = f"{claims.device} has {_gib(claims.total)}"
    if config.num_pages is None and config.kv_memory is None:
        total += f", of which gpu_memory_utilization {config.gpu_memory_utilization} may be taken"
    return (
        f"{total}: {_needs(config, claims)}; {_gib(kv)} are {pages} KV pages of "
        f"{config.page_size} tokens, {tokens} in all"
    )


def _needs(config: EngineConfig, claims: Claims) -> str:
    step = f"{config.max_num_batched_tokens} tokens and {config.max_num_seqs} requests"
    return (
        f"weights take {_gib(claims.weights)}, a step of {step} {_gib(claims.activations)}, "
        f"workspace {_gib(claims.workspace)}, CUDA graphs {_gib(claims.graphs)}, and others hold "
        f"{_gib(claims.others)}"
    )


def _shortage(config: EngineConfig, claims: Claims, page: int) -> str:
    """Why there is no room for KV, and each single change that would make some."""
    needed = claims.ours + FEWEST_PAGES * page
    short = FEWEST_PAGES * page - claims.left(config.gpu_memory_utilization)
    ways = []
    utilization = math.ceil(100 * needed / claims.total) / 100
    if utilization <= MOST_OF_A_GPU and claims.left(utilization) >= FEWEST_PAGES * page:
        ways.append(f"raise gpu_memory_utilization to {utilization}")
    if claims.activations > short:
        share = (claims.activations - short) / claims.activations
        tokens = int(config.max_num_batched_tokens * share)
        if tokens >= config.max_num_seqs:
            ways.append(f"lower max_num_batched_tokens to {tokens}")
    if claims.graphs >= short:
        ways.append("set enforce_eager")
    if int(claims.total * config.gpu_memory_utilization) >= needed:
        ways.append(f"free {_gib(short)} of what others hold on this GPU (nvidia-smi names them)")
    if not ways:
        ways.append(f"serve a model whose weights are {_gib(short)} smaller, or take a larger GPU")
    return (
        f"{claims.device} ({_gib(claims.total)}, of which gpu_memory_utilization "
        f"{config.gpu_memory_utilization} may be taken) lacks {_gib(short)} for {FEWEST_PAGES} KV "
        f"pages: {_needs(config, claims)}. One of these helps: {'; '.join(ways)}."
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.1f} MiB"


class GpuSizing:
    """Measures what a model needs; made before anything of it is on the GPU."""

    def __init__(self, memory: DeviceMemory, config: EngineConfig):
        self._memory, self._config = memory, config
        self._others = self._outside()
        if self._others > DRIVER:
            log.warning(
                "others hold %s of %s: what they take later is not accounted for",
                _gib(self._others),
                memory.name,
            )

    def pages(self, geometry: KvGeometry, prepare: Callable[[], Step], graphs: int) -> int:
        """How many pages of ``geometry`` fit; see ``page_count``.

        ``prepare`` allocates what the largest step needs and stays, and returns that step;
        ``graphs`` is what CUDA graphs hold for good, in bytes, 0 where there are none.
        """
        claims = self.measure(prepare, graphs)
        pages = page_count(self._config, geometry, claims)
        log.info("%s", arithmetic(self._config, geometry, claims, pages))
        return pages

    def measure(self, prepare: Callable[[], Step], graphs: int) -> Claims:
        """Run the largest step once, and see what it takes."""
        memory = self._memory
        memory.trim()
        weights = memory.reserved()
        with self.explained(
            "the largest step",
            f"lower max_num_batched_tokens (now {self._config.max_num_batched_tokens}) or "
            f"max_num_seqs (now {self._config.max_num_seqs})",
        ):
            step = prepare()
            ready = memory.reserved()
            step()
        activations = memory.peak() - ready
        outside = max(self._outside() - self._others, 0)
        del step
        memory.trim()
        return Claims(
            device=memory.name,
            total=memory.whole()[1],
            others=self._others,
            weights=weights,
            workspace=ready - weights + outside,
            activations=activations,
            graphs=self._graphs(activations, graphs),
        )

    @contextmanager
    def explained(self, what: str, remedy: str) -> Iterator[None]:
        """Turns a GPU's running out of memory into a ConfigError that says what to do."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            free, total = self._memory.whole()
            raise ConfigError(
                f"{what} does not fit into {self._memory.name}: {_gib(free)} of {_gib(total)} were "
                f"free when it gave up, and others hold {_gib(self._others)}: {remedy}."
            ) from error

    def _outside(self) -> int:
        free, total = self._memory.whole()
        return total - free - self._memory.reserved()

    def _graphs(self, activations: int, held: int) -> int:
        """All graphs work in the memory of the largest, whose rows compute a token each."""
        if not held:
            return 0
        share = self._config.max_num_seqs / self._config.max_num_batched_tokens
        return int(activations * share) + held


class CudaMemory:
    """``DeviceMemory`` of a CUDA device."""

    def __init__(self, device: torch.device):
        self._device = device
        self.name = f"{torch.cuda.get_device_name(device)} ({device})"

    def whole(self) -> tuple[int, int]:
        """See ``DeviceMemory``."""
        return torch.cuda.mem_get_info(self._device)

    def reserved(self) -> int:
        """See ``DeviceMemory``."""
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        """See ``DeviceMemory``."""
        return torch.cuda.max_memory_reserved(self._device)

    def trim(self) -> None:
        """See ``DeviceMemory``."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)


def largest_step(config: EngineConfig, max_model_len: int) -> StepPlan:
    """A step of as many tokens, sampling rows and scored tokens as there can be, all of it on the
    scratch page."""
    rows = config.max_num_seqs
    tokens = min(config.max_num_batched_tokens, rows * max_model_len)
    whole, more = divmod(tokens, rows)
    plan = StepPlan(0, [_row(str(i), whole + (i < more), config.page_size) for i in range(rows)])
    left = MAX_SCORED
    for row in plan.rows:
        row.scores, row.rivals = range(min(left, row.count - 1)), MAX_LOGPROBS
        left -= len(row.scores)
    return plan


def _row(name: str, count: int, page_size: int) -> Row:
    tokens = pack([0] * count)
    pages = array("i", [0]) * -(-count // page_size)
    # A random row takes more memory to sample than a greedy one.
    return Row(name, tokens, 0, pages, SamplingParams(seed=0), tokens, count)


def rehearsal(
    model: Executable, config: EngineConfig, max_model_len: int, device: torch.device
) -> Callable[[], Step]:
    """``prepare`` of ``GpuSizing.pages`` for ``model``."""
    plan = largest_step(config, max_model_len)

    def prepare() -> Step:
        storage = KvStorage(model.geometry, FEWEST_PAGES, config.page_size, device)
        storage.kv.view(torch.uint8).zero_()  # of what is not a number nothing would be sampled
        logits = model.on(storage.kv)
        batch = paged_batch(plan, config.page_size)
        return lambda: _sample(logits(batch), plan, on_device=model.follows)

    return prepare


def _sample(computed: torch.Tensor, plan: StepPlan, *, on_device: bool) -> None:
    """In all ways that a step may, and score."""
    rows = plan.rows
    logits = computed[: len(rows)]
    scoring = Scoring(plan, logits.shape[-1])
    scoring.score(computed[len(rows) :], torch.from_numpy(scoring.targets).to(logits.device).long())
    sample(logits, rows, ())
    if on_device:
        draws = [Draw(at, row, DEAREST) for at, row in enumerate(rows)]
        choices = Choices(draws, logits.shape[-1], ())
        loaded = [torch.from_numpy(array).to(logits.device) for array in choices.arrays]
        choices.choose(logits, loaded)
