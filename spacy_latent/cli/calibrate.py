"""Command ``spacy latent calibrate``: calibration of entities, nested spans and parses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.calibration_json import entities_to_json, parses_to_json
from spacy_latent.cli.calibration_results import (
    EntityResult,
    ParseResult,
    Request,
    calibrate_entities,
    calibrate_parses,
)
from spacy_latent.cli.calibration_tables import print_entities, print_parses
from spacy_latent.cli.messages import fail, failing, msg, warn
from spacy_latent.cli.options import Code, FiguresAsJson, GpuId, Limit, Model
from spacy_latent.cli.output import finished_first
from spacy_latent.cli.pipelines import load, prepare
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language

EXAMPLES = """
Examples:

  spacy latent calibrate training/model-best corpus/dev.spacy training/calibrated

  spacy latent calibrate training/model-best corpus/dev.spacy training/calibrated --coverage 0.9

  spacy latent calibrate training/model-best corpus/dev.spacy training/precise --precision 0.97

  spacy latent calibrate training/model-best corpus/dev.spacy training/precise --precision 0.97
--group-by article

  spacy latent calibrate training/model-best corpus/dev.spacy training/calibrated --test
corpus/test.spacy
"""


def calibrate_cli(
    model: Model,
    dev: str = typer.Argument(
        ...,
        help="Annotated texts that the pipeline was not trained on: .spacy, .jsonl, or the format "
        "of the config's reader",
    ),
    output: Path = typer.Argument(..., help="Directory to write the calibrated pipeline to"),
    component: str | None = typer.Option(
        None,
        "--component",
        "-c",
        help="Name of the crf_ner, tree_spancat or latent_parser; needed if there are several",
    ),
    coverage: float | None = typer.Option(
        None,
        "--coverage",
        help="Store sets of possible predictions. In this share of texts, the set of entities "
        "has all entities of the text. Sets of heads or nested spans have this share of those of "
        "a text",
    ),
    precision: float | None = typer.Option(
        None,
        "--precision",
        help="Set min_confidence to the lowest value with which entities or spans in other text "
        "have this precision, with the certainty of --confidence. For arcs, only print the value",
    ),
    sure: float | None = typer.Option(
        None,
        "--confidence",
        help="With --precision: probability that other text has the precision. Default: 0.9",
    ),
    point_estimate: bool = typer.Option(
        False,
        "--point-estimate",
        help="With --precision: set the lowest min_confidence with which the calibration texts "
        "have it. Other text has it in fewer than half of all cases",
    ),
    few: bool = typer.Option(
        False,
        "--few",
        help="With --precision: also accept a min_confidence that keeps fewer than 20 entities, "
        "or fewer than one in ten, or fewer than twice as many as would suffice if all were right",
    ),
    group_by: str | None = typer.Option(
        None,
        "--group-by",
        help="Name of the value that groups docs into documents: a key of doc.user_data, a custom "
        "attribute, or a key of a .jsonl line or its meta. --precision then assumes that "
        "documents are independent, instead of docs. Default: document",
    ),
    docs_per_document: int | None = typer.Option(
        None,
        "--docs-per-document",
        min=1,
        help="Group this many neighbouring docs into a document, if docs do not name their "
        "documents",
    ),
    biases: bool = typer.Option(
        False,
        "--biases",
        help="Also fit a bias for each label, if it improves the loss of held-out texts. The "
        "component may then find other entities",
    ),
    confidence: bool | None = typer.Option(
        None,
        "--slope/--no-slope",
        help="Fit a slope and shifts of the odds of entities, spans or arcs, or do not. Default: "
        "fit them if it improves the loss of held-out ones",
    ),
    test: str | None = typer.Option(
        None, "--test", help="Further annotated texts, to measure the calibration on"
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite the pipeline in OUTPUT"),
    limit: Limit = 0,
    as_json: FiguresAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Calibrate probabilities of entities, spans or parses, and write the calibrated pipeline.

    For entities and spans it fits a temperature, and a slope and shifts of their odds. For parses
    it fits temperatures of trees and of labels, and slopes and shifts of the odds of arcs and of
    whole trees. A fit is dropped if texts left out of it do not gain. Prints the precision at
    several thresholds of confidence, and the calibration by label.
    """
    import srsly

    from spacy_latent.analysis.figures import plain
    from spacy_latent.cli.corpus import read_examples, read_grouped
    from spacy_latent.evaluation.calibration_examples import ARCS, SPANS, kind_of

    refuse_to_overwrite(output, force)
    asked = Request(
        dev=dev,
        output=output,
        component=component,
        coverage=coverage,
        precision=precision,
        sure=sure,
        point_estimate=point_estimate,
        few=few,
        biases=biases,
        slope=confidence,
    )
    of_precision = {
        "--confidence": sure is not None,
        "--point-estimate": point_estimate,
        "--few": few,
        "--group-by": group_by is not None,
        "--docs-per-document": docs_per_document is not None,
    }
    with failing("The pipeline could not be calibrated", OSError):
        prepare(code, gpu_id)
        asked.check_numbers()
        nlp = load(model)
        examples = read_grouped(nlp, dev, limit, group_by, docs_per_document)
        further = read_examples(nlp, test, limit) if test is not None else []
        if test and Path(test).resolve() == Path(dev).resolve():
            warn(
                "--test has the same texts as the calibration, so its figures are too good. "
                "Give other texts"
            )
        kind = kind_of(nlp, component)
        # Also if a component is named: this refuses a pipeline without one to calibrate.
        first = first_component(nlp, kind)
        name = component or first
        pipe: Any = nlp.get_pipe(name)
        before = pipe.calibration
        if not as_json and before is not None:
            msg.info(
                f"{name} is already calibrated. This calibration is replaced, and the figures "
                "named 'before' are without it."
            )
        if precision is None:
            refuse_options(of_precision, "needs --precision, which is not given.")
        if point_estimate and sure is not None:
            raise LatentError(
                "--confidence and --point-estimate exclude each other: a point estimate holds "
                "with no given confidence. Give one of them."
            )
        factory = {ARCS: "latent_parser", SPANS: "tree_spancat"}.get(kind)
        if factory:
            reason = f"is for entities, and this is a {factory}, which has no biases."
            refuse_options({"--biases": biases}, reason)
        found: ParseResult | EntityResult
        if kind == ARCS:
            found = calibrate_parses(nlp, name, asked, examples, further)
        else:
            found = calibrate_entities(nlp, kind, asked, examples, further)
        if as_json and found.refused:
            raise LatentError(found.refused)
        if not found.refused:
            save(nlp, output)
    if as_json:
        to_json: Any = parses_to_json if isinstance(found, ParseResult) else entities_to_json
        print(srsly.json_dumps(plain(to_json(found))))
    elif isinstance(found, ParseResult):
        print_parses(nlp, name, asked, found)
    else:
        print_entities(nlp, name, asked, found)
        if precision is None and pipe.calibration != before:
            warn_of_threshold(name, pipe.cfg["min_confidence"])


def warn_of_threshold(name: str, least: float) -> None:
    """Warn if the component has a min_confidence above 0, which was set for other confidences."""
    if least:
        msg.warn(
            f"min_confidence of {name} is {least:.3g}, which was set for the confidences before "
            "this calibration. The precision that it had is no longer guaranteed. Give "
            "--precision to set it again, or set it to 0."
        )


def first_component(nlp: Language, kind: str) -> str:
    """Return the name of the first component of this kind that can be calibrated."""
    from spacy_latent.evaluation.calibration_examples import ARCS, SPANS
    from spacy_latent.pipeline.calibrated_components import (
        entity_components,
        parse_components,
        span_components,
    )

    by_kind = {ARCS: parse_components, SPANS: span_components}
    known = by_kind.get(kind, entity_components)(nlp)
    if not known:
        raise LatentError(
            f"The pipeline has {', '.join(nlp.pipe_names) or 'no components'}, and none of "
            "these can be calibrated; expected a crf_ner, a tree_spancat or a latent_parser."
        )
    return known[0]


def save(nlp: Language, output: Path) -> None:
    """Write the pipeline; entries of the directory stay as they are until all is written."""
    from spacy_latent.distributed.directories import replace_entries

    replace_entries(output, nlp.to_disk, finished_first())


def refuse_options(given: dict[str, bool], reason: str) -> None:
    """Raise LatentError for the first option that is given."""
    for option, is_given in given.items():
        if is_given:
            raise LatentError(f"{option} {reason} Leave the option out.")


def refuse_to_overwrite(output: Path, force: bool) -> None:
    """Exit with an error if the output is a file, or holds files and --force does not allow it."""
    if output.exists() and not output.is_dir():
        fail(
            f"{output} exists and is a file",
            "OUTPUT is the directory of the calibrated pipeline. Give a directory, which need "
            "not exist.",
        )
    there = sorted(path.name for path in output.iterdir()) if output.is_dir() else []
    if there and not force:
        fail(f"{output} exists", "Give --force to overwrite it, or another name.")
    if there and "meta.json" not in there:
        more = ", ..." if len(there) > 3 else ""
        fail(
            f"{output} holds files that are no pipeline: {', '.join(there[:3])}{more}",
            "--force overwrites only pipelines. Give another directory.",
        )
