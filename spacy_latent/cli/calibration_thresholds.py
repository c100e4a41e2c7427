"""Thresholds of confidence that ``spacy latent calibrate`` prints, with their promises."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from spacy_latent.cli.figures import as_percent
from spacy_latent.cli.messages import msg
from spacy_latent.errors import number_of, plural

if TYPE_CHECKING:
    from spacy_latent.analysis.judged_entities import JudgedEntities
    from spacy_latent.analysis.precision_bound import PromisedThreshold
    from spacy_latent.analysis.thresholds import ThresholdResult

# Promises of a precision were checked by simulation with at least so many texts.
CHECKED_TEXTS = 300
# A text with a larger share of the predictions causes a warning.
LARGE = 0.2
CALIBRATION_TEXTS, FURTHER_TEXTS = "the calibration texts", "the further texts"


def setting_of(found: JudgedEntities) -> str:
    """Return the name of the threshold of predictions."""
    from spacy_latent.analysis.arc_calibration import OF_PARSES

    return "a least probability" if found.noun in OF_PARSES else "min_confidence"


def print_promise(least: PromisedThreshold, fitted: JudgedEntities) -> None:
    """Print the promise of a threshold, what it rests on and what it costs."""
    from spacy_latent.analysis.thresholds import in_digits, threshold_for

    if least.threshold:
        name = f"With {setting_of(fitted)} = {in_digits(least.threshold)}"
    else:
        name = f"Without a threshold, {setting_of(fitted)} = 0,"
    msg.info(
        f"{name} at least {100 * least.promised:g} % of the {plural(fitted.noun)} found in other "
        f"text are right, with a confidence of {100 * least.confidence:g} % (lower bound "
        f"{100 * least.bound:.1f} %)"
    )
    text = "document" if least.by_document else "text"
    assumed = (
        "This assumes that the other texts are of the same source as these, that these were not "
        f"used in training, and that {plural(text)} are independent of each other"
    )
    if least.by_document:
        msg.text(f"{assumed}; the bound counts {number_of(least.texts, text)}")
    else:
        msg.text(
            f"{assumed}; a text is a doc, and the bound counts {number_of(least.texts, 'doc')}. "
            "If docs are pieces of documents, give --group-by or --docs-per-document"
        )
    if least.texts < CHECKED_TEXTS:
        msg.warn(
            f"Such bounds were checked by simulation with {CHECKED_TEXTS} {plural(text)} or "
            f"more, and there are {least.texts} with {plural(fitted.noun)}. It holds less often "
            f"if predictions in one {text} are right or wrong together."
        )
    if least.largest > LARGE:
        msg.warn(
            f"One {text} has {as_percent(least.largest)} of the {plural(fitted.noun)}. If it "
            "differs from other text, so does the precision. Add texts, or remove a part of "
            "this one."
        )
    if not least.threshold:
        return
    point = threshold_for(fitted, least.promised)
    estimate = ""
    if point is not None and point.threshold < least.threshold:
        estimate = f"; {as_percent(point.recall)} at the point estimate, without this bound"
    msg.text(
        f"It costs recall: {as_percent(least.recall)} with it, {as_percent(least.full_recall)} "
        f"without a threshold{estimate}"
    )


def print_least(
    least: ThresholdResult, fitted: JudgedEntities, further: JudgedEntities | None
) -> None:
    """Print the chosen threshold, the promise on its precision, and the number it keeps."""
    from spacy_latent.analysis.precision_bound import PromisedThreshold
    from spacy_latent.analysis.thresholds import (
        FEW,
        apply_threshold,
        in_digits,
        in_words,
        keeps_few,
    )

    several = plural(fitted.noun)
    setting = setting_of(fitted)
    name = f"{setting} = {in_digits(least.threshold)}"
    cuts = [(least, fitted, CALIBRATION_TEXTS)]
    if further is not None:
        cuts.append((apply_threshold(further, least.threshold), further, FURTHER_TEXTS))
    if isinstance(least, PromisedThreshold):
        print_promise(least, fitted)
    else:
        if not least.threshold:
            msg.info(
                f"All {several} of the calibration texts together have the requested precision, "
                f"so {setting} is 0: none is dropped"
            )
        msg.info(
            "This is a point estimate: these texts have the precision, and other text has less "
            "in more than half of all cases. Without --point-estimate, other text has it with "
            "the confidence of --confidence."
        )
    for one, entities, texts in cuts:
        msg.info(f"{name} keeps {in_words(one, entities, texts)}")
    for one, entities, texts in cuts:
        if not least.threshold and 0 < one.kept < FEW:
            msg.warn(
                f"There {'is' if one.kept == 1 else 'are'} only "
                f"{number_of(one.kept, fitted.noun)} in {texts}, too few to know their "
                "precision. Calibrate on more text."
            )
        elif not entities.probabilities:
            msg.warn(
                f"No {fitted.noun} in {texts} is annotated as right or wrong, so the effect of "
                f"{name} is unknown. Give texts that are annotated with the labels of the "
                "component."
            )
        elif least.threshold and keeps_few(one, entities):
            msg.warn(
                f"{name} leaves few {several} of {texts}: {one.kept} of "
                f"{len(entities.probabilities)}. These are too few to know their precision. Give "
                "a lower --precision, or calibrate on more text."
            )


def print_thresholds(found: JudgedEntities, chosen: ThresholdResult | None) -> None:
    """Print precision and recall at common thresholds and at the chosen one."""
    from spacy_latent.analysis.thresholds import THRESHOLDS, apply_threshold, in_digits

    thresholds = {in_digits(threshold): threshold for threshold in THRESHOLDS}
    if chosen:
        # It replaces a listed threshold that is printed with the same digits.
        thresholds[in_digits(chosen.threshold)] = chosen.threshold
    rows = []
    for label, threshold in sorted(thresholds.items(), key=itemgetter(1)):
        row = apply_threshold(found, threshold)
        interval = f"{as_percent(row.low)} to {as_percent(row.high)}" if row.kept else ""
        values = (as_percent(row.precision), interval, as_percent(row.recall))
        rows.append((label, str(row.kept), *values))
    header = ("confidence", plural(found.noun), "precision", "95 % interval", "recall")
    msg.table(rows, header=header, aligns="rrrlr")


def print_groups(found: JudgedEntities, texts: str) -> None:
    """Print the calibration by label, and by length if lengths are known."""
    from spacy_latent.analysis.calibration import by_label, by_length
    from spacy_latent.analysis.thresholds import FEW

    several = plural(found.noun)
    for what, groups in (("label", by_label(found)), ("length", by_length(found))):
        if len(groups) < 2:
            continue
        rows = []
        for one in groups:
            if one.count >= FEW:
                shares = map(as_percent, (one.right, one.said, one.error, one.chance))
                rows.append((one.name, str(one.count), *shares))
        if not rows:
            continue
        msg.divider(f"{several.capitalize()} of {texts} by {what}")
        header = (what, several, "right", "confidence", "error", "by chance")
        msg.table(rows, header=header)
        if rest := sum(one.count for one in groups if one.count < FEW):
            msg.text(f"{number_of(rest, found.noun)} in groups of fewer than {FEW} left out")
