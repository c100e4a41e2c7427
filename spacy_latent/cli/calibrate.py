"""Command ``spacy latent calibrate``: calibration of entities, nested spans and parses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.calibration_tables import (
    CALIBRATION_TEXTS,
    FURTHER_TEXTS,
    print_calibration,
    print_error,
    print_gain,
    print_groups,
    print_least,
    print_left_out,
    print_parses,
    print_source,
    print_thresholds,
)
from spacy_latent.cli.failure import fail
from spacy_latent.cli.messages import msg
from spacy_latent.cli.options import (
    CodeOption,
    FiguresAsJson,
    GpuOption,
    LimitOption,
    ModelArgument,
)
from spacy_latent.cli.output import finished_first
from spacy_latent.cli.pipelines import load, use_gpu
from spacy_latent.errors import number_of, plural

if TYPE_CHECKING:
    from spacy.language import Language

    from spacy_latent.analysis.calibration import JudgedEntities, ThresholdResult
    from spacy_latent.evaluation.entity_calibration import Calibrated
    from spacy_latent.evaluation.parse_calibration import CalibratedParses

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
    model: ModelArgument,
    dev: str = typer.Argument(
        ...,
        help="Annotated texts that it was not trained on: .spacy, .jsonl, what the config reads",
    ),
    output: Path = typer.Argument(..., help="Directory to write the calibrated pipeline to"),
    component: str | None = typer.Option(
        None,
        "--component",
        "-c",
        help="Name of the crf_ner, tree_spancat or latent_parser; may be left out where there is "
        "one of them",
    ),
    coverage: float | None = typer.Option(
        None,
        "--coverage",
        help="Store sets of possible entities, which hold all of a text's in this share of texts",
    ),
    precision: float | None = typer.Option(
        None,
        "--precision",
        help="Set min_confidence to the lowest at which entities or spans of other text have this "
        "precision, with the confidence of --confidence; for arcs print this probability",
    ),
    sure: float | None = typer.Option(
        None,
        "--confidence",
        help="With --precision: how sure it has to be that other text has the precision; 0.9 if "
        "left out",
    ),
    point_estimate: bool = typer.Option(
        False,
        "--point-estimate",
        help="With --precision: the lowest min_confidence at which these very texts have it; other "
        "text has it in fewer than half of all cases",
    ),
    few: bool = typer.Option(
        False,
        "--few",
        help="With --precision: set min_confidence even where it keeps fewer than 20 entities, "
        "fewer than one in ten, or fewer than twice as many as would do if all were right",
    ),
    group_by: str | None = typer.Option(
        None,
        "--group-by",
        help="Where each doc names the document that it is a piece of: a key of doc.user_data, a "
        "custom attribute, or a key of the lines of .jsonl or of their meta; 'document' if left "
        "out. A promised precision then counts documents as independent, not docs",
    ),
    docs_per_document: int | None = typer.Option(
        None,
        "--docs-per-document",
        min=1,
        help="Count runs of so many docs as the pieces of a document, where no doc names it",
    ),
    biases: bool = typer.Option(
        False,
        "--biases",
        help="Let each label have a bias where held-out texts ask for them; other entities may be "
        "found then",
    ),
    confidence: bool | None = typer.Option(
        None,
        "--slope/--no-slope",
        help="A slope and shifts of the odds of entities or spans; by default where held-out ones "
        "ask for them",
    ),
    test: str | None = typer.Option(
        None, "--test", help="Further annotated texts, to measure on what calibration has not seen"
    ),
    force: bool = typer.Option(
        False, "--force", "-F", help="Overwrite the pipeline that is in OUTPUT"
    ),
    limit: LimitOption = 0,
    as_json: FiguresAsJson = False,
    code: CodeOption = None,
    gpu_id: GpuOption = -1,
) -> None:
    """Calibrate probabilities of entities, spans or parses, and write the calibrated pipeline.

    Fits a temperature, and for entities and nested spans also a slope and shifts of labels if the
    texts need them; for parses a temperature of trees and one of labels, and a slope and a shift
    of whole trees. A fit that does not gain on texts left out of it is not kept. Prints the
    precision above several confidences, and the calibration by label.
    """
    import srsly

    from spacy_latent.analysis.figures import plain
    from spacy_latent.cli.corpus import import_code, read_examples, read_grouped
    from spacy_latent.cli.progress import progress
    from spacy_latent.errors import LatentError, PartlyAnnotated
    from spacy_latent.evaluation import entity_calibration as calibration
    from spacy_latent.evaluation import parse_calibration, span_calibration
    from spacy_latent.evaluation.calibration_examples import ARCS, SPANS, kind_of
    from spacy_latent.pipeline.learnt_calibration import (
        entity_components,
        parse_components,
        span_components,
    )

    refuse_to_overwrite(output, force)
    try:
        import_code(code)
        use_gpu(gpu_id)
        if coverage is not None and not 0 < coverage < 1:
            raise LatentError(f"--coverage is {coverage}; expected a number between 0 and 1.")
        if sure is not None and not 0 < sure < 1:
            raise LatentError(f"--confidence is {sure}; expected a number between 0 and 1.")
        if precision is not None:
            calibration.check_precision("--precision", precision, point_estimate)
        of_precision = {
            "--confidence": sure is not None,
            "--point-estimate": point_estimate,
            "--few": few,
            "--group-by": group_by is not None,
            "--docs-per-document": docs_per_document is not None,
        }
        nlp = load(model)
        examples = read_grouped(nlp, dev, limit, group_by, docs_per_document)
        further = read_examples(nlp, test, limit) if test else []
        held_out = None
        kind = kind_of(nlp, component)
        by_kind = {ARCS: parse_components, SPANS: span_components}
        known = by_kind.get(kind, entity_components)(nlp)
        if component is None and not known:
            raise LatentError(
                f"The pipeline has {', '.join(nlp.pipe_names) or 'no components'}, and none of "
                "these can be calibrated; expected a crf_ner, a tree_spancat or a latent_parser."
            )
        name = component or known[0]
        if not as_json and getattr(nlp.get_pipe(name), "calibration", None) is not None:
            msg.info(
                f"{name} is calibrated already. This calibration is replaced, and the figures "
                "before are of the component as it was trained."
            )
        of_entities = {"--coverage": coverage is not None, "--biases": biases}
        if precision is None:
            refuse_options(of_precision, "goes with --precision, which is not given.")
        if point_estimate and sure is not None:
            raise LatentError(
                "--confidence goes with a promise, and --point-estimate promises nothing; give one "
                "of them."
            )
        asked = None if point_estimate else 0.9 if sure is None else sure
        if kind == ARCS:
            refuse_options(
                {**of_entities, "--slope": confidence is not None},
                "is for entities and spans, and this is a latent_parser. Its calibration is two "
                "temperatures and two maps of whole trees, and no sets of arcs exist.",
            )
            parses = parse_calibration.calibrate(nlp, examples, name, progress=progress)
            others = parse_calibration.measure(nlp, further, name, progress) if further else {}
            chosen, refused = {}, ""
            if precision is not None:
                try:
                    chosen = parse_calibration.precise_arcs(
                        parses, precision, confidence=asked, few=few
                    )
                except LatentError as error:
                    if as_json:
                        raise
                    # The figures show which precision to ask for.
                    refused = str(error)
            if not refused:
                save(nlp, output)
            if as_json:
                print(srsly.json_dumps(plain(parses_to_json(parses, others, chosen))))
            else:
                print_parses(nlp, name, dev, parses, others, chosen, output, refused)
            return
        if kind == SPANS:
            refuse_options(
                of_entities,
                "is for entities, and this is a tree_spancat, which has neither sets nor biases.",
            )
        with warnings.catch_warnings():
            # This warning is printed with the figures.
            warnings.simplefilter("ignore", PartlyAnnotated)
            if kind == SPANS:
                found = span_calibration.calibrate(
                    nlp, examples, component, confidence=confidence, progress=progress
                )
            else:
                found = calibration.calibrate(
                    nlp,
                    examples,
                    component,
                    biases=biases,
                    confidence=confidence,
                    coverage=coverage,
                    progress=progress,
                )
            if further:
                own = span_calibration if kind == SPANS else calibration
                held_out = own.measure(nlp, further, component, progress)
            least, refused = None, ""
            if precision is not None:
                try:
                    least = calibration.set_precision(
                        nlp,
                        found,
                        precision,
                        component,
                        confidence=asked,
                        few=few,
                    )
                except LatentError as error:
                    # The figures show which precision to ask for.
                    refused = str(error)
        if as_json and refused:
            raise LatentError(refused)
        if not refused:
            save(nlp, output)
    except (LatentError, OSError) as error:
        fail("The pipeline could not be calibrated", str(error))
    if as_json:
        print(srsly.json_dumps(plain(to_json(found, least, held_out))))
        return
    print_calibration(found)
    print_source(nlp, dev)
    print_left_out(CALIBRATION_TEXTS, found.after)
    print_error("Before", found.before)
    print_error("On texts left out of the fit, in five folds", found.crossed)
    print_gain(found.gain, found.kept)
    if found.sets is not None:
        print_error("All spans of a text together, before", found.sets[0])
        print_error("All spans of a text together, with the temperature", found.sets[1])
    if held_out is not None:
        print_left_out(FURTHER_TEXTS, held_out.entities)
        print_error("On the further texts", held_out.entities)
        if held_out.covered is not None:
            share, count = held_out.covered
            msg.text(
                f"{100 * share:.1f} % of {number_of(count, 'further text')} with entities have all "
                f"in their set, which holds {held_out.set_size:.1f} spans on average"
            )
    texts = CALIBRATION_TEXTS if held_out is None else FURTHER_TEXTS
    shown = found.after if held_out is None else held_out.entities
    several = plural(shown.noun)
    if shown.probabilities:
        msg.divider(f"Dropping {several} of {texts} below a confidence")
        print_thresholds(shown, least)
        print_groups(shown, texts)
    if refused:
        advice = f"{refused} Without --precision the calibration is saved."
        fail(f"Nothing is saved: there is no threshold for a precision of {precision}", advice)
    known = [*entity_components(nlp), *span_components(nlp)]
    pipe: Any = nlp.get_pipe(component or known[0])
    if kind != SPANS and pipe.cfg["annotate"] != "probabilities":
        level, config = pipe.cfg["annotate"], output / "config.cfg"
        msg.warn(
            f"annotate is {level!r}, so that docs hold neither confidences nor sets: set "
            f'annotate = "probabilities" in {config}'
        )
    if least is not None:
        further_found = held_out.entities if held_out is not None else None
        print_least(least, found.after, further_found)
    msg.good(f"Saved to {output}")


def save(nlp: Language, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    with finished_first():
        nlp.to_disk(output)


def refuse_options(given: dict[str, bool], reason: str) -> None:
    """Raise LatentError for the first option that is given."""
    from spacy_latent.errors import LatentError

    for option, is_given in given.items():
        if is_given:
            raise LatentError(f"{option} {reason} Leave the option out.")


def parses_to_json(
    found: CalibratedParses, further: dict[str, JudgedEntities], chosen: dict[str, ThresholdResult]
) -> dict[str, Any]:
    from spacy_latent.analysis.calibration import apply_threshold, entity_figures

    made: dict[str, Any] = {"calibration": found.calibration.to_dict()}
    for fit in found.fits:
        made[fit.before.noun] = {
            "before": entity_figures(fit.before),
            "after": entity_figures(fit.after),
            "crossed": entity_figures(fit.crossed),
            "gain": {**vars(fit.gain), "kept": fit.kept},
            **groups_to_json(fit.after),
        }
    if further:
        made["test"] = {noun: entity_figures(judged) for noun, judged in further.items()}
        made["test_groups"] = {noun: groups_to_json(judged) for noun, judged in further.items()}
    if chosen:
        made["least_probability"] = {noun: vars(one) for noun, one in chosen.items()}
        made["test_least_probability"] = {
            noun: vars(apply_threshold(judged, chosen[noun].threshold))
            for noun, judged in further.items()
            if noun in chosen
        }
    return made


def refuse_to_overwrite(output: Path, force: bool) -> None:
    """Exit with an error if the output exists, before anything is loaded.

    An empty directory is accepted.
    """
    if output.exists() and not output.is_dir():
        fail(
            f"{output} exists and is a file",
            "OUTPUT is the directory that the calibrated pipeline is written to. Give the name of "
            "one, which need not be there yet.",
        )
    there = sorted(path.name for path in output.iterdir()) if output.is_dir() else []
    if there and not force:
        fail(f"{output} exists", "Give --force to overwrite it, or another name.")
    if there and "meta.json" not in there:
        more = ", ..." if len(there) > 3 else ""
        fail(
            f"{output} holds files and no pipeline: {', '.join(there[:3])}{more}",
            "--force overwrites a pipeline, and not what else may have the names of its files. "
            "Give the name of another directory.",
        )


def groups_to_json(found: JudgedEntities) -> dict[str, Any]:
    from spacy_latent.analysis.calibration import by_label, by_length

    made: dict[str, Any] = {"by_label": by_label(found)}
    lengths = by_length(found)
    return {**made, "by_length": lengths} if lengths else made


def to_json(found: Calibrated, least: ThresholdResult | None, held_out: Any) -> dict[str, Any]:
    from spacy_latent.analysis.calibration import apply_threshold, by_length, entity_figures

    made: dict[str, Any] = {
        "calibration": found.calibration.to_dict(),
        "losses": {**found.losses, **found.confidence_losses},
        "before": entity_figures(found.before),
        "after": entity_figures(found.after),
        "crossed": entity_figures(found.crossed),
        "gain": {**vars(found.gain), "kept": found.kept},
        "left_out": found.left_out,
        **groups_to_json(found.after),
    }
    if found.sets is not None:
        made["sets"] = {
            name: {**vars(entity_figures(judged)), "by_length": by_length(judged)}
            for name, judged in zip(("before", "after"), found.sets)
        }
    if found.set_sizes:
        made["set_size"] = sum(found.set_sizes) / len(found.set_sizes)
    if least is not None:
        made["min_confidence"] = vars(least)
    if held_out is not None:
        made["test"] = entity_figures(held_out.entities)
        made["test_groups"] = groups_to_json(held_out.entities)
        if least is not None:
            made["test_min_confidence"] = vars(apply_threshold(held_out.entities, least.threshold))
        if held_out.covered is not None:
            made["test_coverage"], made["test_texts"] = held_out.covered
            made["test_set_size"] = held_out.set_size
    return made
