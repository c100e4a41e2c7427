"""Commands ``spacy latent evaluate ...``: figures on trained pipelines, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from spacy_latent.cli import attachment, compare, pairs, rationale, scores, stats
from spacy_latent.corpora.standard_streams import CommandGroup

# Name, command and examples, in the order of the help.
EVALUATIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("scores", scores.scores_cli, scores.EXAMPLES),
    ("stats", stats.stats_cli, stats.EXAMPLES),
    ("attachment", attachment.main, attachment.EXAMPLES),
    ("rationale", rationale.main, rationale.EXAMPLES),
    ("pairs", pairs.main, pairs.EXAMPLES),
    ("compare", compare.main, compare.EXAMPLES),
)

evaluate_cli = typer.Typer(
    name="evaluate",
    cls=CommandGroup,
    help="Evaluate trained pipelines: scores, structures and controls.",
    no_args_is_help=True,
)
for name, evaluation, examples in EVALUATIONS:
    evaluate_cli.command(name, epilog=examples)(evaluation)
