"""Command ``spacy latent evaluate compare``: scores of evaluations or pipelines, side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.figures import in_percent
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, FiguresAsJson, GpuId, Limit
from spacy_latent.cli.pipelines import is_installed, load, prepare, short_name
from spacy_latent.errors import is_number

if TYPE_CHECKING:
    from spacy_latent.analysis.figures import OtherScore, Score

SPEED = "speed"
# End of the names of scores that are no share, such as cats_mse of numbers from 1 to 5.
SQUARED_ERROR = "_mse"

EXAMPLES = """
Examples:

  spacy latent evaluate compare metrics/latent.json metrics/baseline.json

  spacy latent evaluate compare training/seed-0/model-best training/seed-1/model-best
--corpus corpus/dev.spacy
"""


def comparison_rows(metrics: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each plain score that every evaluation has.

    Scores are in percent. The speed is in words/s, and squared errors stand as they are.
    """
    rows = []
    for key, values in comparison(metrics).items():
        if key == SPEED:
            rows.append(("words/s", *(f"{value:,.0f}" for value in values)))
        elif key.endswith(SQUARED_ERROR):
            rows.append((key, *(f"{value:.4g}" for value in values)))
        else:
            rows.append((key, *map(in_percent, values)))
    return rows


def comparison(metrics: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the plain scores that every evaluation has, by name, with the speed last."""
    shared = [key for key in metrics[0] if all(is_number(m.get(key)) for m in metrics)]
    shared.sort(key=lambda key: (key == SPEED, key))
    return {key: [m[key] for m in metrics] for key in shared}


def missing_scores(metrics: list[dict[str, Any]]) -> list[str]:
    """Return the names of the plain scores that some evaluations have and others lack."""
    names = dict.fromkeys(key for each in metrics for key in each if is_number(each[key]))
    return [key for key in names if not all(is_number(each.get(key)) for each in metrics)]


def main(
    files: list[Path] = typer.Argument(
        ..., help="Evaluations, as 'spacy evaluate --output' writes them, or trained pipelines"
    ),
    corpus: str | None = typer.Option(None, "--corpus", help="Texts, needed to compare pipelines"),
    limit: Limit = 0,
    as_json: FiguresAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Compare the scores of several evaluations or pipelines.

    For pipelines, also prints the agreement of their latent structures, if they have some.
    """
    import srsly

    from spacy_latent.corpora.text_files import read_text

    paths = [str(path) for path in files]
    pipelines = [path.is_dir() or is_installed(path) for path in files]
    for path, known in zip(files, pipelines):
        if not known and not path.exists():
            fail(
                f"{path} does not exist",
                "Give files that 'spacy evaluate --output' wrote, directories of pipelines, or "
                "installed packages.",
            )
    if all(pipelines):
        _compare_pipelines(paths, corpus, limit, as_json, code, gpu_id)
        return
    if any(pipelines):
        other = paths[pipelines.index(False)]
        fail(
            "Give evaluations or pipelines, not both.",
            f"{other} is no pipeline. To compare pipelines on it, give --corpus {other}",
        )
    metrics = []
    with failing("The evaluations could not be read"):
        texts = [read_text(path) for path in files]
    for path, text in zip(files, texts):
        try:
            metrics.append(srsly.json_loads(text))
        except ValueError as error:
            fail(f"{path} is no JSON: {error}. Write it with 'spacy evaluate --output'.")
        if not isinstance(metrics[-1], dict):
            fail(f"{path} holds no scores. Write it with 'spacy evaluate --output'.")
    rows = comparison_rows(metrics)
    if not rows:
        fail(
            "The evaluations have no score in common",
            "Give evaluations by 'spacy evaluate --output' of pipelines for the same task.",
        )
    if as_json:
        print(srsly.json_dumps({"files": paths, "scores": comparison(metrics)}))
        return
    header = ("", *(short_name(path, paths).removesuffix(".json") for path in paths))
    msg.table(rows, header=header)
    if missed := missing_scores(metrics):
        msg.info(f"Left out, since not every evaluation has it: {', '.join(missed)}")


def _compare_pipelines(
    models: list[str], corpus: str | None, limit: int, as_json: bool, code: Path | None, gpu_id: int
) -> None:
    import srsly

    from spacy_latent.cli.corpus import read_counted
    from spacy_latent.cli.figures import print_remarks, to_json
    from spacy_latent.cli.progress import progress
    from spacy_latent.evaluation.assessment import assess

    if corpus is None:
        fail("No texts to compare the pipelines on. Give --corpus.")
    with failing("The pipelines could not be compared"):
        prepare(code, gpu_id)
        names = [short_name(model, models) for model in models]
        nlp = load(models[0])
        examples, left_out = read_counted(nlp, corpus, limit)
        assessment = assess(
            nlp,
            examples,
            others={name: load(model) for name, model in zip(names[1:], models[1:])},
            progress=progress,
        )
        assessment.figures.left_out = left_out
    if as_json:
        print(srsly.json_dumps({"models": names, **to_json(assessment)}))
        return
    print_remarks(assessment)
    figures = assessment.figures
    rows = [(names[0], name, *_row(found)) for name, found in figures.task.measures.items()]
    rows += [
        (model, name, *_row(found))
        for model, each in figures.others.items()
        for name, found in each.items()
    ]
    if rows:
        header = ("", "score", "value", "95 % interval", "behind the first")
        msg.table(rows, header=header, aligns="llrrr")
    for key, part in figures.components.items():
        others = part.others
        if others is None:
            continue
        msg.divider(f"Agreement on the {part.plural} of {key}, in percent")
        structured = [names[0], *others.names]
        table = [(name, *map(in_percent, row)) for name, row in zip(structured, others.matrix)]
        msg.table(table, header=("", *structured))
        if math.isfinite(others.chance):
            msg.text(f"Random {part.plural} agree on {in_percent(others.chance)} %.")


def _row(found: Score | OtherScore) -> tuple[str, ...]:
    from spacy_latent.analysis.figures import OtherScore

    behind = ""
    if isinstance(found, OtherScore):
        drop, low, high = map(in_percent, found.drop)
        behind = f"{drop} ({low} to {high})"
    interval = f"{in_percent(found.low)} to {in_percent(found.high)}"
    return in_percent(found.value), interval, behind
