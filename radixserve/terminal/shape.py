"""How large a model is: told from its config.json, from options, or from both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError, ModelError
from radixserve.model import hub

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MOST = 10**9
FAMILY = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}
"""Model types whose parameters are those of Llama, but for biases and norms of queries and keys."""
OWN_WORDS = ("multi_query", "num_kv_heads", "attn_config")
"""Fields in which some configs say in their own way how many KV heads there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes as a config or options give them; None is not given."""

    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    intermediate_size: int | None = None

    def over(self, other: Sizes) -> Sizes:
        """These sizes, and those of ``other`` where there are none."""
        both = {name: (getattr(self, name), getattr(other, name)) for name in Sizes.__slots__}
        return Sizes(
            **{name: mine if mine is not None else its for name, (mine, its) in both.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a config says beyond sizes."""

    name: str = "a model of these sizes"
    family: str = "llama"
    tied: bool = False
    """The output matrix is the embedding matrix."""
    attention_bias: bool = False
    mlp_bias: bool = False
    max_model_len: int | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What memory and speed depend on."""

    layers: int
    heads: int | None
    kv_heads: int
    head_dim: int
    parameters: int | None
    counted: str
    """How the parameters are known."""


def read(model: str, context: int | None) -> tuple[Sizes, Details]:
    """What the config of ``model`` says: a file, a directory, or an id on the Hugging Face hub.

    Raises:
        ModelError: there is no such config, or the model cannot be served in ``context`` tokens.
        ConfigError: it does not say how long its context is.
    """
    from radixserve.model.compatibility import check_config  # slow to import
    from radixserve.model.loader import read_config

    config = read_config(_config_file(model))
    trained = getattr(config, "max_position_embeddings", None)
    if trained is not None and trained < 1:
        trained = None
    check_config(config, min(context, trained) if context and trained else context)
    if getattr(config, "kv_lora_rank", None):
        raise ModelError(f"{model} uses multi-head latent attention, which is not supported.")
    warnings = []
    if getattr(config, "quantization_config", None):
        warnings.append(
            "The config says that the weights are quantized; they are counted in the bits of "
            "--dtype. Give their real size with --weights-memory."
        )
    details = Details(
        name=model,
        family=config.model_type,
        tied=bool(config.tie_word_embeddings),
        attention_bias=bool(getattr(config, "attention_bias", False)),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        max_model_len=trained,
        warnings=warnings,
    )
    return _sizes(config), details


def shape(sizes: Sizes, details: Details, parameters: int | None = None) -> Shape:
    """The shape that ``sizes`` come to; ``parameters``, if given, are believed.

    Raises:
        ConfigError: sizes are missing, impossible, or do not go together.
    """
    for name in Sizes.__slots__:
        within(_option(name), getattr(sizes, name))
    layers, heads, hidden = sizes.layers, sizes.heads, sizes.hidden_size
    kv_heads = sizes.kv_heads if sizes.kv_heads is not None else heads
    head_dim = sizes.head_dim
    if head_dim is None and hidden is not None and heads is not None:
        if hidden % heads:
            raise ConfigError(
                f"--hidden-size {hidden} is not divisible by --heads {heads}: give --head-dim."
            )
        head_dim = hidden // heads
    needed = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    missing = ", ".join(option for option, value in needed.items() if value is None)
    if layers is None or kv_heads is None or head_dim is None:
        raise ConfigError(f"How large is the model? Name one that says it, or give {missing}.")
    if heads is not None and heads % kv_heads:
        raise ConfigError(f"--heads {heads} is not divisible by --kv-heads {kv_heads}.")
    counted = "as given"
    if parameters is None:
        full = Sizes(layers=layers, kv_heads=kv_heads, head_dim=head_dim).over(sizes)
        parameters, counted = count_parameters(full, details)
    return Shape(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=parameters,
        counted=counted,
    )


def count_parameters(sizes: Sizes, details: Details) -> tuple[int | None, str]:
    """The parameters of a model of Llama's family and how they come about; None if unknown.

    Counts embeddings (once if tied), attention with grouped KV heads, the gated MLP, the norms and
    the biases that Qwen2 always and others on request have.
    """
    layers, hidden, heads = sizes.layers, sizes.hidden_size, sizes.heads
    kv_heads, head_dim = sizes.kv_heads, sizes.head_dim
    vocab, inner = sizes.vocab_size, sizes.intermediate_size
    if details.family not in FAMILY or not (
        layers and hidden and heads and kv_heads and head_dim and vocab and inner
    ):
        return None, "unknown"
    matrices = 1 if details.tied else 2
    queries, keys = heads * head_dim, kv_heads * head_dim
    attention = 2 * hidden * (queries + keys)
    mlp = 3 * hidden * inner
    small = 2 * hidden
    if details.attention_bias or details.family == "qwen2":
        small += queries + 2 * keys
    if details.attention_bias:
        small += hidden
    if details.mlp_bias:
        small += 2 * inner + hidden
    if details.family == "qwen3":
        small += 2 * head_dim
    total = matrices * vocab * hidden + layers * (attention + mlp + small) + hidden
    tied = "tied" if details.tied else "untied"
    return total, (
        f"{matrices} · {vocab:,} · {hidden:,} embeddings ({tied}) + {layers} layers · "
        f"({attention:,} attention + {mlp:,} MLP + {small:,} norms and biases) + {hidden:,}"
    )


def within(option: str, value: int | None, most: int = MOST) -> None:
    """Refuse a number that is not in 1..``most``; None is not given.

    Raises:
        ConfigError: the number is outside.
    """
    if value is not None and not 1 <= value <= most:
        bound = "at least 1" if value < 1 else f"at most {most:,}"
        raise ConfigError(f"{option} must be {bound}, not {value}.")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _sizes(config: PreTrainedConfig) -> Sizes:
    def number(name: str) -> int | None:
        value = getattr(config, name, None)
        if value is None:
            return None
        if not isinstance(value, int):
            raise ModelError(f"{name} differs between layers, which is not supported.")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads, head_dim = number("num_key_value_heads"), number("head_dim")
    if kv_heads is None and any(getattr(config, word, None) for word in OWN_WORDS):
        # As many as heads would be a guess: let them be asked for.
        if head_dim is None and hidden and heads:
            head_dim = hidden // heads
        heads = None
    return Sizes(
        layers=number("num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=number("vocab_size"),
        intermediate_size=number("intermediate_size"),
    )


def _config_file(model: str) -> Path:
    """The file or directory that ``model`` names, or its config.json from the hub."""
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        raise ModelError(f"{model}: a plan needs a config.json, or sizes as options; not a GGUF.")
    try:
        there = path.exists()
    except OSError:  # a name that no file system takes
        there = False
    if there:
        return path
    if path.suffix == ".json" or not hub.HUB_ID.fullmatch(model):
        raise ModelError(f"{model}: there is no such file or directory.")
    return hub.config_file(model)
