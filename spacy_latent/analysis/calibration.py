"""Calibration error of the probabilities of entities, and its figures in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from spacy.scorer import get_ner_prf
from spacy.training import Example

from spacy_latent.analysis.judged_entities import JudgedEntities, judged_entities
from spacy_latent.analysis.label_sets import asked_alone
from spacy_latent.analysis.scores import ExampleScorer, Scores, warn_without_annotations
from spacy_latent.analysis.thresholds import THRESHOLDS, ThresholdResult, apply_threshold, interval
from spacy_latent.errors import LatentError, check_whole, number_of

# Number of draws of outcomes for the calibration error by chance.
DRAWS = 1000
# If a larger share of the predicted entities is on tokens without annotation, the figures of the
# other entities may be too good.
LEFT_OUT = 0.05


def expected_calibration_error(
    probabilities: Sequence[float], correct: Sequence[bool], bins: int = 10
) -> float:
    """Return the expected calibration error, in [0, 1] (Guo et al. 2017, eq. 3).

    Predictions are sorted into ranges of probability of equal size. The error is the mean over
    these ranges of the distance between the mean probability and the share of correct predictions.
    Each range is weighted by its number of predictions. The error is NaN without predictions.
    """
    if len(probabilities) != len(correct) or bins < 1:
        raise LatentError(
            f"expected_calibration_error: {len(probabilities)} probabilities, {len(correct)} "
            f"outcomes and {bins} bins; expected as many of the first two, and at least one bin."
        )
    if not len(probabilities):
        return float("nan")
    said, right = np.asarray(probabilities, dtype="float64"), np.asarray(correct, dtype="float64")
    return _mean_distance(_ranges(said, bins), said, right)


def _ranges(said: np.ndarray, bins: int) -> np.ndarray:
    """Return the number of the range that each prediction is in."""
    return np.minimum((said * bins).astype("int64"), bins - 1)


def _mean_distance(place: np.ndarray, said: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(np.bincount(place, said - right)).sum() / len(said))


@dataclass(frozen=True)
class Bin:
    """Predictions with probabilities in one range.

    Means and shares are NaN if the range has no predictions.

    Attributes:
        low, high: ends of the range.
        said: mean probability.
        right: share of correct predictions.
        right_low, right_high: 95 % interval of ``right`` (Wilson 1927).
    """

    low: float
    high: float
    count: int
    said: float
    right: float
    right_low: float
    right_high: float


def reliability(
    probabilities: Sequence[float], correct: Sequence[bool], bins: int = 10
) -> list[Bin]:
    """Return the ranges over which :func:`expected_calibration_error` sums."""
    said, right = np.asarray(probabilities, dtype="float64"), np.asarray(correct, dtype="float64")
    place = _ranges(said, bins)
    found = []
    for i in range(bins):
        own = place == i
        count = int(own.sum())
        mean, share = (float(part[own].mean()) if count else math.nan for part in (said, right))
        low, high = interval(int(right[own].sum()), count)
        found.append(Bin(i / bins, (i + 1) / bins, count, mean, share, low, high))
    return found


def error_by_chance(probabilities: Sequence[float], bins: int = 10) -> tuple[float, float]:
    """Return the calibration error that chance alone causes if all probabilities are right.

    Outcomes are drawn from the probabilities. An observed error is significant only if it is above
    the second of the returned numbers.

    Returns:
        The mean of the drawn errors, and their 95 % quantile. Both are NaN without predictions.
    """
    if not len(probabilities):
        return math.nan, math.nan
    generator, said = np.random.default_rng(0), np.asarray(probabilities, dtype="float64")
    place = _ranges(said, bins)
    drawn = (generator.random(len(said)) < said for _ in range(DRAWS))
    errors = [_mean_distance(place, said, right) for right in drawn]
    return float(np.mean(errors)), float(np.quantile(errors, 0.95))


NOTHING_OUTSIDE = (
    "No token of the texts is annotated as outside of entities, so entities that are found "
    "elsewhere are neither right nor wrong, and the precision is unknown. Annotate some texts "
    "completely, by doc.set_ents(entities, default='outside')."
)


def left_out_in_words(name: str, found: JudgedEntities | EntityFigures) -> str:
    """Return the remark on predictions without annotation, empty if there is none."""
    judged = found.found if isinstance(found, EntityFigures) else len(found.probabilities)
    every, missing = judged + found.unannotated, found.unannotated
    are = "is" if missing == 1 else "are"
    where = "on tokens whose annotation is missing"
    if found.noun == "span":
        where = "in texts without the group of spans, or not annotated for their label"
    said = (
        f"{missing} of {number_of(every, found.noun)} that {name} finds {are} {where}, and left "
        "out, since it is unknown whether they are right. "
        if missing
        else ""
    )
    if not found.outside_known:
        return f"{said}{NOTHING_OUTSIDE}"
    if missing <= LEFT_OUT * every:
        return ""
    return (
        f"{said}If annotators marked little except entities, more of these are wrong than of the "
        "others, so precision and confidences are too high. Give texts that are annotated "
        "completely."
    )


def entity_calibration_error(
    examples: Iterable[Example], component: str = "crf_ner", bins: int = 10
) -> float | None:
    """Return the expected calibration error of the entities of ``component``.

    See :func:`judged_entities`.

    Returns:
        The error, None if the component stored no probabilities or found no entities.
    """
    found = judged_entities(examples, component)
    if found is None or not found.probabilities:
        return None
    return expected_calibration_error(found.probabilities, found.correct, bins)


@dataclass
class EntityFigures:
    """Calibration of the entities of a component.

    Attributes:
        gold: number of entities in the annotation.
        error: expected calibration error.
        chance: mean error by chance, see :func:`error_by_chance`.
        chance_high: 95 % quantile of the error by chance.
        bins: ranges of the reliability diagram.
        cuts: results of dropping the less probable entities.
        unannotated, outside_known, noun: see :class:`JudgedEntities`.
    """

    found: int
    gold: int
    error: float
    chance: float
    chance_high: float
    bins: list[Bin]
    cuts: list[ThresholdResult]
    unannotated: int = 0
    outside_known: bool = True
    noun: str = "entity"


def entity_figures(found: JudgedEntities) -> EntityFigures:
    """Return the figures of entities, spans or arcs that annotation has judged."""
    said, correct = found.probabilities, found.correct
    return EntityFigures(
        len(said),
        found.gold,
        expected_calibration_error(said, correct),
        *error_by_chance(said),
        reliability(said, correct),
        [apply_threshold(found, threshold) for threshold in THRESHOLDS],
        found.unannotated,
        found.outside_known,
        found.noun,
    )


# Longest length of each group of the table by length.
LENGTHS = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class GroupFigures:
    """Calibration of a group of predictions.

    Attributes:
        name: name of the group, such as a label.
        right: share of the predictions that is right.
        said: mean confidence.
        error: expected calibration error.
        chance: mean error by chance, see :func:`error_by_chance`.
    """

    name: str
    count: int
    right: float
    said: float
    error: float
    chance: float


def by_label(found: JudgedEntities) -> list[GroupFigures]:
    """Return the calibration of each label, the most frequent first."""
    labels = np.asarray(found.labels, dtype=object)
    names = sorted(set(found.labels), key=lambda name: (-found.labels.count(name), name))
    return [_group(found, name, labels == name) for name in names]


def by_length(found: JudgedEntities) -> list[GroupFigures]:
    """Return the calibration of short to long arcs or spans; empty if lengths are not known."""
    lengths, groups, low = np.asarray(found.lengths, dtype="int64"), [], 0
    for high in (*LENGTHS, int(lengths.max(initial=0))):
        own = (lengths >= low) & (lengths <= high)
        name = str(low) if low == high else f"{low} to {high}"
        if own.any():
            groups.append(_group(found, name if high else "root", own))
        low = high + 1
    return groups


def _group(found: JudgedEntities, name: str, own: np.ndarray) -> GroupFigures:
    said = np.asarray(found.probabilities, dtype="float64")[own]
    right = np.asarray(found.correct, dtype=bool)[own]
    error = expected_calibration_error(said.tolist(), right.tolist())
    chance, _ = error_by_chance(said.tolist())
    return GroupFigures(
        name or "(none)", len(said), float(right.mean()), float(said.mean()), error, chance
    )


def build_entity_scorer_v1(component: str = "crf_ner", bins: int = 10) -> ExampleScorer:
    """Build a scorer of spaCy's scores of entities and of ``ents_ece``.

    ``ents_ece`` is the expected calibration error of the entities that ``component`` found with
    ``annotate = "probabilities"``. If a text was not annotated for a label, by
    ``doc._.annotated_labels``, entities of this label are ignored in all scores.

    Args:
        component: name of the ``crf_ner`` in the pipeline; spaCy does not pass it to a scorer. A
            warning is given if no doc has an annotation of it.
        bins: number of equal ranges of probability.
    """
    check_whole("entity_scorer", bins=bins)

    def score(examples: Iterable[Example], **kwargs: object) -> Scores:
        examples = list(examples)
        found = get_ner_prf([asked_alone(example) for example in examples], **kwargs)
        warn_without_annotations(
            "entity_scorer",
            examples,
            component,
            "ents_ece is",
            "Set component in the block of the scorer to the name of the crf_ner, and annotate = "
            "'probabilities' in the block of the crf_ner.",
        )
        return {**found, "ents_ece": entity_calibration_error(examples, component, bins)}

    return score
