"""Names of the commands of ``spacy latent`` and ``spacy-latent``.

The script answers ``--help`` and invalid arguments before spaCy is imported, which takes seconds.
The modules of commands therefore import their dependencies when they run.
"""

from __future__ import annotations

import typer

from spacy_latent.cli import (
    annotate,
    calibrate,
    control,
    debug,
    demo,
    explain,
    incomplete,
    init_config,
    listops,
    render,
    report,
    serve,
    show,
    sources,
    sweep,
    warm_up,
)
from spacy_latent.cli.evaluate import EVALUATIONS, evaluate_cli
from spacy_latent.cli.output import end_quickly
from spacy_latent.corpora.standard_streams import CommandGroup

latent_cli = typer.Typer(
    name="latent",
    cls=CommandGroup,
    help="Commands for pipelines with a latent structure.",
    no_args_is_help=True,
)
latent_cli.callback()(end_quickly)
latent_cli.add_typer(evaluate_cli)
latent_cli.command("demo", epilog=demo.EXAMPLES)(demo.demo_cli)
latent_cli.command("init", epilog=init_config.EXAMPLES)(init_config.init_cli)
latent_cli.command("show")(show.show_cli)
latent_cli.command("serve", epilog=serve.EXAMPLES)(serve.serve_cli)
latent_cli.command("render")(render.render_cli)
latent_cli.command("explain", epilog=explain.EXAMPLES)(explain.explain_cli)
latent_cli.command("annotate", epilog=annotate.EXAMPLES)(annotate.annotate_cli)
latent_cli.command("report", epilog=report.EXAMPLES)(report.report_cli)
latent_cli.command("sources", epilog=sources.EXAMPLES)(sources.sources_cli)
latent_cli.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate_cli)
latent_cli.command("incomplete", epilog=incomplete.EXAMPLES)(incomplete.incomplete_cli)
latent_cli.command("warm-up", epilog=warm_up.EXAMPLES)(warm_up.warm_up_cli)
# Unknown options of the command are settings of the config, as in 'spacy train'.
settings = {"allow_extra_args": True, "ignore_unknown_options": True}
latent_cli.command("control", epilog=control.EXAMPLES, context_settings=settings)(
    control.control_cli
)
latent_cli.command("debug", epilog=debug.EXAMPLES, context_settings=settings)(debug.debug_cli)
latent_cli.command("sweep", epilog=sweep.EXAMPLES, context_settings=settings)(sweep.sweep_cli)
generate_cli = typer.Typer(
    name="generate", cls=CommandGroup, help="Generate corpora.", no_args_is_help=True
)
# With a callback, typer requires the name of the only command.
generate_cli.callback()(lambda: None)
generate_cli.command("listops")(listops.generate_cli)
latent_cli.add_typer(generate_cli)
# They stood here before the group was made, and go in the version after 0.1.
for name, evaluation, examples in EVALUATIONS:
    moved = f"use 'spacy latent evaluate {name}'"
    latent_cli.command(name, epilog=examples, hidden=True, deprecated=moved)(  # type: ignore[arg-type]
        evaluation
    )
