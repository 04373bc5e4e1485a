"""Options of ``serve``, in the panels of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from radixserve.terminal.sizes import byte_size

MODEL, MEMORY, BATCH, SERVER = "Model", "Memory and cache", "Scheduling", "Server"


def option(*names: str, panel: str, help: str, **settings: Any) -> Any:
    """An option in its panel."""
    return typer.Option(*names, rich_help_panel=panel, help=help, **settings)


StepTimeout = Annotated[
    float,
    option(
        "--step-timeout",
        panel=SERVER,
        help="Seconds without a sign of the engine, with work to do, until it is started anew.",
    ),
]
DrainTimeout = Annotated[
    float,
    option(
        "--drain-timeout",
        panel=SERVER,
        help="Seconds that running requests get to finish when the server is told to end.",
        min=0,
    ),
]
Tenants = Annotated[
    Path | None,
    option(
        "--tenants",
        panel=SERVER,
        help="TOML: who may use the server, how much, and with which keys (radixserve tenants).",
        metavar="FILE",
    ),
]
ApiKeys = Annotated[
    list[str] | None,
    option(
        "--api-key",
        panel=SERVER,
        help="A key that every request has to bring; may be given more than once.",
        metavar="KEY",
    ),
]
AuditLog = Annotated[
    Path | None,
    option(
        "--audit-log",
        panel=SERVER,
        help="A JSON line for each request: who, what, how much. No prompt, no key.",
        metavar="FILE",
    ),
]
RecordTrace = Annotated[
    Path | None,
    option(
        "--record-trace",
        panel=SERVER,
        help="Prompts as salted hashes of their blocks, for radixserve simulate. No text.",
        metavar="FILE",
    ),
]
CachePolicy = Annotated[
    Literal["lru", "adaptive"],
    option(
        "--cache-policy",
        panel=MEMORY,
        help="Who goes under pressure: what was used longest ago, or newcomers while what is there "
        "is likely to be used soon.",
    ),
]
SchedulingPolicy = Annotated[
    Literal["fcfs", "priority"],
    option("--scheduling-policy", panel=BATCH, help="fcfs, or priority: the lower number first."),
]
TorchCompile = Annotated[
    bool,
    option(
        "--torch-compile",
        panel=MODEL,
        help="Compile a model that runs through transformers: a start of minutes.",
    ),
]
MaxPasses = Annotated[
    int,
    option(
        "--max-passes",
        panel=BATCH,
        help="Later requests that may start before one because more is cached; 0: first come.",
    ),
]
MaxQueue = Annotated[
    int,
    option("--max-queue", panel=BATCH, help="Requests that may wait; more get a 503."),
]
QueueTimeout = Annotated[
    float | None,
    option(
        "--queue-timeout",
        panel=BATCH,
        help="Seconds that a request may wait before it begins; then it gets a 504.",
        show_default="no limit",
    ),
]
FilesDir = Annotated[
    Path | None,
    option(
        "--files-dir",
        panel=SERVER,
        help="Where /v1/files and /v1/batches keep what they are given.",
        show_default="none are taken",
    ),
]
LongPrefill = Annotated[
    int,
    option(
        "--long-prefill-token-threshold",
        panel=BATCH,
        help="Tokens that one prompt may take of a step; 0 is no limit.",
    ),
]
BatchedTokens = Annotated[
    int,
    option(
        "--max-num-batched-tokens",
        panel=BATCH,
        help="Tokens that one step computes.",
        show_default="512, on a GPU 8192",
    ),
]
FilesLimit = Annotated[
    int | None,
    option(
        "--files-limit",
        panel=SERVER,
        help="Size of all files of a tenant, unless its limits say: 10GiB, 500MB.",
        parser=byte_size,
        metavar="SIZE",
        show_default="10GiB",
    ),
]
Deterministic = Annotated[
    bool,
    option(
        "--deterministic",
        panel=MODEL,
        help="The same bits whatever is cached or in the batch. On a CPU.",
    ),
]
KeepReasoning = Annotated[
    bool,
    option(
        "--keep-reasoning",
        panel=MODEL,
        help="Earlier answers stay in prompts as they were generated, with their reasoning.",
    ),
]
ToolCallParser = Annotated[
    str,
    option(
        "--tool-call-parser",
        panel=MODEL,
        help="How the model writes tool calls: auto asks its chat template, none leaves them text.",
        metavar="NAME",
    ),
]
ReasoningParser = Annotated[
    str,
    option(
        "--reasoning-parser",
        panel=MODEL,
        help="How the model marks reasoning: auto, none, or a name.",
        metavar="NAME",
    ),
]
MetricsCompat = Annotated[
    Literal["vllm", "sglang"] | None,
    option(
        "--metrics-compat",
        panel=SERVER,
        help="/metrics also under the names that dashboards and routers for this server read.",
        show_default="our own alone",
    ),
]
Canonical = Annotated[
    str,
    option(
        "--canonical",
        panel=SERVER,
        help="Bring prompts to one form, so that they are found again: tools (by name), json (keys "
        "in order), volatile (lines with the time or an id left out); commas between.",
        metavar="FORMS",
        show_default="as they are sent",
    ),
]
TensorParallelSize = Annotated[
    int,
    option(
        "--tensor-parallel-size",
        panel=MODEL,
        help="GPUs that compute the model together. On a CPU: processes, for tests.",
    ),
]
MaxSeqs = Annotated[
    int,
    option(
        "--max-num-seqs",
        panel=BATCH,
        help="Requests that run at once.",
        show_default="64, on a GPU 256",
    ),
]
KeepShare = Annotated[
    float,
    option(
        "--keep-share",
        panel=MEMORY,
        help="Part of its pages that a tenant may keep for a time (TTLs, marks), unless its "
        "cache.keep says.",
    ),
]
NoCascade = Annotated[
    bool,
    option(
        "--no-cascade-attention",
        panel=MODEL,
        help="Read a prefix that requests share once for each of them.",
    ),
]
PrefixesFile = Annotated[
    Path | None,
    option(
        "--prefixes",
        panel=SERVER,
        help="JSON: what chats begin with, by name, computed and kept from the start on.",
        metavar="FILE",
    ),
]
EnforceEager = Annotated[bool, option("--enforce-eager", panel=MODEL, help="No CUDA graphs.")]
NoPrefixCache = Annotated[bool, option("--no-prefix-cache", panel=MEMORY, help="Reuse nothing.")]
