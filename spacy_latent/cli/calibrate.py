"""Command ``spacy latent calibrate``: calibration of entities, nested spans and parses."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer

from spacy_latent.cli.failure import fail
from spacy_latent.cli.messages import msg
from spacy_latent.cli.output import finished_first
from spacy_latent.cli.pipelines import load, use_gpu
from spacy_latent.errors import number_of, plural

if TYPE_CHECKING:
    from spacy.language import Language

    from spacy_latent.analysis.calibration import JudgedEntities, ThresholdResult
    from spacy_latent.analysis.precision_bound import PromisedThreshold
    from spacy_latent.evaluation.calibration_fit import Gain
    from spacy_latent.evaluation.entity_calibration import Calibrated
    from spacy_latent.evaluation.parse_calibration import CalibratedParses

# Number of texts from which on the promise of a precision was simulated.
CHECKED_TEXTS = 300
EXAMPLES = """
Examples:

  spacy latent calibrate training/model-best corpus/dev.spacy training/calibrated

  spacy latent calibrate training/model-best corpus/dev.spacy training/calibrated --coverage 0.9

  spacy latent calibrate training/model-best corpus/dev.spacy training/precise --precision 0.97

  spacy latent calibrate training/model-best corpus/dev.spacy training/calibrated --test
  corpus/test.spacy
"""


CALIBRATION_TEXTS, FURTHER_TEXTS = "the calibration texts", "the further texts"
# With a slope below this value, different entities have almost the same confidence.
FLAT = 0.5


def calibrate_cli(
    model: str = typer.Argument(..., help="Trained pipeline: a directory or an installed package"),
    dev: str = typer.Argument(
        ...,
        help="Annotated texts that it was not trained on: .spacy, .jsonl, what the config reads",
    ),
    output: Path = typer.Argument(..., help="Directory to write the calibrated pipeline to"),
    component: Optional[str] = typer.Option(  # noqa: UP045 (typer < 0.12 on Python 3.10)
        None,
        "--component",
        "-c",
        help="Name of the crf_ner, tree_spancat or latent_parser; may be left out where there is "
        "one of them",
    ),
    coverage: Optional[float] = typer.Option(  # noqa: UP045
        None,
        "--coverage",
        help="Store sets of possible entities, which hold all of a text's in this share of texts",
    ),
    precision: Optional[float] = typer.Option(  # noqa: UP045
        None,
        "--precision",
        min=0.0,
        max=1.0,
        help="Set min_confidence to the lowest at which entities or spans of other text have this "
        "precision, with the confidence of --confidence; for arcs print this probability",
    ),
    sure: Optional[float] = typer.Option(  # noqa: UP045
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
    biases: bool = typer.Option(
        False,
        "--biases",
        help="Let each label have a bias where held-out texts ask for them; other entities may be "
        "found then",
    ),
    confidence: Optional[bool] = typer.Option(  # noqa: UP045
        None,
        "--slope/--no-slope",
        help="A slope and shifts of the odds of entities or spans; by default where held-out ones "
        "ask for them",
    ),
    test: Optional[str] = typer.Option(  # noqa: UP045
        None, "--test", help="Further annotated texts, to measure on what calibration has not seen"
    ),
    force: bool = typer.Option(
        False, "--force", "-F", help="Overwrite the pipeline that is in OUTPUT"
    ),
    limit: int = typer.Option(0, "--limit", "-n", min=0, help="Read at most so many texts; 0: all"),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON, nothing else"),
    code: Optional[Path] = typer.Option(None, "--code", help="Python file to import"),  # noqa: UP045
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for CPU"),
) -> None:
    """Calibrate probabilities of entities, spans or parses, and write the calibrated pipeline.

    Fits a temperature, and for entities and nested spans also a slope and shifts of labels if the
    texts need them; for parses a temperature of trees and one of labels. A fit that does not gain
    on texts left out of it is not kept. Prints the precision above several confidences, and the
    calibration by label.
    """
    import srsly

    from spacy_latent.analysis.figures import plain
    from spacy_latent.cli.corpus import import_code, read_examples
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
        of_precision = {
            "--confidence": sure is not None,
            "--point-estimate": point_estimate,
            "--few": few,
        }
        nlp = load(model)
        examples = read_examples(nlp, dev, limit)
        further = read_examples(nlp, test, limit) if test else []
        held_out = None
        kind = kind_of(nlp, component)
        by_kind = {ARCS: parse_components, SPANS: span_components}
        name = component or by_kind.get(kind, entity_components)(nlp)[0]
        if not as_json and getattr(nlp.get_pipe(name), "calibration", None) is not None:
            msg.info(
                f"{name} is calibrated already. This calibration is replaced, and the figures "
                "before are of the component as it was trained."
            )
        of_entities = {"--coverage": coverage is not None, "--biases": biases}
        if precision is None:
            refuse_options(of_precision, "goes with --precision, which is not given.")
        asked = None if point_estimate else 0.9 if sure is None else sure
        if kind == ARCS:
            refuse_options(
                {**of_entities, "--slope": confidence is not None},
                "is for entities and spans, and this is a latent_parser. Its calibration is two "
                "temperatures, and no sets of arcs exist.",
            )
            parses = parse_calibration.calibrate(nlp, examples, name, progress=progress)
            others = parse_calibration.measure(nlp, further, name, progress) if further else {}
            chosen = {}
            if precision is not None:
                chosen = parse_calibration.precise_arcs(
                    parses, precision, confidence=asked, few=few
                )
            save(nlp, output)
            if as_json:
                print(srsly.json_dumps(plain(parses_to_json(parses, others, chosen))))
            else:
                print_parses(nlp, name, dev, parses, others, chosen, output)
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
    msg.divider(f"Dropping {several} of {texts} below a confidence")
    print_thresholds(shown, least)
    print_groups(shown, texts)
    if refused:
        fail(f"Nothing is saved: there is no threshold for a precision of {precision}", refused)
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


def print_parses(
    nlp: Language,
    name: str,
    dev: str,
    found: CalibratedParses,
    further: dict[str, JudgedEntities],
    chosen: dict[str, ThresholdResult],
    output: Path,
) -> None:
    """Print the calibration of a parser.

    Args:
        further: arcs of further texts by noun.
        chosen: thresholds for a precision by noun.
    """
    made, pipe = found.calibration, nlp.get_pipe(name)
    texts, arcs = number_of(made.docs, "text"), number_of(made.arcs, "arc")
    msg.divider(f"Calibration on {texts} with {arcs}")
    print_source(nlp, dev)
    missing = found.arcs.before.unannotated
    if missing:
        msg.text(f"{number_of(missing, 'further word')} left out: their head is not annotated")
    named = (("trees", found.arcs), ("labels", found.labelled))
    for of, fit in named:
        msg.text(f"temperature of {of} {fit.temperature:.3g}")
        print_error("Before", fit.before)
        print_error("On texts left out of the fit, in five folds", fit.crossed)
        print_gain(fit.gain, fit.kept)
    for judged in further.values():
        print_error("On the further texts", judged)
    shown = further.values() if further else [fit.after for _, fit in named]
    texts = FURTHER_TEXTS if further else CALIBRATION_TEXTS
    for judged in shown:
        msg.divider(f"{judged.noun.capitalize()}s of {texts} from a confidence on")
        print_thresholds(judged, chosen.get(judged.noun))
        print_groups(judged, texts)
    for _, fit in named if chosen else ():
        if fit.after.noun in chosen:
            print_least(chosen[fit.after.noun], fit.after, further.get(fit.after.noun))
        else:
            msg.warn(f"The texts do not support this precision of {plural(fit.after.noun)}.")
    if chosen:
        msg.info(
            "A parser drops no arc, so nothing is set. Select arcs by arc.probability; without "
            "labels it is that of arcs, with labels that of labelled arcs"
        )
    level = getattr(pipe, "cfg", {}).get("annotate")
    if level != "probabilities":
        msg.warn(
            f"annotate is {level!r}, so that docs hold no probabilities: set annotate = "
            f'"probabilities" in {output / "config.cfg"}'
        )
    msg.good(f"Saved to {output}")


def parses_to_json(
    found: CalibratedParses, further: dict[str, JudgedEntities], chosen: dict[str, ThresholdResult]
) -> dict[str, Any]:
    from spacy_latent.analysis.calibration import apply_threshold, entity_figures

    made: dict[str, Any] = {"calibration": found.calibration.to_dict()}
    for fit in (found.arcs, found.labelled):
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


def print_calibration(found: Calibrated) -> None:
    from spacy_latent.analysis.calibration import ENOUGH, in_digits

    made, noun = found.calibration, found.after.noun
    several = plural(noun)
    texts, entities = number_of(made.docs, "text"), number_of(made.entities, noun)
    msg.divider(f"Calibration on {texts} with {entities}")
    known = len(found.before.probabilities)
    if min(made.entities, known) < ENOUGH:
        msg.warn(
            f"There {'is' if made.entities == 1 else 'are'} only {entities} in the annotation, and "
            f"{number_of(known, noun)} found. What is fitted to fewer than {ENOUGH} may be "
            "worse than nothing on other text. Calibrate on more annotated text."
        )
    msg.text(f"temperature {made.temperature:.3g}")
    if made.biases:
        each = ", ".join(f"{label} {value:+.2f}" for label, value in made.biases.items())
        msg.text(f"biases of labels: {each}")
    # Without biases, no texts are left out of the fit.
    fitted = "calibrated" in found.losses
    for name, loss in found.losses.items():
        of = "the texts" if fitted or name == "as trained" else "texts left out of the fit"
        same = ", on the texts that it was fitted to" if name == "calibrated" else ""
        msg.text(f"mean loss of {of}, {name}: {loss:.4f}{same}")
    if (made.slope, made.shift) != (1.0, 0.0):
        msg.text(f"slope {made.slope:.3g} and shift {made.shift:+.2f} of the odds")
    if any(f"{abs(shift):.2f}" != "0.00" for shift in made.shifts.values()):
        each = ", ".join(f"{label} {value:+.2f}" for label, value in made.shifts.items())
        msg.text(f"shifts of labels: {each}")
    if made.slope < FLAT:
        msg.warn(
            f"The slope is below {FLAT}: odds that are 100 times those of another become "
            f"{100**made.slope:.1f} times. Confidences say how often entities that are found are "
            "right, and little about which. They are not fitted to other spans and labels, as in "
            "sets and alternatives: those of several labels of one span may add up to more than "
            "1. With --no-slope they stay the probabilities of the tagger."
        )
    if made.changes_odds and noun == "entity":
        msg.text(
            "weights of alternatives are not changed with the odds of entities: an entity may be "
            "less probable than an alternative that has it"
        )
    for name, loss in found.confidence_losses.items():
        msg.text(f"mean loss of {several} left out of the fit, {name}: {loss:.4f}")
    if made.least is not None and found.set_sizes:
        mean = sum(found.set_sizes) / len(found.set_sizes)
        msg.text(
            f"sets with coverage {made.coverage}: all spans with a probability of at least "
            f"{in_digits(made.least)}; {mean:.1f} in a text on average"
        )
    if found.unknown:
        label = "a label" if len(found.unknown) == 1 else "labels"
        msg.warn(
            f"{several.capitalize()} of the texts have {label} that the component was not trained "
            f"on: {', '.join(found.unknown)}. It cannot find them, so they count as missed. Call "
            "the labels as in training, or train with them."
        )
    if found.left_out:
        such = "has such a label, " if found.unknown else ""
        msg.warn(
            f"{number_of(found.left_out, 'text')} left out of the fit of temperature and biases: "
            f"no sequence of tags can be as annotated, because an entity {such}crosses the start "
            "of a sentence, or begins or ends with white space."
        )


def print_gain(gain: Gain, kept: bool) -> None:
    """Print the gain on texts left out of the fit, and whether the fit was kept."""
    said = (
        f"Texts left out of the fit gain {gain.mean:.4f} of the mean loss, with a standard error "
        f"of {gain.error:.4f}"
    )
    if kept and gain.is_sure:
        msg.text(said)
    elif kept:
        msg.warn(f"{said}. That is not more than the error; the fit is kept, as --slope asks.")
    else:
        msg.warn(
            f"{said}. That is not more than the error: the fit is not kept, and the probabilities "
            "stay as they were trained. More annotated text may show a gain."
        )


def print_source(nlp: Language, dev: str) -> None:
    """Print what the calibration texts were used for before, as far as the config tells it."""
    used = used_as(nlp, dev)
    page = "See 'Which texts' in docs/crf_ner.md."
    if used == "train_corpus":
        msg.warn(
            f"The pipeline was trained on {dev}, as its config says. On these texts it is much "
            f"better than on others, and nothing that is fitted to them holds elsewhere. {page}"
        )
    elif used == "dev_corpus":
        msg.warn(
            f"{dev} chose the checkpoint of the pipeline, as its config says. So the texts are not "
            f"independent of it: on other text, probabilities and precisions will be lower. {page}"
        )
    else:
        msg.text(
            "If these texts chose the checkpoint of the pipeline, they are not independent of it. "
            f"{page}"
        )


def used_as(nlp: Language, corpus: str) -> str:
    """Return the setting of training that names a corpus, empty if none does."""
    config = nlp.config.interpolate()
    for setting in ("train_corpus", "dev_corpus"):
        block: Any = config
        for part in str(config.get("training", {}).get(setting, "")).split("."):
            block = block.get(part, {}) if isinstance(block, dict) else {}
        path = block.get("path") if isinstance(block, dict) else None
        if isinstance(path, str) and Path(path).resolve() == Path(corpus).resolve():
            return setting
    return ""


def setting_of(found: JudgedEntities) -> str:
    """Return the name of the threshold of predictions."""
    from spacy_latent.analysis.arc_calibration import ARC, LABELLED_ARC

    return "a least probability" if found.noun in (ARC, LABELLED_ARC) else "min_confidence"


def print_promise(least: PromisedThreshold, fitted: JudgedEntities) -> None:
    """Print the promise of a threshold, what it rests on and what it costs."""
    from spacy_latent.analysis.calibration import in_digits, threshold_for

    if least.threshold:
        name = f"With {setting_of(fitted)} = {in_digits(least.threshold)}"
    else:
        name = f"Without a threshold, {setting_of(fitted)} = 0,"
    msg.info(
        f"{name} at least {100 * least.promised:g} % of the {plural(fitted.noun)} found in other "
        f"text are right, with a confidence of {100 * least.confidence:g} % (lower bound "
        f"{100 * least.bound:.1f} %)"
    )
    msg.text(
        "This assumes that the other texts are of the same source as these, that these were not "
        "used in training, and that texts are independent of each other; a text is a doc"
    )
    texts = len(set(fitted.texts))
    if texts < CHECKED_TEXTS:
        msg.warn(
            "Such promises were checked by simulation with "
            f"{CHECKED_TEXTS} texts or more, and there are {texts} with "
            f"{plural(fitted.noun)}. It holds less often if those of a text are "
            "right or wrong together."
        )
    if not least.threshold:
        return
    point = threshold_for(fitted, least.promised)
    estimate = ""
    if point is not None and point.threshold < least.threshold:
        estimate = f"; {percent(point.recall)} at the point estimate, which promises nothing"
    msg.text(
        f"It costs recall: {percent(least.recall)} with it, {percent(least.full_recall)} without "
        f"a threshold{estimate}"
    )


def print_least(
    least: ThresholdResult, fitted: JudgedEntities, further: JudgedEntities | None
) -> None:
    from spacy_latent.analysis.calibration import (
        FEW,
        apply_threshold,
        in_digits,
        in_words,
        keeps_few,
    )
    from spacy_latent.analysis.precision_bound import PromisedThreshold

    several = plural(fitted.noun)
    setting = setting_of(fitted)
    name = f"{setting} = {in_digits(least.threshold)}"
    cuts = [(least, fitted, CALIBRATION_TEXTS)]
    if further is not None:
        cuts.append((apply_threshold(further, least.threshold), further, FURTHER_TEXTS))
    if isinstance(least, PromisedThreshold):
        print_promise(least, fitted)
    elif not least.threshold:
        msg.info(
            f"All {several} of the calibration texts together have the precision that was asked "
            f"for, so {setting} is 0: none is dropped"
        )
    if not isinstance(least, PromisedThreshold):
        msg.info(
            "This is a point estimate: the precision is that of these texts, and other text has "
            "less in more than half of all cases. Without --point-estimate it holds with the "
            "confidence of --confidence."
        )
    for one, entities, texts in cuts:
        msg.info(f"{name} keeps {in_words(one, entities, texts)}")
    for one, entities, texts in cuts:
        if not least.threshold and one.kept < FEW:
            msg.warn(
                f"There {'is' if one.kept == 1 else 'are'} only "
                f"{number_of(one.kept, fitted.noun)} of {texts}, so their precision is "
                "hardly known. Calibrate on more text."
            )
        elif least.threshold and keeps_few(one, entities):
            msg.warn(
                f"{name} leaves few {several} of {texts}: {one.kept} of "
                f"{len(entities.probabilities)}. The pipeline will find little, and its precision "
                "is hardly known. Ask for a lower --precision, or calibrate on more text."
            )


def print_left_out(texts: str, found: JudgedEntities) -> None:
    """Print the number of entities on tokens without annotation, if there are any."""
    from spacy_latent.analysis.calibration import left_out_in_words

    said = left_out_in_words("the component", found)
    if said:
        msg.warn(f"{texts[0].upper()}{texts[1:]}: {said}")
    elif found.unannotated:
        were = "was" if found.unannotated == 1 else "were"
        told = f"{number_of(found.unannotated, found.noun)} found in {texts} {were} left out"
        msg.text(f"{told}: the annotation of their tokens is missing")


def print_error(title: str, found: JudgedEntities) -> None:
    from spacy_latent.analysis.calibration import error_by_chance, expected_calibration_error

    if not found.probabilities:
        msg.text(f"{title}: nothing found")
        return
    error = expected_calibration_error(found.probabilities, found.correct)
    chance, _ = error_by_chance(found.probabilities)
    msg.text(
        f"{title}: {number_of(len(found.probabilities), found.noun)}, expected calibration error "
        f"{100 * error:.1f} % ({100 * chance:.1f} % by chance alone)"
    )


def print_thresholds(found: JudgedEntities, chosen: ThresholdResult | None) -> None:
    from spacy_latent.analysis.calibration import THRESHOLDS, apply_threshold, in_digits

    thresholds = {*THRESHOLDS, *([chosen.threshold] if chosen else [])}
    rows = []
    for row in (apply_threshold(found, threshold) for threshold in sorted(thresholds)):
        interval = f"{percent(row.low)} to {percent(row.high)}" if row.kept else ""
        label = in_digits(row.threshold)
        values = (percent(row.precision), interval, percent(row.recall))
        rows.append((label, str(row.kept), *values))
    header = ("confidence", plural(found.noun), "precision", "95 % interval", "recall")
    msg.table(rows, header=header, aligns=("r", "r", "r", "l", "r"), divider=True)


def print_groups(found: JudgedEntities, texts: str) -> None:
    """Print the calibration by label, and by length if lengths are known."""
    from spacy_latent.analysis.calibration import FEW, by_label, by_length

    several = plural(found.noun)
    for what, groups in (("label", by_label(found)), ("length", by_length(found))):
        if len(groups) < 2:
            continue
        shown = [one for one in groups if one.count >= FEW]
        rows = [
            (
                one.name,
                str(one.count),
                percent(one.right),
                percent(one.said),
                percent(one.error),
                percent(one.chance),
            )
            for one in shown
        ]
        if not rows:
            continue
        msg.divider(f"{several.capitalize()} of {texts} by {what}")
        header = (what, several, "right", "confidence", "error", "by chance")
        msg.table(rows, header=header, aligns=("l", *"rrrrr"), divider=True)
        rest = sum(one.count for one in groups if one.count < FEW)
        if rest:
            msg.text(f"{number_of(rest, found.noun)} in groups of fewer than {FEW} left out")


def groups_to_json(found: JudgedEntities) -> dict[str, Any]:
    from spacy_latent.analysis.calibration import by_label, by_length

    made: dict[str, Any] = {"by_label": by_label(found)}
    lengths = by_length(found)
    return {**made, "by_length": lengths} if lengths else made


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else "–"


def to_json(found: Calibrated, least: ThresholdResult | None, held_out: Any) -> dict[str, Any]:
    from spacy_latent.analysis.calibration import apply_threshold, entity_figures

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
