"""Options of ``serve``, in the panels of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from radixserve import config
from radixserve.terminal.sizes import byte_size

MODEL, MEMORY, BATCH, SERVER = "Model", "Memory and cache", "Scheduling", "Server"


def option(panel: str, help: str, *names: str, **settings: Any) -> Any:
    """An option in its panel; without ``names`` it is called as its parameter."""
    return typer.Option(*names, rich_help_panel=panel, help=help, **settings)


Model = Annotated[
    str | None,
    typer.Argument(
        help="A directory, a GGUF file or a Hugging Face id. Without one: a small demo model."
    ),
]
Host = Annotated[str, option(SERVER, "Address to listen on.")]
Port = Annotated[int, option(SERVER, "Port to listen on.", min=0, max=65535)]
ServedModelName = Annotated[str | None, option(SERVER, "The name that clients use.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], option(SERVER, "info: one line a request.")
]
Tokenizer = Annotated[str | None, option(MODEL, "Where the tokenizer is, if not with the model.")]
LoadFormat = Annotated[config.LoadFormat, option(MODEL, "dummy: the geometry with random weights.")]
Dtype = Annotated[config.Dtype, option(MODEL, "auto: bfloat16 where the hardware has it.")]
Device = Annotated[config.Device, option(MODEL, "auto: a GPU if there is one.")]
ChatTemplate = Annotated[str | None, option(MODEL, "A Jinja file in place of the model's own.")]
Threads = Annotated[int | None, option(MODEL, "CPU threads.", show_default="one a core")]
TensorParallelSize = Annotated[
    int, option(MODEL, "GPUs that compute the model together. On a CPU: processes, for tests.")
]
Quantization = Annotated[config.Quantization, option(MODEL, "int8: weights in 8 bits, on a CPU.")]
KvCacheDtype = Annotated[
    config.KvDtype,
    option(
        MEMORY, "auto: the model's; the others keep KV in 8 bits, half the memory. On a GPU: fp8."
    ),
]
AttentionBackend = Annotated[
    config.Backend,
    option(
        MODEL, "auto: native kernels; native: those for attention alone; reference: plain torch."
    ),
]
NoCascade = Annotated[
    bool,
    option(
        MODEL, "Read a prefix that requests share once for each of them.", "--no-cascade-attention"
    ),
]
Deterministic = Annotated[
    bool,
    option(MODEL, "The same bits whatever is cached or in the batch. On a CPU.", "--deterministic"),
]
Seed = Annotated[int, option(MODEL, "For requests that bring no seed of their own.")]
MaxModelLen = Annotated[
    int | None, option(MEMORY, "Longest prompt plus answer, in tokens.", show_default="the model's")
]
KvMemory = Annotated[
    int | None,
    option(
        MEMORY,
        "Memory for KV pages: 4GiB, 500MB.",
        parser=byte_size,
        metavar="SIZE",
        show_default="a share of what is free",
    ),
]
KvMemoryShare = Annotated[float, option(MEMORY, "That share, unless --kv-memory says.")]
GpuMemoryUtilization = Annotated[
    float, option(MEMORY, "Share of a GPU's memory, weights and all, unless --kv-memory says.")
]
EnforceEager = Annotated[bool, option(MODEL, "No CUDA graphs.", "--enforce-eager")]
TorchCompile = Annotated[
    bool,
    option(
        MODEL,
        "Compile a model that runs through transformers: a start of minutes.",
        "--torch-compile",
    ),
]
NumPages = Annotated[int | None, option(MEMORY, "Pages, whatever they weigh.")]
PageSize = Annotated[int, option(MEMORY, "Tokens a page.")]
NoPrefixCache = Annotated[bool, option(MEMORY, "Reuse nothing.", "--no-prefix-cache")]
KeepShare = Annotated[
    float,
    option(
        MEMORY,
        "Part of its pages that a tenant may keep for a time (TTLs, marks), unless its "
        "cache.keep says.",
    ),
]
CachePolicy = Annotated[
    config.CachePolicy,
    option(
        MEMORY,
        "Who goes under pressure: what was used longest ago, or newcomers while what is "
        "there is likely to be used soon.",
    ),
]
MaxNumSeqs = Annotated[
    int, option(BATCH, "Requests that run at once.", show_default="64, on a GPU 256")
]
MaxNumBatchedTokens = Annotated[
    int, option(BATCH, "Tokens that one step computes.", show_default="512, on a GPU 8192")
]
LongPrefill = Annotated[
    int, option(BATCH, "Tokens that one prompt may take of a step; 0 is no limit.")
]
SchedulingPolicy = Annotated[
    config.Policy, option(BATCH, "fcfs, or priority: the lower number first.")
]
MaxPasses = Annotated[
    int,
    option(
        BATCH, "Later requests that may start before one because more is cached; 0: first come."
    ),
]
MaxQueue = Annotated[int, option(BATCH, "Requests that may wait; more get a 503.")]
QueueTimeout = Annotated[
    float | None,
    option(
        BATCH,
        "Seconds that a request may wait before it begins; then it gets a 504.",
        show_default="no limit",
    ),
]
StepTimeout = Annotated[
    float,
    option(
        SERVER, "Seconds without a sign of the engine, with work to do, until it is started anew."
    ),
]
DrainTimeout = Annotated[
    float,
    option(
        SERVER, "Seconds that running requests get to finish when the server is told to end.", min=0
    ),
]
FilesDir = Annotated[
    Path | None,
    option(
        SERVER,
        "Where /v1/files and /v1/batches keep what they are given.",
        show_default="none are taken",
    ),
]
FilesLimit = Annotated[
    int | None,
    option(
        SERVER,
        "Size of all files of a tenant, unless its limits say: 10GiB, 500MB.",
        parser=byte_size,
        metavar="SIZE",
        show_default="10GiB",
    ),
]
ToolCallParser = Annotated[
    str,
    option(
        MODEL,
        "How the model writes tool calls: auto asks its chat template, none leaves them text.",
        metavar="NAME",
    ),
]
ReasoningParser = Annotated[
    str, option(MODEL, "How the model marks reasoning: auto, none, or a name.", metavar="NAME")
]
KeepReasoning = Annotated[
    bool,
    option(
        MODEL,
        "Earlier answers stay in prompts as they were generated, with their reasoning.",
        "--keep-reasoning",
    ),
]
TenantsFile = Annotated[
    Path | None,
    option(
        SERVER,
        "TOML: who may use the server, how much, and with which keys (radixserve tenants).",
        "--tenants",
        metavar="FILE",
    ),
]
ApiKeys = Annotated[
    list[str] | None,
    option(
        SERVER,
        "A key that every request has to bring; may be given more than once.",
        "--api-key",
        metavar="KEY",
    ),
]
AuditLog = Annotated[
    Path | None,
    option(
        SERVER,
        "A JSON line for each request: who, what, how much. No prompt, no key.",
        metavar="FILE",
    ),
]
RecordTrace = Annotated[
    Path | None,
    option(
        SERVER,
        "Prompts as salted hashes of their blocks, for radixserve simulate. No text.",
        metavar="FILE",
    ),
]
PrefixesFile = Annotated[
    Path | None,
    option(
        SERVER,
        "JSON: what chats begin with, by name, computed and kept from the start on.",
        "--prefixes",
        metavar="FILE",
    ),
]
MetricsCompat = Annotated[
    Literal["vllm", "sglang"] | None,
    option(
        SERVER,
        "/metrics also under the names that dashboards and routers for this server read.",
        show_default="our own alone",
    ),
]
Canonical = Annotated[
    str,
    option(
        SERVER,
        "Bring prompts to one form, so that they are found again: tools (by name), json "
        "(keys in order), volatile (lines with the time or an id left out); commas between.",
        metavar="FORMS",
        show_default="as they are sent",
    ),
]
