"""Commands ``spacy latent evaluate ...``: figures on trained pipelines, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from spacy_latent.cli.attachment import EXAMPLES as ATTACHMENT_EXAMPLES
from spacy_latent.cli.attachment import main as attachment
from spacy_latent.cli.compare import EXAMPLES as COMPARE_EXAMPLES
from spacy_latent.cli.compare import main as compare
from spacy_latent.cli.pairs import EXAMPLES as PAIRS_EXAMPLES
from spacy_latent.cli.pairs import main as pairs
from spacy_latent.cli.rationale import EXAMPLES as RATIONALE_EXAMPLES
from spacy_latent.cli.rationale import main as rationale
from spacy_latent.cli.scores import EXAMPLES as SCORES_EXAMPLES
from spacy_latent.cli.scores import scores_cli
from spacy_latent.cli.stats import EXAMPLES as STATS_EXAMPLES
from spacy_latent.cli.stats import stats_cli

# Name, command and examples, in the order of the help.
EVALUATIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("scores", scores_cli, SCORES_EXAMPLES),
    ("stats", stats_cli, STATS_EXAMPLES),
    ("attachment", attachment, ATTACHMENT_EXAMPLES),
    ("rationale", rationale, RATIONALE_EXAMPLES),
    ("pairs", pairs, PAIRS_EXAMPLES),
    ("compare", compare, COMPARE_EXAMPLES),
)

evaluate_cli = typer.Typer(
    name="evaluate",
    help="Evaluate trained pipelines: scores, structures and controls.",
    no_args_is_help=True,
)
for name, evaluation, examples in EVALUATIONS:
    evaluate_cli.command(name, epilog=examples)(evaluation)
