"""The command ``radixserve``. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

import radixserve
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError, RadixServeError
from radixserve.terminal import options
from radixserve.terminal.chat import chat
from radixserve.terminal.doctor import doctor
from radixserve.terminal.lint import lint
from radixserve.terminal.plan import plan
from radixserve.terminal.probe import probe
from radixserve.terminal.simulate import simulate
from radixserve.terminal.tenants import commands as tenants_commands
from radixserve.terminal.verify import verify

if TYPE_CHECKING:
    from radixserve.engine.frontend import Frontend
    from radixserve.server.service import Settings

T = TypeVar("T")

DEFAULTS = EngineConfig()
WARNING = (
    "[bold yellow]Warning:[/] listening on {host} without authentication: whoever reaches this "
    "port can use the model, and can tell from the time of an answer what others have asked. "
    "Give --api-key or --tenants."
)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Why a system takes no more of what is written."""

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
    """The entry point: errors that are raised on purpose end in one line, without a traceback, and
    so does what cannot be written. Where nobody reads it any more, nothing is said."""
    try:
        app()
    except RadixServeError as error:
        say_why(str(error))
    except OSError as error:
        if error.errno not in FULL:
            raise
        say_why(f"{error.filename or 'The output'} cannot be written: {error.strerror}.")
    finally:
        give_up_output()
    sys.exit(1)


def say_why(message: str) -> None:
    """One line, if it can be written."""
    with contextlib.suppress(OSError):
        err.print(f"[bold red]Error:[/] {escape(message)}")


def give_up_output() -> None:
    """What could not be written is not tried again when the process ends."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


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
    model: options.Model = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    served_model_name: options.ServedModelName = None,
    log_level: options.LogLevel = "info",
    tokenizer: options.Tokenizer = None,
    load_format: options.LoadFormat = DEFAULTS.load_format,
    dtype: options.Dtype = DEFAULTS.dtype,
    device: options.Device = DEFAULTS.device,
    chat_template: options.ChatTemplate = None,
    threads: options.Threads = None,
    tensor_parallel_size: options.TensorParallelSize = DEFAULTS.tensor_parallel_size,
    quantization: options.Quantization = DEFAULTS.quantization,
    kv_cache_dtype: options.KvCacheDtype = DEFAULTS.kv_cache_dtype,
    attention_backend: options.AttentionBackend = DEFAULTS.attention_backend,
    no_cascade_attention: options.NoCascade = False,
    deterministic: options.Deterministic = False,
    seed: options.Seed = DEFAULTS.seed,
    max_model_len: options.MaxModelLen = None,
    kv_memory: options.KvMemory = None,
    kv_memory_share: options.KvMemoryShare = DEFAULTS.kv_memory_share,
    gpu_memory_utilization: options.GpuMemoryUtilization = DEFAULTS.gpu_memory_utilization,
    enforce_eager: options.EnforceEager = False,
    torch_compile: options.TorchCompile = False,
    num_pages: options.NumPages = None,
    page_size: options.PageSize = DEFAULTS.page_size,
    no_prefix_cache: options.NoPrefixCache = False,
    keep_share: options.KeepShare = DEFAULTS.keep_share,
    cache_policy: options.CachePolicy = DEFAULTS.cache_policy,
    max_num_seqs: options.MaxNumSeqs = 0,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 0,
    long_prefill_token_threshold: options.LongPrefill = DEFAULTS.long_prefill_token_threshold,
    scheduling_policy: options.SchedulingPolicy = DEFAULTS.scheduling_policy,
    max_passes: options.MaxPasses = DEFAULTS.max_passes,
    max_queue: options.MaxQueue = DEFAULTS.max_queue,
    queue_timeout: options.QueueTimeout = None,
    step_timeout: options.StepTimeout = DEFAULTS.step_timeout,
    drain_timeout: options.DrainTimeout = 30.0,
    files_dir: options.FilesDir = None,
    files_limit: options.FilesLimit = None,
    tool_call_parser: options.ToolCallParser = "auto",
    reasoning_parser: options.ReasoningParser = "auto",
    keep_reasoning: options.KeepReasoning = False,
    tenants_file: options.TenantsFile = None,
    api_keys: options.ApiKeys = None,
    audit_log: options.AuditLog = None,
    record_trace: options.RecordTrace = None,
    prefixes_file: options.PrefixesFile = None,
    metrics_compat: options.MetricsCompat = None,
    canonical: options.Canonical = "",
) -> None:
    """Serve a model over HTTP, as OpenAI's API.

    [bold]radixserve serve[/] starts the demo model on http://127.0.0.1:8000;
    [bold]radixserve serve Qwen/Qwen3-0.6B --kv-memory 4GiB[/] another one. Then:

    [dim]curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json'
    -d '{"messages": \\[{"role": "user", "content": "Hello"}]}'[/]

    Whether a prompt was reused stands in each answer, in
    usage.prompt_tokens_details.cached_tokens, and in sum at /metrics.
    """
    given = locals()
    from radixserve.server.service import FILES_LIMIT, Settings

    try:
        config = _picked(
            EngineConfig,
            given,
            cascade_attention=not no_cascade_attention,
            prefix_cache=not no_prefix_cache,
        )
        settings = _picked(
            Settings,
            given,
            priorities=config.scheduling_policy == "priority",
            files_limit=files_limit or FILES_LIMIT,
            api_keys=tuple(api_keys or ()),
        )
        run(config, settings, host, port, log_level)
    except (ConfigError, ModelError) as error:
        fail(str(error))


def _picked(kind: type[T], given: dict[str, Any], **others: Any) -> T:
    """The dataclass ``kind`` with what is ``given`` for its fields, and ``others``."""
    names = [each.name for each in fields(kind) if each.name in given]  # type: ignore[arg-type]
    return kind(**{name: given[name] for name in names} | others)


def run(config: EngineConfig, settings: Settings, host: str, port: int, log_level: str) -> None:
    """Load the model and serve it until somebody stops it.

    Raises:
        ConfigError: the settings or the file of tenants cannot work, or nobody can listen on
            ``host`` and ``port``.
        ModelError: the model cannot be served.
    """
    from radixserve.server.app import create_app
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
        application = create_app(
            make_frontend(config),
            settings=settings,
            tenants=tenants,
            audit=audit,
            recorder=recorder,
            prefixes=prefixes,
        )
        serve_until_stopped(application, listener, announce)


def make_frontend(config: EngineConfig) -> Frontend:
    from radixserve.engine.process.supervisor import SupervisedLLM

    return SupervisedLLM(config)


def announce(model: str, url: str) -> None:
    """Say that requests are served now, and how to send one."""
    message = '{"messages": [{"role": "user", "content": "Hello"}]}'
    out.print(f"\n[bold]radixserve {radixserve.__version__}[/] serves [bold]{escape(model)}[/]")
    out.print(f"  API      [bold]{url}/v1[/]")
    out.print(f"  pages    {url}/ (a chat), {url}/cache (the live tree)")
    out.print(f"  metrics  {url}/metrics")
    out.print("  try      ", end="")
    out.print(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{message}'",
        markup=False,
    )
    out.print("  Ctrl-C ends it.\n")


def fail(message: str) -> NoReturn:
    """End with one line that says why."""
    say_why(message)
    raise typer.Exit(1)
