"""The command ``radixserve``. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

import radixserve
from radixserve.config import (
    Backend,
    Device,
    Dtype,
    EngineConfig,
    KvDtype,
    LoadFormat,
    Quantization,
)
from radixserve.errors import ConfigError, ModelError, RadixServeError
from radixserve.terminal.chat import chat
from radixserve.terminal.doctor import doctor
from radixserve.terminal.lint import lint
from radixserve.terminal.options import (
    MEMORY,
    MODEL,
    SERVER,
    ApiKeys,
    AuditLog,
    BatchedTokens,
    CachePolicy,
    Canonical,
    Deterministic,
    DrainTimeout,
    EnforceEager,
    FilesDir,
    FilesLimit,
    KeepReasoning,
    KeepShare,
    LongPrefill,
    MaxPasses,
    MaxQueue,
    MaxSeqs,
    MetricsCompat,
    NoCascade,
    NoPrefixCache,
    PrefixesFile,
    QueueTimeout,
    ReasoningParser,
    RecordTrace,
    SchedulingPolicy,
    StepTimeout,
    Tenants,
    TensorParallelSize,
    ToolCallParser,
    TorchCompile,
    option,
)
from radixserve.terminal.plan import plan
from radixserve.terminal.probe import probe
from radixserve.terminal.simulate import simulate
from radixserve.terminal.sizes import byte_size
from radixserve.terminal.tenants import commands as tenants_commands
from radixserve.terminal.verify import verify

if TYPE_CHECKING:
    from radixserve.engine.frontend import Frontend
    from radixserve.server.service import Settings

LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULTS = EngineConfig()
WARNING = (
    "[bold yellow]Warning:[/] listening on {host} without authentication: whoever reaches this "
    "port can use the model, and can tell from the time of an answer what others have asked. "
    "Give --api-key or --tenants."
)

app = typer.Typer(
    name="radixserve",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    help="A prefix-caching server for large language models.",
)
out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)


def main() -> None:
    """The entry point: errors that are raised on purpose end in one line, without a traceback."""
    try:
        app()
    except RadixServeError as error:
        err.print(f"[bold red]Error:[/] {escape(str(error))}")
        sys.exit(1)


def show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"radixserve {radixserve.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A prefix-caching server for large language models."""


app.command()(plan)
app.command()(chat)
app.command()(probe)
app.command()(doctor)
app.command()(verify)
app.command()(simulate)
app.command()(lint)
app.add_typer(tenants_commands, name="tenants")


@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A directory, a GGUF file or a Hugging Face id. Without one: a small demo model.",
        ),
    ] = None,
    host: Annotated[
        str, option("--host", panel=SERVER, help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", panel=SERVER, help="Port to listen on.", min=0, max=65535)
    ] = 8000,
    served_model_name: Annotated[
        str | None,
        option("--served-model-name", panel=SERVER, help="The name that clients use."),
    ] = None,
    log_level: Annotated[
        LogLevel, option("--log-level", panel=SERVER, help="info: one line a request.")
    ] = "info",
    tokenizer: Annotated[
        str | None,
        option("--tokenizer", panel=MODEL, help="Where the tokenizer is, if not with the model."),
    ] = None,
    load_format: Annotated[
        LoadFormat,
        option("--load-format", panel=MODEL, help="dummy: the geometry with random weights."),
    ] = DEFAULTS.load_format,
    dtype: Annotated[
        Dtype, option("--dtype", panel=MODEL, help="auto: bfloat16 where the hardware has it.")
    ] = DEFAULTS.dtype,
    device: Annotated[
        Device, option("--device", panel=MODEL, help="auto: a GPU if there is one.")
    ] = (DEFAULTS.device),
    chat_template: Annotated[
        str | None,
        option("--chat-template", panel=MODEL, help="A Jinja file in place of the model's own."),
    ] = None,
    threads: Annotated[
        int | None,
        option("--threads", panel=MODEL, help="CPU threads.", show_default="one a core"),
    ] = None,
    tensor_parallel_size: TensorParallelSize = DEFAULTS.tensor_parallel_size,
    quantization: Annotated[
        Quantization,
        option("--quantization", panel=MODEL, help="int8: weights in 8 bits, on a CPU."),
    ] = DEFAULTS.quantization,
    kv_cache_dtype: Annotated[
        KvDtype,
        option(
            "--kv-cache-dtype",
            panel=MEMORY,
            help="auto: the model's; the others keep KV in 8 bits, half the memory. On a GPU: fp8.",
        ),
    ] = DEFAULTS.kv_cache_dtype,
    attention_backend: Annotated[
        Backend,
        option(
            "--attention-backend",
            panel=MODEL,
            help="auto: native kernels; native: those for attention alone; reference: plain torch.",
        ),
    ] = DEFAULTS.attention_backend,
    no_cascade_attention: NoCascade = False,
    deterministic: Deterministic = False,
    seed: Annotated[
        int, option("--seed", panel=MODEL, help="For requests that bring no seed of their own.")
    ] = DEFAULTS.seed,
    max_model_len: Annotated[
        int | None,
        option(
            "--max-model-len",
            panel=MEMORY,
            help="Longest prompt plus answer, in tokens.",
            show_default="the model's",
        ),
    ] = None,
    kv_memory: Annotated[
        int | None,
        option(
            "--kv-memory",
            panel=MEMORY,
            help="Memory for KV pages: 4GiB, 500MB.",
            parser=byte_size,
            metavar="SIZE",
            show_default="a share of what is free",
        ),
    ] = None,
    kv_memory_share: Annotated[
        float,
        option("--kv-memory-share", panel=MEMORY, help="That share, unless --kv-memory says."),
    ] = DEFAULTS.kv_memory_share,
    gpu_memory_utilization: Annotated[
        float,
        option(
            "--gpu-memory-utilization",
            panel=MEMORY,
            help="Share of a GPU's memory, weights and all, unless --kv-memory says.",
        ),
    ] = DEFAULTS.gpu_memory_utilization,
    enforce_eager: EnforceEager = False,
    torch_compile: TorchCompile = False,
    num_pages: Annotated[
        int | None,
        option("--num-pages", panel=MEMORY, help="Pages, whatever they weigh."),
    ] = None,
    page_size: Annotated[
        int, option("--page-size", panel=MEMORY, help="Tokens a page.")
    ] = DEFAULTS.page_size,
    no_prefix_cache: NoPrefixCache = False,
    keep_share: KeepShare = DEFAULTS.keep_share,
    cache_policy: CachePolicy = DEFAULTS.cache_policy,
    max_num_seqs: MaxSeqs = 0,
    max_num_batched_tokens: BatchedTokens = 0,
    long_prefill_token_threshold: LongPrefill = DEFAULTS.long_prefill_token_threshold,
    scheduling_policy: SchedulingPolicy = DEFAULTS.scheduling_policy,
    max_passes: MaxPasses = DEFAULTS.max_passes,
    max_queue: MaxQueue = DEFAULTS.max_queue,
    queue_timeout: QueueTimeout = None,
    step_timeout: StepTimeout = DEFAULTS.step_timeout,
    drain_timeout: DrainTimeout = 30.0,
    files_dir: FilesDir = None,
    files_limit: FilesLimit = None,
    tool_call_parser: ToolCallParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    keep_reasoning: KeepReasoning = False,
    tenants: Tenants = None,
    api_key: ApiKeys = None,
    audit_log: AuditLog = None,
    record_trace: RecordTrace = None,
    prefixes: PrefixesFile = None,
    metrics_compat: MetricsCompat = None,
    canonical: Canonical = "",
) -> None:
    """Serve a model over HTTP, as OpenAI's API.

    [bold]radixserve serve[/] starts the demo model on http://127.0.0.1:8000;
    [bold]radixserve serve Qwen/Qwen3-0.6B --kv-memory 4GiB[/] another one. Then:

    [dim]curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json'
    -d '{"messages": \\[{"role": "user", "content": "Hello"}]}'[/]

    Whether a prompt was reused stands in each answer, in
    usage.prompt_tokens_details.cached_tokens, and in sum at /metrics.
    """
    from radixserve.server.service import FILES_LIMIT, Settings

    try:
        config = EngineConfig(
            model=model,
            tokenizer=tokenizer,
            served_model_name=served_model_name,
            load_format=load_format,
            dtype=dtype,
            device=device,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            attention_backend=attention_backend,
            cascade_attention=not no_cascade_attention,
            deterministic=deterministic,
            seed=seed,
            chat_template=chat_template,
            threads=threads,
            tensor_parallel_size=tensor_parallel_size,
            max_model_len=max_model_len,
            page_size=page_size,
            kv_memory=kv_memory,
            kv_memory_share=kv_memory_share,
            gpu_memory_utilization=gpu_memory_utilization,
            enforce_eager=enforce_eager,
            torch_compile=torch_compile,
            num_pages=num_pages,
            prefix_cache=not no_prefix_cache,
            keep_share=keep_share,
            cache_policy=cache_policy,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            long_prefill_token_threshold=long_prefill_token_threshold,
            scheduling_policy=scheduling_policy,
            max_passes=max_passes,
            max_queue=max_queue,
            queue_timeout=queue_timeout,
            step_timeout=step_timeout,
        )
        settings = Settings(
            max_queue=config.max_queue,
            priorities=config.scheduling_policy == "priority",
            drain_timeout=drain_timeout,
            files_dir=files_dir,
            files_limit=files_limit or FILES_LIMIT,
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
            keep_reasoning=keep_reasoning,
            tenants_file=tenants,
            api_keys=tuple(api_key or ()),
            audit_log=audit_log,
            record_trace=record_trace,
            prefixes_file=prefixes,
            metrics_compat=metrics_compat,
            canonical=canonical,
        )
        run(config, settings, host, port, log_level)
    except (ConfigError, ModelError) as error:
        fail(str(error))


def run(
    config: EngineConfig, settings: Settings, host: str, port: int, log_level: LogLevel
) -> None:
    """Load the model and serve it until somebody stops it.

    Raises:
        ConfigError: the settings or the file of tenants cannot work, or nobody can listen on
            ``host`` and ``port``.
        ModelError: the model cannot be served.
    """
    from radixserve.server.recording import Recorder
    from radixserve.server.run import (
        is_loopback,
        listen,
        prefixes_of,
        serve_until_stopped,
        tenants_of,
    )
    from radixserve.server.tenants.audit import Audit

    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s")
    logging.getLogger("radixserve").setLevel(log_level.upper())
    tenants = tenants_of(settings)
    prefixes = prefixes_of(settings, tenants)
    with Audit(settings.audit_log) as audit, Recorder(settings.record_trace) as recorder:
        listener = listen(host, port)
        if tenants.roster is None and not is_loopback(listener.getsockname()[0]):
            err.print(WARNING.format(host=host))
        frontend = make_frontend(config)
        serve_until_stopped(
            frontend, listener, settings, announce, tenants, audit, recorder, prefixes
        )


def make_frontend(config: EngineConfig) -> Frontend:
    from radixserve.engine.process.supervisor import SupervisedLLM

    return SupervisedLLM(config)


def announce(model: str, url: str) -> None:
    """Say that requests are served now, and how to send one."""
    message = '{"messages": [{"role": "user", "content": "Hello"}]}'
    out.print(f"\n[bold]radixserve {radixserve.__version__}[/] serves [bold]{escape(model)}[/]")
    out.print(f"  API      [bold]{url}/v1[/]")
    out.print(f"  metrics  {url}/metrics")
    out.print("  try      ", end="")
    out.print(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{message}'",
        markup=False,
    )
    out.print("  Ctrl-C ends it.\n")


def fail(message: str) -> NoReturn:
    """End with one line that says why."""
    err.print(f"[bold red]Error:[/] {escape(message)}")
    raise typer.Exit(1)
