"""Tensor parallelism: which share of each layer a rank computes, and how the shares come together.

Shoeybi et al., "Megatron-LM" (2019): heads and the MLP's inner units are split, and each half of a
layer ends in one sum over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedConfig

from radixserve.errors import ConfigError
from radixserve.model import family

PATIENCE = timedelta(minutes=5)
"""For a rank that is alive and does not answer; one that has ended is noticed at once."""


class LostPeerError(RuntimeError):
    """Another rank has gone or does not answer."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """This process among the ``size`` that compute one model together."""

    rank: int = 0
    size: int = 1
    device: torch.device | None = None
    """The device of this rank; None leaves it to the settings."""

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``partial``, which may be overwritten.

        Raises:
            LostPeerError: a rank has gone.
        """
        if self.size == 1 or not partial.numel():
            return partial
        # Half precision is the wire's on a GPU, where it is fast; a CPU has no such hurry.
        total = partial if partial.is_cuda else partial.float()
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            raise LostPeerError(str(error)) from error
        return total.to(partial.dtype)

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """The columns of all ranks' ``part``, equally many each, side by side.

        Raises:
            LostPeerError: a rank has gone.
        """
        if self.size == 1:
            return part
        if not len(part):
            return part.new_empty((0, self.size * part.shape[1]))
        parts = [torch.empty_like(part) for _ in range(self.size)]
        try:
            dist.all_gather(parts, part)
        except RuntimeError as error:
            raise LostPeerError(str(error)) from error
        return torch.cat(parts, -1)

    def smallest(self, value: int) -> int:
        """The smallest of all ranks' ``value``.

        Raises:
            LostPeerError: a rank has gone.
        """
        if self.size == 1:
            return value
        least = torch.tensor(value, device=self.device)
        try:
            dist.all_reduce(least, dist.ReduceOp.MIN)
            return int(least)
        except RuntimeError as error:
            raise LostPeerError(str(error)) from error

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of all ranks' ``values``, each element for itself; they are overwritten.

        Raises:
            LostPeerError: a rank has gone.
        """
        if self.size == 1:
            return values
        try:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        except RuntimeError as error:
            raise LostPeerError(str(error)) from error
        return values


ALONE = Parallel()


def check_process() -> None:
    """Refuse to form a group where there is one.

    Raises:
        ConfigError: this process is in a group of torch.distributed already.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process is in a group of torch.distributed already, maybe that of another engine "
            "with tensor_parallel_size above 1: start this one in a process of its own."
        )


def join(rank: int, size: int, store: Path, device: torch.device) -> Parallel:
    """Meet the other ranks, which are told the same file ``store``, not there yet.

    Raises:
        LostPeerError: a rank does not come.
    """
    cuda = device.type == "cuda"
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=store.absolute().as_uri(),
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
            device_id=device if cuda else None,
        )
    except RuntimeError as error:
        raise LostPeerError(str(error)) from error
    return Parallel(rank, size, device)


def abort() -> None:
    """Let every operation that waits for a rank fail, from any thread."""
    if dist.is_initialized() and dist.group.WORLD is not None:
        dist.group.WORLD.abort()


def leave() -> None:
    """End the group of this process, if it is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank computes of each layer, and of the vocabulary's logits."""

    heads: slice
    kv_heads: slice
    """Where there are more ranks than KV heads, several hold the same one."""
    inner: slice
    vocabulary: slice
    """Shorter, or empty, at the end: ``rows`` is what all ranks compute."""
    rows: int


def share(config: PreTrainedConfig, parallel: Parallel) -> Share:
    """The share of this rank; ``check_size`` has to have passed."""
    kv_heads, size, rank = config.num_key_value_heads, parallel.size, parallel.rank
    kv = (
        _part(kv_heads, parallel)
        if kv_heads >= size
        else slice(rank * kv_heads // size, rank * kv_heads // size + 1)
    )
    rows = -(-config.vocab_size // size)
    first = min(rank * rows, config.vocab_size)
    return Share(
        heads=_part(config.num_attention_heads, parallel),
        kv_heads=kv,
        inner=_part(config.intermediate_size, parallel),
        vocabulary=slice(first, min(first + rows, config.vocab_size)),
        rows=rows,
    )


def check_size(config: PreTrainedConfig, size: int) -> None:
    """Refuse a number of ranks that a model of ``config`` cannot be split over.

    Raises:
        ConfigError: radixserve's own decoder does not run the model; or ``size`` does not divide
            the heads or the inner size, or neither divides nor is a multiple of the KV heads.
    """
    unfit = family.unfit(config)
    if unfit is not None:
        raise ConfigError(
            f"tensor_parallel_size {size} needs radixserve's own decoder, which does not run this "
            f"model: {unfit}. Leave it at 1."
        )
    if _splits(config, size):
        return
    fitting = [n for n in range(1, config.num_attention_heads + 1) if _splits(config, n)]
    raise ConfigError(
        f"tensor_parallel_size {size} does not divide this model's {config.num_attention_heads} "
        f"heads, {config.num_key_value_heads} KV heads and {config.intermediate_size} inner "
        f"units evenly: choose one of {', '.join(map(str, fitting))}."
    )


def _splits(config: PreTrainedConfig, size: int) -> bool:
    kv_heads: int = config.num_key_value_heads
    odd = config.num_attention_heads % size or config.intermediate_size % size
    return not odd and (kv_heads % size == 0 or size % kv_heads == 0)


def _part(count: int, parallel: Parallel) -> slice:
    each = count // parallel.size
    return slice(parallel.rank * each, (parallel.rank + 1) * each)
