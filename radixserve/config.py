"""Every setting of an engine, validated in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from radixserve.errors import ConfigError

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Policy = Literal["fcfs", "priority"]
CachePolicy = Literal["lru", "adaptive"]
Device = Literal["auto", "cpu", "cuda"]
KvDtype = Literal["auto", "fp8", "fp8_e4m3", "int8"]
Quantization = Literal["none", "int8"]
Backend = Literal["auto", "native", "reference"]

CHOICES = {
    "load_format": get_args(LoadFormat),
    "dtype": get_args(Dtype),
    "device": get_args(Device),
    "kv_cache_dtype": get_args(KvDtype),
    "quantization": get_args(Quantization),
    "attention_backend": get_args(Backend),
    "scheduling_policy": get_args(Policy),
    "cache_policy": get_args(CachePolicy),
}

BY_DEVICE = {"max_num_seqs": (64, 256), "max_num_batched_tokens": (512, 8192)}
"""Defaults on a CPU and on a GPU."""
LARGEST_PAGE = 1024
MOST_OF_A_GPU = 0.98
"""Of its memory: what the driver takes as it goes has to fit into the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Sizes are in tokens unless the name says otherwise.

    Raises:
        ConfigError: a value, or two values together, cannot work; the message says what to change.
    """

    model: str | None = None
    """A directory, a GGUF file or a Hugging Face id; None is the demo model."""
    tokenizer: str | None = None
    """Where the tokenizer is, if not with the model."""
    served_model_name: str | None = None
    """The name that clients use; by default the last part of the model's path or id."""
    load_format: LoadFormat = "auto"
    dtype: Dtype = "auto"
    """auto: bfloat16 where the hardware has it, else float32."""
    device: Device = "auto"
    quantization: Quantization = "none"
    """int8: weights in 8 bits with a scale a column, in the native decoder."""
    kv_cache_dtype: KvDtype = "auto"
    """auto: that of the model; the others keep KV in 8 bits. On a CPU with a scale a token and
    head; on a GPU fp8 (which is fp8_e4m3) alone, with static scales a layer."""
    attention_backend: Backend = "auto"
    """auto: native kernels, for the whole decoder where they have its architecture; native: those
    for attention only; reference: plain torch."""
    cascade_attention: bool = True
    """Whether decoding requests that share a prefix read its KV once for all of them."""
    deterministic: bool = False
    """Whether a request gets the same bits whatever is cached, how its prompt is cut and what else
    is in the batch: fixed tiles and one order of every sum. The native kernels of a CPU have it."""
    seed: int = 0
    """Seeds dummy weights, and requests that bring no seed of their own."""
    chat_template: str | None = None
    """A Jinja file that replaces the model's own chat template."""
    threads: int | None = None
    """CPU threads for the model; None is one a core."""
    tensor_parallel_size: int = 1
    """GPUs that compute one model together, a process for each. On a CPU it is there for tests."""

    max_model_len: int | None = None
    """Longest prompt plus answer; None is what the model was made for."""
    page_size: int = 16
    kv_memory: int | None = None
    """Bytes for KV pages (on each GPU); None takes ``kv_memory_share`` of the memory that is free,
    or, on a GPU, what ``gpu_memory_utilization`` leaves."""
    kv_memory_share: float = 0.3
    gpu_memory_utilization: float = 0.90
    """The share of a GPU's whole memory that this engine takes, weights and all."""
    enforce_eager: bool = False
    """Whether a GPU is told of every kernel anew: no CUDA graphs."""
    torch_compile: bool = False
    """Whether a model that runs through transformers is compiled at start, except attention."""
    num_pages: int | None = None
    """Pages, whatever they weigh; overrides ``kv_memory``."""
    prefix_cache: bool = True
    keep_share: float = 0.5
    """Part of its pages that a tenant may keep for a time, unless its own terms say."""
    cache_policy: CachePolicy = "adaptive"
    """What goes under pressure. lru: what was used longest ago; adaptive: newcomers, as long as
    what they would push out is likely to be used soon."""

    max_num_seqs: int = 0
    """Requests that run at once; 0 is 64 on a CPU, 256 on a GPU."""
    max_num_batched_tokens: int = 0
    """Tokens that one step computes at most; 0 is 512 on a CPU, 8,192 on a GPU."""
    long_prefill_token_threshold: int = 0
    """Tokens that one prompt may take of a step; 0 is no limit."""
    scheduling_policy: Policy = "fcfs"
    max_passes: int = 64
    """Later requests of the same tenant that may start before a request because more of them is
    cached; 0 is strictly first come, first served."""
    max_queue: int = 1024
    """Requests that may wait; beyond it the server answers 503."""
    queue_timeout: float | None = None
    """Seconds that a request may wait for its first step; None is no limit."""
    step_timeout: float = 120.0
    """Seconds that a step may take before an engine in its own process counts as stuck: it is ended
    and started again."""

    by_device: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    """The settings that were left to the device."""

    def __post_init__(self) -> None:
        left = frozenset(name for name in BY_DEVICE if getattr(self, name) == 0)
        object.__setattr__(self, "by_device", left)
        for name in left:
            object.__setattr__(self, name, BY_DEVICE[name][self.device == "cuda"])
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}."
                )
        self._check_sizes()
        self._check_shares_and_times()

    def _check_sizes(self) -> None:
        _positive("page_size", self.page_size)
        if self.page_size > LARGEST_PAGE:
            raise ConfigError(f"page_size must be at most {LARGEST_PAGE}, not {self.page_size}.")
        _positive("tensor_parallel_size", self.tensor_parallel_size)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_queue"):
            _positive(name, getattr(self, name))
        for name in ("max_model_len", "kv_memory", "threads"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.num_pages is not None and self.num_pages < 2:
            raise ConfigError(
                f"num_pages must be at least 2 (page 0 is scratch), not {self.num_pages}."
            )
        for name in ("long_prefill_token_threshold", "max_passes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 (off) or more, not {getattr(self, name)}.")
        if self.torch_compile and self.tensor_parallel_size > 1:
            raise ConfigError(
                "torch_compile is for models that run through transformers, which several ranks do "
                "not: leave it out, or set tensor_parallel_size to 1."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running request needs one token a step."
            )

    def _check_shares_and_times(self) -> None:
        if not 0.0 < self.kv_memory_share <= 0.95:
            raise ConfigError(
                f"kv_memory_share must be above 0 and at most 0.95, not {self.kv_memory_share}."
            )
        if not 0.0 < self.gpu_memory_utilization <= MOST_OF_A_GPU:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most {MOST_OF_A_GPU}, "
                f"not {self.gpu_memory_utilization}."
            )
        if not 0.0 <= self.keep_share <= 1.0:
            raise ConfigError(f"keep_share must be from 0 to 1, not {self.keep_share}.")
        for name in ("queue_timeout", "step_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise ConfigError(f"{name} must be a number of seconds above 0, not {seconds}.")

    def chosen(self) -> dict[str, Any]:
        """The settings that were not left to the device, by name."""
        names = (each.name for each in fields(self) if each.init)
        return {name: getattr(self, name) for name in names if name not in self.by_device}

    def on(self, device: Device) -> EngineConfig:
        """These settings once it is known what ``auto`` means for the device."""
        return EngineConfig(**{**self.chosen(), "device": device})


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, not {value}.")
