"""Thresholds of confidence at which predictions have a precision."""

from __future__ import annotations

from spacy_latent.analysis.calibration import NOTHING_OUTSIDE
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.precision_bound import (
    LEAST_TEXTS,
    PromisedThreshold,
    bound_of_all,
    lower_bound,
    needed,
    promised_threshold,
    tests_of,
)
from spacy_latent.analysis.thresholds import (
    FEW,
    ThresholdResult,
    apply_threshold,
    in_digits,
    in_words,
    keeps_few,
    most_precise,
    precisions,
    threshold_for,
)
from spacy_latent.errors import LatentError, is_number, number_of, plural


def check_precision(name: str, precision: object, point_estimate: bool) -> None:
    """Raise LatentError unless the precision under ``name`` is above 0 and below 1.

    Args:
        point_estimate: whether the precision is of the calibration texts alone. Then it may be 1.
    """
    if is_number(precision):
        share = float(precision)  # type: ignore[arg-type]
        if 0 < share < 1 or (point_estimate and share == 1):
            return
    expected = ", or 1" if point_estimate else ", since no texts prove more"
    raise LatentError(
        f"{name} is {precision!r}; expected a number above 0 and below 1{expected}. Write 0.97 for "
        "97 %."
    )


def checked_coverage(coverage: object) -> float | None:
    """Return a coverage of sets as a Python float, which can be stored; None for None.

    Raises:
        LatentError: unless it is None, or a number between 0 and 1.
    """
    if coverage is None:
        return None
    if is_number(coverage) and 0 < float(coverage) < 1:  # type: ignore[arg-type]
        return float(coverage)  # type: ignore[arg-type]
    raise LatentError(f"calibrate: coverage is {coverage!r}; expected a number between 0 and 1.")


def precise_threshold(
    found: JudgedEntities, precision: float, *, confidence: float | None = 0.9, few: bool = False
) -> ThresholdResult:
    """Return the lowest threshold at which predictions have a precision.

    For the other arguments, the result and the errors see
    :func:`spacy_latent.evaluation.entity_calibration.set_precision`.

    Args:
        found: predictions of the calibration texts with their calibrated probabilities.
    """
    check_precision("The precision", precision, point_estimate=confidence is None)
    if confidence is not None and not (is_number(confidence) and 0 < confidence < 1):
        raise LatentError(
            f"The confidence is {confidence!r}; expected a number between 0 and 1, or "
            "None for a point estimate."
        )
    if not found.outside_known:
        raise LatentError(f"There is no min_confidence for a precision. {NOTHING_OUTSIDE}")
    if confidence is None:
        return _point_estimate(found, precision, few)
    return _promised(found, precision, confidence, few)


def _promised(
    found: JudgedEntities, precision: float, confidence: float, few: bool
) -> PromisedThreshold:
    least = promised_threshold(found, precision, confidence, few)
    if least is not None:
        return least
    tested = tests_of(found, precision, confidence, few)
    text = "document" if found.by_document else "text"
    count, enough = len(found.probabilities), needed(precision, confidence)
    reason = (
        f"There are {number_of(count, found.noun)}; expected at least {enough}, even if all are "
        "right."
    )
    if tested:
        highest = tested[0]
        bound = lower_bound(highest.right, highest.count, confidence)
        kept = in_words(apply_threshold(found, highest.threshold), found, "the calibration texts")
        reason = (
            f"The highest threshold that keeps enough, {in_digits(highest.threshold)}, keeps "
            f"{kept}. The lower bound of their precision in other text is {100 * bound:.1f} %."
        )
        if (everything := bound_of_all(found, confidence)) >= precision:
            reason += (
                f" For all {plural(found.noun)} together it is {100 * everything:.1f} %, so they "
                "have the precision without a threshold. But the test begins at the highest "
                "confidences, which are right less often."
            )
        elif not few:
            reason += (
                f" {enough} would suffice if all were right, and the test begins with twice as "
                f"many. With --few, in Python few=True, it begins with {enough}. That may only be "
                "chosen before any figures are seen, so give it with other calibration texts."
            )
    elif found.texts and len(set(found.texts)) < min(LEAST_TEXTS, count):
        reason = (
            f"All {number_of(count, found.noun)} are from "
            f"{number_of(len(set(found.texts)), text)}; expected at least {LEAST_TEXTS}, since "
            f"predictions in one {text} are often right or wrong together."
        )
    elif not few and count >= enough:
        reason += f" Without --few, a threshold must also keep {FEW} of them, and one in ten."
    raise LatentError(
        f"The texts do not support a precision of {precision} with a confidence of {confidence}. "
        f"{reason} Give a lower precision or confidence, or calibrate on more annotated text. For "
        "a point estimate, which holds only for these texts, give --point-estimate, in Python "
        "confidence=None."
    )


def _point_estimate(found: JudgedEntities, precision: float, few: bool) -> ThresholdResult:
    least = threshold_for(found, precision)
    if least is None:
        thresholds, reached = precisions(found)
        reason = f"There are no {plural(found.noun)}."
        if len(thresholds):
            best = apply_threshold(found, float(thresholds[reached.argmax()]))
            reason = (
                f"The highest is {best.precision:.3f}, for the "
                f"{number_of(best.kept, found.noun)} with a confidence of at least "
                f"{in_digits(best.threshold)}."
            )
        raise LatentError(
            f"No threshold has a precision of {precision}. {reason} Give a lower precision, or "
            "calibrate on more annotated text."
        )
    if least.threshold and keeps_few(least, found) and not few:
        enough = most_precise(found)
        reason = f"No threshold keeps {FEW} of them. "
        if enough is not None:
            reason = (
                "The highest precision of a threshold that keeps more is "
                f"{enough.precision:.3f}, for {enough.kept} with a confidence of at least "
                f"{in_digits(enough.threshold)}. "
            )
        raise LatentError(
            f"A threshold of {in_digits(least.threshold)}, for a precision of "
            f"{precision}, would keep "
            f"{in_words(least, found, 'the calibration texts')}. Fewer than "
            f"{FEW}, or than one in ten, are too few to estimate the precision. {reason}Give a "
            "lower precision or none, or calibrate on more annotated text. To set this threshold "
            "all the same, give --few, in Python few=True."
        )
    return least
