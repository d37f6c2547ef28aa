"""The options that verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SessionOption = Annotated[
    Path | None,
    typer.Option("--session", "-s", help="Directory that keeps everything of a local session.", rich_help_panel="Where"),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="A store by URL instead: postgresql://… or sqlite:///…", rich_help_panel="Where"),
]
ArtifactsOption = Annotated[
    Path | None,
    typer.Option("--artifacts", help="Directory for artifacts, with --store.", rich_help_panel="Where"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, also for errors.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, its unique beginning or ending, or `last`.", show_default=False)
]
