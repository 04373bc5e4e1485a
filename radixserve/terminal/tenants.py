"""``radixserve tenants``: who may use a server, in the file that it was started with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radixserve.errors import ConfigError, printable
from radixserve.terminal.sizes import byte_size

if TYPE_CHECKING:
    from radixserve.tenants.file import CacheShares

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Add tenants to the file of --tenants, give them keys, and see what they use.",
)
out = Console(highlight=False, soft_wrap=True)

File = Annotated[Path, typer.Option("--file", "-f", help="The file of tenants.")]
Name = Annotated[str, typer.Argument(help="The tenant's name.", show_default=False)]
DEFAULT_FILE = Path("tenants.toml")
RELOAD = "A running server takes it in on SIGHUP or POST /v1/admin/reload."


@commands.command()
def add(
    name: Name,
    file: File = DEFAULT_FILE,
    admin: Annotated[bool, typer.Option("--admin", help="May administrate.")] = False,
    priority: Annotated[
        Literal["high", "normal", "low"] | None, typer.Option(help="The best that it may ask for.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Its part of the work beside others.")
    ] = None,
    public_prefixes: Annotated[
        bool, typer.Option("--public-prefixes", help="May declare prefixes that all share.")
    ] = False,
    requests_per_minute: Annotated[int | None, typer.Option(help="Requests a minute.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Tokens a minute.")] = None,
    concurrent_requests: Annotated[int | None, typer.Option(help="Requests at once.")] = None,
    stored: Annotated[
        int | None,
        typer.Option(help="Size of all its files: 500MB.", parser=byte_size, metavar="SIZE"),
    ] = None,
    guaranteed: Annotated[
        float | None, typer.Option(help="Share of the cache, 0 to 1, that others never evict.")
    ] = None,
    maximum: Annotated[
        float | None, typer.Option(help="Share of the cache, 0 to 1, that it may fill.")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Share of what it may fill, 0 to 1, that it may keep for a time."),
    ] = None,
) -> None:
    """Add a tenant, and show its key, this once. The file is made if it is not there."""
    from radixserve.tenants.edit import editing
    from radixserve.tenants.keys import hash_of, new_key

    settings = _given(
        admin=admin or None,
        priority=priority,
        weight=weight,
        public_prefixes=public_prefixes or None,
        limits=_given(
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            concurrent_requests=concurrent_requests,
            stored_bytes=stored,
        ),
        cache=_given(guaranteed=guaranteed, maximum=maximum, keep=keep),
    )
    key = new_key()
    with editing(file, create=True) as edited:
        edited.add(name, settings, hash_of(key))
    _show_key(name, key)


@commands.command()
def rotate(
    name: Name,
    file: File = DEFAULT_FILE,
    keep: Annotated[
        bool, typer.Option("--keep", help="The keys that it has stay valid until they are revoked.")
    ] = False,
) -> None:
    """Give a tenant a new key, and show it, this once. Its other keys end."""
    from radixserve.tenants.edit import editing
    from radixserve.tenants.keys import hash_of, new_key

    key = new_key()
    with editing(file) as edited:
        edited.rotate(name, hash_of(key), keep=keep)
    _show_key(name, key)


@commands.command()
def revoke(
    name: Name,
    key: Annotated[
        str | None, typer.Argument(help="What `list` calls the key.", show_default=False)
    ] = None,
    file: File = DEFAULT_FILE,
    every: Annotated[bool, typer.Option("--all", help="All its keys.")] = False,
) -> None:
    """Take a key away from a tenant. Nothing else of it changes."""
    from radixserve.tenants.edit import editing

    if key is not None and every:
        raise ConfigError("Name one of the tenant's keys, or say --all, not both.")
    with editing(file) as edited:
        if key is None and not every:
            held = edited.keys_of(name)
            raise ConfigError(f"Say which key of {name} ({', '.join(held) or 'none'}), or --all.")
        left = edited.revoke(name, key)
    out.print(f"Revoked. {escape(name)} has {left} keys left. {RELOAD}")


@commands.command(name="list")
def list_(file: File = DEFAULT_FILE) -> None:
    """Show the tenants of the file."""
    from radixserve.tenants.file import FOR_TENANTS, read_tenants

    table = Table("tenant", "keys", "rights", "priority", "weight", "limits", "cache", box=None)
    for tenant in read_tenants(file).tenants.values():
        limits = tenant.limits
        shown = {
            "requests/min": limits.requests_per_minute,
            "tokens/min": limits.tokens_per_minute,
            "at once": limits.concurrent_requests,
            "bytes stored": limits.stored_bytes,
        }
        rights = ["usual" if tenant.endpoints == FOR_TENANTS else " ".join(tenant.endpoints)]
        rights += ["public prefixes"] * tenant.public_prefixes + ["admin"] * tenant.admin
        table.add_row(
            tenant.name,
            "\n".join(tenant.key_ids) or "none",
            ", ".join(rights),
            str(tenant.priority),
            f"{tenant.weight:g}",
            "\n".join(f"{value:,} {name}" for name, value in shown.items() if value) or "none",
            _cache(tenant.cache),
        )
    out.print(table)


@commands.command()
def usage(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="RADIXSERVE_API_KEY",
            help="The key of an administrator; others on the machine see a command line.",
        ),
    ] = None,
) -> None:
    """Show what the tenants of a running server have used since it started."""
    from radixserve.terminal.client import Client

    client = Client(url, api_key=api_key)
    try:
        rows: list[dict[str, Any]] = client.ask("admin/usage")["data"]
        table = Table("tenant", "requests", "refused", "running", box=None)
        for name in ("prompt", "cached", "completion", "left this minute"):
            table.add_column(name, justify="right")
        for row in rows:
            left = ", ".join(f"{value:,} {name}" for name, value in row["remaining"].items())
            tokens = [f"{row[f'{name}_tokens']:,}" for name in ("prompt", "cached", "completion")]
            refused = sum(row["refused"].values())
            table.add_row(
                printable(row["name"]) or "everybody",
                f"{row['requests']:,}",
                f"{refused:,}",
                f"{row['running']:,}",
                *tokens,
                left,
            )
    finally:
        client.close()
    out.print(table)


def _cache(shares: CacheShares) -> str:
    shown = f"{shares.guaranteed:.0%} to {shares.maximum:.0%}"
    return shown if shares.keep is None else f"{shown}\nkeeps {shares.keep:.0%} of that"


def _given(**settings: Any) -> dict[str, Any]:
    """Those that were."""
    return {name: value for name, value in settings.items() if value not in (None, {})}


def _show_key(name: str, key: str) -> None:
    out.print(
        f"The key of [bold]{escape(name)}[/], which is shown only now:\n\n  {key}\n\n{RELOAD}"
    )
