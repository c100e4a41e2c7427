"""Names of the commands of ``spacy latent`` and ``spacy-latent``.

The script answers ``--help`` and invalid arguments before spaCy is imported, which takes seconds.
The modules of commands therefore import their dependencies when they run.
"""

from __future__ import annotations

import typer

from spacy_latent.cli.annotate import EXAMPLES as ANNOTATE_EXAMPLES
from spacy_latent.cli.annotate import annotate_cli
from spacy_latent.cli.calibrate import EXAMPLES as CALIBRATE_EXAMPLES
from spacy_latent.cli.calibrate import calibrate_cli
from spacy_latent.cli.control import EXAMPLES as CONTROL_EXAMPLES
from spacy_latent.cli.control import control_cli
from spacy_latent.cli.debug import EXAMPLES as DEBUG_EXAMPLES
from spacy_latent.cli.debug import debug_cli
from spacy_latent.cli.demo import EXAMPLES as DEMO_EXAMPLES
from spacy_latent.cli.demo import demo_cli
from spacy_latent.cli.evaluate import EVALUATIONS, evaluate_cli
from spacy_latent.cli.explain import EXAMPLES as EXPLAIN_EXAMPLES
from spacy_latent.cli.explain import explain_cli
from spacy_latent.cli.incomplete import EXAMPLES as INCOMPLETE_EXAMPLES
from spacy_latent.cli.incomplete import incomplete_cli
from spacy_latent.cli.init_config import EXAMPLES as INIT_EXAMPLES
from spacy_latent.cli.init_config import init_cli
from spacy_latent.cli.listops import generate_cli as generate_listops
from spacy_latent.cli.output import end_quickly
from spacy_latent.cli.render import render_cli
from spacy_latent.cli.report import EXAMPLES as REPORT_EXAMPLES
from spacy_latent.cli.report import report_cli
from spacy_latent.cli.serve import EXAMPLES as SERVE_EXAMPLES
from spacy_latent.cli.serve import serve_cli
from spacy_latent.cli.show import show_cli
from spacy_latent.cli.sources import EXAMPLES as SOURCES_EXAMPLES
from spacy_latent.cli.sources import sources_cli
from spacy_latent.cli.sweep import EXAMPLES as SWEEP_EXAMPLES
from spacy_latent.cli.sweep import sweep_cli
from spacy_latent.cli.warm_up import EXAMPLES as WARM_UP_EXAMPLES
from spacy_latent.cli.warm_up import warm_up_cli
from spacy_latent.corpora.standard_streams import CommandGroup

latent_cli = typer.Typer(
    name="latent",
    cls=CommandGroup,
    help="Commands for pipelines with a latent structure.",
    no_args_is_help=True,
)
latent_cli.callback()(end_quickly)
latent_cli.add_typer(evaluate_cli)
latent_cli.command("demo", epilog=DEMO_EXAMPLES)(demo_cli)
latent_cli.command("init", epilog=INIT_EXAMPLES)(init_cli)
latent_cli.command("show")(show_cli)
latent_cli.command("serve", epilog=SERVE_EXAMPLES)(serve_cli)
latent_cli.command("render")(render_cli)
latent_cli.command("explain", epilog=EXPLAIN_EXAMPLES)(explain_cli)
latent_cli.command("annotate", epilog=ANNOTATE_EXAMPLES)(annotate_cli)
latent_cli.command("report", epilog=REPORT_EXAMPLES)(report_cli)
latent_cli.command("sources", epilog=SOURCES_EXAMPLES)(sources_cli)
latent_cli.command("calibrate", epilog=CALIBRATE_EXAMPLES)(calibrate_cli)
latent_cli.command("incomplete", epilog=INCOMPLETE_EXAMPLES)(incomplete_cli)
latent_cli.command("warm-up", epilog=WARM_UP_EXAMPLES)(warm_up_cli)
# Unknown options of the command are settings of the config, as in 'spacy train'.
settings = {"allow_extra_args": True, "ignore_unknown_options": True}
latent_cli.command("control", epilog=CONTROL_EXAMPLES, context_settings=settings)(control_cli)
latent_cli.command("debug", epilog=DEBUG_EXAMPLES, context_settings=settings)(debug_cli)
latent_cli.command("sweep", epilog=SWEEP_EXAMPLES, context_settings=settings)(sweep_cli)
generate_cli = typer.Typer(name="generate", help="Generate corpora.", no_args_is_help=True)
# With a callback, typer requires the name of the only command.
generate_cli.callback()(lambda: None)
generate_cli.command("listops")(generate_listops)
latent_cli.add_typer(generate_cli)
# They stood here before the group was made, and go in the version after 0.1.
for name, evaluation, examples in EVALUATIONS:
    moved = f"use 'spacy latent evaluate {name}'"
    latent_cli.command(name, epilog=examples, hidden=True, deprecated=moved)(  # type: ignore[arg-type]
        evaluation
    )
