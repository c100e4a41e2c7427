"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# As NumPy's and that of training.seed; torch's is larger.
LARGEST_SEED = 2**32 - 1
Model = Annotated[str, typer.Argument(help="Trained pipeline: a directory or an installed package")]
Models = Annotated[
    list[Path],
    typer.Argument(metavar="MODEL...", help="Trained pipelines: directories or installed packages"),
]
Text = Annotated[str, typer.Argument(help="Text, or - for one text per line of standard input")]
Component = Annotated[
    str | None,
    typer.Option("--component", "-c", help="Name of the component; all latent ones if not given"),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", help="Text of tokens that agreement with references leaves out"),
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=0, help="Read at most so many texts; 0: all")
]
Metrics = Annotated[
    Path | None, typer.Option("--metrics", help="Write the figures to this file, as JSON")
]
FiguresAsJson = Annotated[
    bool, typer.Option("--json", help="Print the figures as JSON, nothing else")
]
FindingsAsJson = Annotated[
    bool, typer.Option("--json", help="Print what is found as JSON, nothing else")
]
TextsAsJson = Annotated[bool, typer.Option("--json", help="One JSON object per text, nothing else")]
Html = Annotated[
    Path | None, typer.Option("--html", help="Write a page with the drawings to this file")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", "-t", min=0.0, max=1.0, help="Show all parts that are at least this probable"
    ),
]
Alternatives = Annotated[
    int,
    typer.Option("--alternatives", "-k", min=0, help="How many alternative structures to show"),
]
Code = Annotated[Path | None, typer.Option("--code", help="Python file to import")]
GpuId = Annotated[int, typer.Option("--gpu-id", "-g", help="GPU ID, or -1 for CPU")]
