"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="Trained pipeline: a directory or an installed package")]
Models = Annotated[
    list[Path],
    typer.Argument(metavar="MODEL...", help="Trained pipelines: directories or installed packages"),
]
Text = Annotated[str, typer.Argument(help="Text, or - for one text per line of standard input")]
Component = Annotated[
    str | None,
    typer.Option("--component", "-c", help="Name of the component. Default: all latent ones"),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        help="Token, such as a bracket, to leave out of the agreement with reference structures; "
        "may be repeated",
    ),
]
# NumPy has the same bound, and so has training.seed. torch admits larger ones.
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of everything random")
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=0, help="Number of texts to read at most; 0 for all")
]
Metrics = Annotated[
    Path | None, typer.Option("--metrics", help="Write the figures to this file, as JSON")
]
FiguresAsJson = Annotated[bool, typer.Option("--json", help="Print only the figures, as JSON")]
FindingsAsJson = Annotated[bool, typer.Option("--json", help="Print only the findings, as JSON")]
TextsAsJson = Annotated[
    bool, typer.Option("--json", help="Print only one JSON object for each text")
]
Html = Annotated[Path | None, typer.Option("--html", help="HTML file to write with the drawings")]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        "-t",
        min=0.0,
        max=1.0,
        help="Show every part with at least this probability, not only the best structure",
    ),
]
Alternatives = Annotated[
    int,
    typer.Option("--alternatives", "-k", min=0, help="Number of alternative structures to show"),
]
Code = Annotated[
    Path | None,
    typer.Option("--code", help="Python file with registered functions, to import first"),
]
GpuId = Annotated[int, typer.Option("--gpu-id", "-g", help="GPU ID, or -1 for CPU")]
