"""Output of ``spacy latent calibrate``: fits, errors, thresholds and their promises."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.cli.failure import fail
from spacy_latent.cli.messages import msg
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
# A text with a larger share of the predictions is named.
LARGE = 0.2
CALIBRATION_TEXTS, FURTHER_TEXTS = "the calibration texts", "the further texts"
# With a slope below this value, different entities have almost the same confidence.
FLAT = 0.5


def print_parses(
    nlp: Language,
    name: str,
    dev: str,
    found: CalibratedParses,
    further: dict[str, JudgedEntities],
    chosen: dict[str, ThresholdResult],
    output: Path,
    refused: str = "",
) -> None:
    """Print the calibration of a parser.

    Args:
        further: arcs of further texts by noun.
        chosen: thresholds for a precision by noun.
        refused: why there is no threshold for the requested precision; the command then ends with
            this error after the figures.
    """
    made, pipe = found.calibration, nlp.get_pipe(name)
    texts, arcs = number_of(made.docs, "text"), number_of(made.arcs, "arc")
    msg.divider(f"Calibration on {texts} with {arcs}")
    print_source(nlp, dev)
    missing = found.arcs.before.unannotated
    if missing:
        msg.text(f"{number_of(missing, 'further word')} left out: their head is not annotated")
    missing = found.trees.before.unannotated
    if missing:
        msg.text(f"{number_of(missing, 'tree')} of sentences with such words left out")
    maps = [
        f"slope {fit.slope:.3g} and shift {fit.shift:+.2f} of the odds of {plural(fit.after.noun)}"
        for fit in (found.trees, found.labelled_trees)
    ]
    told = (
        f"temperature of trees {found.arcs.temperature:.3g}",
        f"temperature of labels {found.labelled.temperature:.3g}",
        *maps,
    )
    for said, fit in zip(told, found.fits):
        msg.text(said)
        print_error("Before", fit.before)
        print_error("On texts left out of the fit, in five folds", fit.crossed)
        print_gain(fit.gain, fit.kept)
    for judged in further.values():
        print_error("On the further texts", judged)
    shown = further.values() if further else [fit.after for fit in found.fits]
    texts = FURTHER_TEXTS if further else CALIBRATION_TEXTS
    for judged in shown:
        msg.divider(f"{judged.noun.capitalize()}s of {texts} from a confidence on")
        print_thresholds(judged, chosen.get(judged.noun))
        print_groups(judged, texts)
    if refused:
        fail("Nothing is saved: there is no threshold for this precision", refused)
    for fit in found.fits if chosen else ():
        if fit.after.noun in chosen:
            print_least(chosen[fit.after.noun], fit.after, further.get(fit.after.noun))
        else:
            msg.warn(f"The texts do not support this precision of {plural(fit.after.noun)}.")
    if chosen:
        msg.info(
            "A parser drops no arc, so nothing is set. Select arcs by their probability: that of "
            "arcs is in latent.arcs(), that of labelled arcs in latent.dependencies(). That of "
            "whole trees is whole_probability of latent.spans, and labelled_whole_probability"
        )
    level = getattr(pipe, "cfg", {}).get("annotate")
    if level != "probabilities":
        msg.warn(
            f"annotate is {level!r}, so that docs hold no probabilities: set annotate = "
            f'"probabilities" in {output / "config.cfg"}'
        )
    msg.good(f"Saved to {output}")


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
    if not kept and not math.isfinite(gain.error):
        msg.warn("The texts are too few to see a gain, and probabilities stay as they were trained")
        return
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
    """Return the setting of training that names a corpus, empty if none does.

    A pipeline in a folder "model-last" is the one at the end, which no corpus chose.
    """
    config = nlp.config.interpolate()
    chosen = nlp.path is None or Path(nlp.path).name != "model-last"
    for setting in ("train_corpus", "dev_corpus") if chosen else ("train_corpus",):
        block: Any = config
        for part in str(config.get("training", {}).get(setting, "")).split("."):
            block = block.get(part, {}) if isinstance(block, dict) else {}
        path = block.get("path") if isinstance(block, dict) else None
        if isinstance(path, str) and Path(path).resolve() == Path(corpus).resolve():
            return setting
    return ""


def setting_of(found: JudgedEntities) -> str:
    """Return the name of the threshold of predictions."""
    from spacy_latent.analysis.arc_calibration import OF_PARSES

    return "a least probability" if found.noun in OF_PARSES else "min_confidence"


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
    text, counted = ("document" if least.by_document else "text"), number_of(least.texts, "doc")
    assumed = (
        "This assumes that the other texts are of the same source as these, that these were not "
        f"used in training, and that {plural(text)} are independent of each other"
    )
    if least.by_document:
        counted = number_of(least.texts, text)
        msg.text(f"{assumed}; the bound counts {counted}")
    else:
        msg.text(
            f"{assumed}; a text is a doc, and the bound counts {counted}. Where docs are pieces "
            "of documents, say of which: --group-by, or --docs-per-document"
        )
    if least.texts < CHECKED_TEXTS:
        msg.warn(
            "Such promises were checked by simulation with "
            f"{CHECKED_TEXTS} {plural(text)} or more, and there are {least.texts} with "
            f"{plural(fitted.noun)}. It holds less often if those of a {text} are "
            "right or wrong together."
        )
    if least.largest > LARGE:
        msg.warn(
            f"One {text} has {percent(least.largest)} of the {plural(fitted.noun)}. If it is not "
            "like the others, neither is the bound. Add texts, or take some of its away."
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
        if not least.threshold and 0 < one.kept < FEW:
            msg.warn(
                f"There {'is' if one.kept == 1 else 'are'} only "
                f"{number_of(one.kept, fitted.noun)} of {texts}, so their precision is "
                "hardly known. Calibrate on more text."
            )
        elif not entities.probabilities:
            msg.warn(
                f"No {fitted.noun} of {texts} can be judged, so they tell nothing of {name}. Are "
                "they annotated with what the component finds?"
            )
        elif least.threshold and keeps_few(one, entities):
            msg.warn(
                f"{name} leaves few {several} of {texts}: {one.kept} of "
                f"{len(entities.probabilities)}. Little is left, and its precision "
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
        msg.text(f"{title}: none can be judged" if found.unannotated else f"{title}: none found")
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


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else "–"
