"""Command ``spacy latent report``: a page that assesses the learned structures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spacy_latent.cli.figures import print_confidence, print_remarks, print_verdicts, to_json
from spacy_latent.cli.messages import failing, msg
from spacy_latent.cli.options import Code, FiguresAsJson, GpuId, Ignore, Limit, Model, Seed
from spacy_latent.cli.output import check_output, write_page
from spacy_latent.cli.pipelines import best_pipeline, import_code, load, short_name, use_gpu
from spacy_latent.cli.progress import Stages
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language


EXAMPLES = """
Examples:

  spacy latent report training/model-best corpus/dev.spacy report.html

  spacy latent control configs/my.cfg --trees random --output training/control_random

  spacy latent report training/my/model-best corpus/dev.spacy report.html --control
training/control_random

  spacy latent report training/seed-0/model-best corpus/dev.spacy report.html --other
training/seed-1/model-best --control random=training/random-0,training/random-1

  spacy latent report training/model-best corpus/dev.spacy report.html --fail-trivial
"""


def report_cli(
    model: Model,
    corpus: str = typer.Argument(
        ...,
        help="Texts to evaluate on: .spacy, .jsonl, .txt, the format of the config's reader, or - "
        "for standard input",
    ),
    output: Path = typer.Argument(..., help="HTML page to write"),
    component: str | None = typer.Option(
        None, "--component", "-c", help="Name of the component. Default: all"
    ),
    other: list[str] | None = typer.Option(
        None,
        "--other",
        "-o",
        help="Pipeline to compare structures with, such as one of another seed; may be repeated",
    ),
    control: list[str] | None = typer.Option(
        None,
        "--control",
        help="Pipeline of 'spacy latent control', or NAME=DIRECTORY,DIRECTORY for several seeds. "
        "The comparison shows whether the learned structure helps. May be repeated",
    ),
    training_log: Path | None = typer.Option(
        None,
        "--training-log",
        "-l",
        help="File with the printed table of 'spacy train', or with the JSON lines of its logger",
    ),
    ignore: Ignore = None,
    random: bool = typer.Option(
        True,
        "--random/--no-random",
        help="Also predict with random structures, to see whether predictions depend on the "
        "learned ones",
    ),
    limit: Limit = 0,
    seed: Seed = 0,
    as_json: FiguresAsJson = False,
    fail_trivial: bool = typer.Option(
        False, "--fail-trivial", help="Exit with code 2 if a structure looks trivial"
    ),
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Write an HTML page that evaluates the structures of a pipeline.

    The page shows whether the structures help, what they agree with, and whether they differ from
    trivial ones. It has drawings, and the calibration of entities.
    """
    import srsly

    from spacy_latent.analysis.training_log import read_training_log
    from spacy_latent.analysis.verdicts import trivial
    from spacy_latent.cli.corpus import read_counted
    from spacy_latent.evaluation.assessment import assess
    from spacy_latent.visualize.report import render_report

    check_output(output, corpus)
    with failing("The report could not be made", OSError):
        import_code(code)
        rows = read_training_log(training_log) if training_log else []
        use_gpu(gpu_id)
        stages = Stages()
        stages.begin(f"Loading {model}")
        nlp = load(model)
        others = {short_name(path, other or ()): load(path) for path in other or ()}
        stages.begin(f"Reading {corpus}")
        examples, left_out = read_counted(nlp, corpus, limit)
        assessment = assess(
            nlp,
            examples,
            component=component,
            others=others,
            controls=load_controls(control or ()),
            ignore=ignore or (),
            random=random,
            seed=seed,
            progress=stages,
        )
        assessment.figures.left_out = left_out
        stages.begin("Drawing the page")
        page = render_report(
            assessment, model=short_name(model), corpus=short_name(corpus), training=rows
        )
        write_page(output, page)
    if as_json:
        print(srsly.json_dumps(to_json(assessment)))
    else:
        print_remarks(assessment)
        print_verdicts(assessment)
        print_confidence(assessment)
        msg.good(f"Report saved to {output} ({len(page.encode('utf8')) / 1e6:.1f} MB)")
    if fail_trivial and any(trivial(found) for found in assessment.verdicts.values()):
        raise typer.Exit(2)


def load_controls(given: Iterable[str]) -> dict[str, list[Language]]:
    """Return control pipelines by the names of the controls.

    Args:
        given: For each control a directory, or several with commas between them, optionally after a
            name and =. A directory that 'spacy train' wrote stands for its best pipeline.
    """
    found: dict[str, list[Language]] = {}
    for entry in given:
        name, paths = "", entry
        if "=" in entry and not Path(entry).exists():
            name, paths = entry.split("=", 1)
        listed = [entry] if Path(entry).exists() else [path for path in paths.split(",") if path]
        if not listed:
            raise LatentError(
                f"--control {entry!r} names no directory; expected NAME=DIRECTORY,DIRECTORY."
            )
        name = name or short_name(listed[0])
        if name in found:
            raise LatentError(
                f"Two controls are called {name!r}. Give them names, as in --control "
                f"{name}-2={listed[0]}."
            )
        found[name] = [load(best_pipeline(path)) for path in listed]
    return found
