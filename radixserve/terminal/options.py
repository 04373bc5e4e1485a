"""Options of ``serve``, in the panels of its help."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
TorchCompile = Annotated[
    bool,
    option(
        "--torch-compile",
        panel=MODEL,
        help="Compile a model that runs through transformers: a start of minutes.",
    ),
]
