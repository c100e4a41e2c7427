"""Precision and recall of the predictions that reach a least probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.resampling import confidence_interval
from spacy_latent.errors import LatentError, number_of, plural


@dataclass(frozen=True)
class ThresholdResult:
    """Result of dropping the entities less probable than ``threshold``.

    Attributes:
        precision: share of the kept entities that is correct, NaN if none is kept.
        low, high: 95 % interval of the precision.
        recall: share of the gold entities that is kept, NaN without gold entities.
    """

    threshold: float
    kept: int
    precision: float
    low: float
    high: float
    recall: float


def apply_threshold(found: JudgedEntities, threshold: float) -> ThresholdResult:
    """Measure the predictions at or above a threshold; NaN if a figure is undefined."""
    probabilities = np.asarray(found.probabilities, dtype="float64")
    own = probabilities >= threshold
    kept, right = int(own.sum()), int((own & np.asarray(found.correct, dtype=bool)).sum())
    precision = right / kept if kept else math.nan
    recall = right / found.gold if found.gold else math.nan
    return ThresholdResult(threshold, kept, precision, *interval(right, kept), recall)


# Fewer entities hardly determine a precision: the interval for 19 of 19 right is 83 to 100 %.
FEW, SMALL_SHARE = 20, 0.1


# Least number of entities to fit a calibration: 50 determine the share right to 14 points.
ENOUGH = 50


def keeps_few(one: ThresholdResult, found: JudgedEntities) -> bool:
    """Return whether the entities kept are few, in number or as a share of ``found``."""
    return one.kept < FEW or one.kept < SMALL_SHARE * len(found.probabilities)


def in_digits(probability: float) -> str:
    """Format a probability with three significant digits, also of its distance to 1.

    An example is 0.9999634. A probability less than 1 is never printed as 1.
    """
    if not 0.5 < probability < 1:
        return f"{probability:.3g}"
    places = 2 - math.floor(math.log10(1 - probability))
    return f"{probability:.{places}f}".rstrip("0")


def in_words(one: ThresholdResult, found: JudgedEntities, texts: str) -> str:
    """Describe a :class:`ThresholdResult` of ``found`` in words.

    Args:
        texts: description of the texts.
    """
    said = f"{one.kept} of {number_of(len(found.probabilities), found.noun)} of {texts}"
    if not one.kept:
        return said
    precision, low, high = (f"{100 * share:.1f} %" for share in (one.precision, one.low, one.high))
    recall = f", recall {100 * one.recall:.1f} %" if found.gold else ""
    return f"{said} (precision {precision}, 95 % interval {low} to {high}{recall})"


def threshold_for(found: JudgedEntities, precision: float) -> ThresholdResult | None:
    """Return the lowest threshold whose entities have this precision.

    The threshold is 0 if all entities together have the precision. Otherwise it is midway between
    the least probable entity that is kept and the next lower one.

    Returns:
        The result of the threshold, None if no threshold reaches the precision.
    """
    thresholds, reached = precisions(found)
    enough = np.flatnonzero(reached >= precision)
    if not len(enough):
        return None
    least = int(enough[0])
    # Do not use the lowest kept probability itself. With a confident tagger it is so near to 1 that
    # even correct entities of other texts are below it.
    return apply_threshold(found, float(thresholds[least - 1 : least + 1].mean()) if least else 0.0)


def precisions(found: JudgedEntities) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision at every threshold.

    Returns:
        The different probabilities of entities, ascending, ``(T,)``, and the precision of the
        entities that reach each of them, ``(T,)``.
    """
    said = np.asarray(found.probabilities, dtype="float64")
    order = np.argsort(said)
    thresholds, first = np.unique(said[order], return_index=True)
    right = np.asarray(found.correct, dtype="float64")[order]
    reaching = right[::-1].cumsum()[::-1]
    return thresholds, reaching[first] / (len(said) - first)


def most_precise(found: JudgedEntities) -> ThresholdResult | None:
    """Return the most precise of the thresholds that keep enough entities, None if all keep few."""
    thresholds, reached = precisions(found)
    for place in np.argsort(-reached, kind="stable"):
        one = apply_threshold(found, float(thresholds[place]))
        if not keeps_few(one, found):
            return one
    return None


# Thresholds of the table of precision and recall.
THRESHOLDS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


def interval(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of the share right, NaN without predictions."""
    return confidence_interval(right, count) if count else (math.nan, math.nan)


def conformal_threshold(
    scores: Sequence[float] | np.ndarray,
    coverage: float,
    texts: Sequence[int] | np.ndarray | None = None,
    noun: str = "entity",
) -> float:
    """Return the threshold that a further score reaches with probability ``coverage``.

    This is split conformal prediction (Vovk et al. 2005), for which the further score must be
    exchangeable with these. With ``texts`` it is hierarchical conformal prediction (Lee, Barber and
    Willett 2023): the further text must be exchangeable with these texts, and the further score is
    drawn uniformly from its scores.

    Args:
        texts: text of each score; None if each is of a text of its own.
        noun: name of the items with scores, for an error.

    Raises:
        LatentError: if there are too few texts. 1 − coverage must be at least 1 / (texts + 1).
    """
    if not 0 < coverage < 1:
        raise LatentError(f"The coverage is {coverage}; expected a number between 0 and 1.")
    said = np.asarray(scores, dtype="float64")
    place = np.arange(len(said)) if texts is None else np.unique(texts, return_inverse=True)[1]
    sizes = np.bincount(place)
    # Round, so that .1 · 10 is 1.
    if not len(sizes) or (len(sizes) + 1) * (1 - coverage) + 1e-9 < 1:
        needed = max(1, math.ceil(1 / (1 - coverage) - 1e-9) - 1)
        raise LatentError(
            f"A coverage of {coverage} needs at least {needed} texts with {plural(noun)}; "
            f"{len(sizes)} are given. Give more annotated text, or a lower coverage."
        )
    order = np.argsort(-said, kind="stable")
    # The further text counts as one text with a score below all others.
    reached = (1 / ((len(sizes) + 1) * sizes[place[order]])).cumsum()
    return float(said[order[np.searchsorted(reached, coverage - 1e-9)]])
