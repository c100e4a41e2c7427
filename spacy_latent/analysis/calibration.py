"""Calibration of the probabilities of entities."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from spacy.scorer import get_ner_prf
from spacy.training import Example

from spacy_latent.analysis.label_sets import asked_alone
from spacy_latent.analysis.scores import ExampleScorer, Scores
from spacy_latent.analysis.task import confidence_interval
from spacy_latent.annotations import annotated_labels
from spacy_latent.errors import LatentError, LatentWarning, number_of

# Number of draws of outcomes for the calibration error by chance.
DRAWS = 1000
# Share of found entities on tokens without annotation. Above it the figures of the other entities
# may be too good.
LEFT_OUT = 0.05
# token.ent_iob of tokens without annotation.
MISSING = 0


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
        low: lower end of the range.
        high: upper end of the range.
        said: mean probability.
        right: share of correct predictions.
        right_low: lower end of the 95 % interval of ``right`` (Wilson 1927).
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
        low, high = _interval(int(right[own].sum()), count)
        found.append(Bin(i / bins, (i + 1) / bins, count, mean, share, low, high))
    return found


def error_by_chance(probabilities: Sequence[float], bins: int = 10) -> tuple[float, float]:
    """Return the calibration error that chance alone causes if all probabilities are right.

    Outcomes are drawn from the probabilities. An observed error differs from 0 only if it is above
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


@dataclass
class JudgedEntities:
    """Entities of a component, judged correct or wrong by the annotation.

    Attributes:
        gold: number of entities in the annotation.
        unannotated: number of further entities that were found on tokens whose annotation is
            missing.
        outside_known: False if some annotation is missing and no token is annotated as outside of
            entities. Then an entity is known to be wrong only if it overlaps a gold entity.
        texts: number of the text of each entity. If it is empty, each entity counts as a text of
            its own.
        by_document: whether these texts are documents, of which a doc may be a piece.
        noun: name of the predictions in messages; spans and arcs are judged as entities are.
        lengths: number of tokens of each span or tree, or distance of each arc between head and
            modifier, 0 for roots; empty for entities.
    """

    probabilities: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    gold: int = 0
    unannotated: int = 0
    outside_known: bool = True
    texts: list[int] = field(default_factory=list)
    noun: str = "entity"
    lengths: list[int] = field(default_factory=list)
    by_document: bool = False

    def add(
        self, probability: float, right: bool, text: int, label: str = "", length: int | None = None
    ) -> None:
        self.probabilities.append(probability)
        self.correct.append(right)
        self.texts.append(text)
        self.labels.append(label)
        if length is not None:
            self.lengths.append(length)


def judged_entities(
    examples: Iterable[Example], component: str = "crf_ner"
) -> JudgedEntities | None:
    """Return the entities of ``component`` that the annotation judges correct or wrong.

    An entity is correct if a gold entity has the same tokens and the same label. Entities that were
    on the doc before are left out, since the component gives them no probability. Entities on
    tokens whose annotation is missing, or of labels that a text was not annotated for, are counted
    in ``unannotated``.

    Returns:
        The entities, None if the component stored no probabilities.
    """
    found, missing, outside = JudgedEntities(), False, False
    for number, example in enumerate(examples):
        annotation = example.predicted._.latent.get(component)
        if annotation is None:
            continue
        tags: Any = example.reference.to_array(["ENT_IOB", "ENT_TYPE"])
        missing |= bool((tags[:, 0] == MISSING).any())
        outside |= bool(((tags[:, 0] != MISSING) & (tags[:, 1] == 0)).any())
        if any(span.entity_probabilities is None for span in annotation.spans):
            # Texts without annotation need no probabilities.
            if (tags[:, 0] != MISSING).any():
                return None
            continue
        asked = annotated_labels(example.reference)
        known = [span for span in example.reference.ents if asked is None or span.label_ in asked]
        aligned = example.get_aligned_spans_y2x(known)
        gold = {(span.start, span.end, span.label_) for span in aligned}
        found.gold += len(known)
        reference, place = example.reference, example.alignment.x2y
        for entity in annotation.entities():
            tokens = [i for token in range(entity.start, entity.end) for i in place[token].tolist()]
            right = (entity.start, entity.end, entity.label) in gold
            if entity.given:
                found.gold -= right
            elif (asked is not None and entity.label not in asked) or any(
                reference[i].ent_iob == MISSING for i in tokens
            ):
                found.unannotated += 1
            elif entity.probability is not None:
                found.add(entity.probability, right, number, entity.label)
    found.outside_known = outside or not missing
    return found


NOTHING_OUTSIDE = (
    "No token of the texts is annotated as outside of entities: entities are marked, and of all "
    "else the annotation is missing. So what is found elsewhere is neither right nor wrong, and "
    "the precision cannot be known. Annotate some texts completely, as by doc.set_ents(entities, "
    "default='outside') where these are all entities of a text."
)


def left_out_in_words(name: str, found: JudgedEntities | EntityFigures) -> str:
    """Return the remark on partly annotated texts, empty if there is none."""
    judged = found.found if isinstance(found, EntityFigures) else len(found.probabilities)
    every, missing = judged + found.unannotated, found.unannotated
    are = "is" if missing == 1 else "are"
    where = "on tokens whose annotation is missing"
    if found.noun == "span":
        where = "in texts without the group of spans, or not annotated for their label"
    said = (
        f"{missing} of {number_of(every, found.noun)} that {name} finds {are} {where}, and left "
        "out: whether they are right is not known. "
        if missing
        else ""
    )
    if not found.outside_known:
        return f"{said}{NOTHING_OUTSIDE}"
    if missing <= LEFT_OUT * every:
        return ""
    return (
        f"{said}Where annotators marked entities and little else, more of these are wrong than of "
        "the others, and precision and confidences come out too high. Take texts that are "
        "annotated completely."
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


# ---------------------------------------------------------------- thresholds


@dataclass(frozen=True)
class ThresholdResult:
    """Result of dropping the entities less probable than ``threshold``.

    Attributes:
        threshold: the least probability of a kept entity.
        precision: share of the kept entities that is correct, NaN if none is kept.
        low: lower end of the 95 % interval of the precision.
        recall: share of the gold entities that is kept, NaN without gold entities.
    """

    threshold: float
    kept: int
    precision: float
    low: float
    high: float
    recall: float


def apply_threshold(found: JudgedEntities, threshold: float) -> ThresholdResult:
    probabilities = np.asarray(found.probabilities, dtype="float64")
    own = probabilities >= threshold
    kept, right = int(own.sum()), int((own & np.asarray(found.correct, dtype=bool)).sum())
    precision = right / kept if kept else math.nan
    recall = right / found.gold if found.gold else math.nan
    return ThresholdResult(threshold, kept, precision, *_interval(right, kept), recall)


# Fewer entities hardly determine a precision: 19 of 19 right gives an interval of 83 to 100 %.
FEW, SMALL_SHARE = 20, 0.1
# Least number of entities to fit a calibration: 50 determine the share right to 14 points.
ENOUGH = 50


def keeps_few(one: ThresholdResult, found: JudgedEntities) -> bool:
    """Return whether the entities kept are few, in number or as a share of ``found``."""
    return one.kept < FEW or one.kept < SMALL_SHARE * len(found.probabilities)


def in_digits(probability: float) -> str:
    """Format a probability with three significant digits of it and of its distance to 1.

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
    # Not the lowest probability itself: a confident tagger has it so near to 1 that entities of
    # other texts, correct ones too, stay below.
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
        unannotated: see :class:`JudgedEntities`.
        outside_known: see :class:`JudgedEntities`.
        noun: see :class:`JudgedEntities`.
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
        name: what the predictions have in common.
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


def _interval(right: int, count: int) -> tuple[float, float]:
    return confidence_interval(right, count) if count else (math.nan, math.nan)


def conformal_threshold(scores: Sequence[float], coverage: float) -> float:
    """Return the threshold that the score of a further item reaches with probability ``coverage``.

    The further item must be exchangeable with these (Vovk et al. 2005; split conformal prediction).

    Raises:
        LatentError: if there are too few scores. 1 − coverage must be at least 1 / (n + 1).
    """
    if not 0 < coverage < 1:
        raise LatentError(f"The coverage is {coverage}; expected a number between 0 and 1.")
    # So that .1 · 10 is 1.
    rank = math.floor((len(scores) + 1) * (1 - coverage) + 1e-9)
    if rank < 1:
        needed = math.ceil(1 / (1 - coverage) - 1e-9) - 1
        raise LatentError(
            f"A coverage of {coverage} takes at least {needed} texts with entities, and there are "
            f"{len(scores)}. Give more annotated text, or a lower coverage."
        )
    return float(np.sort(np.asarray(scores, dtype="float64"))[rank - 1])


def build_entity_scorer_v1(component: str = "crf_ner", bins: int = 10) -> ExampleScorer:
    """Build a scorer of spaCy's scores of entities and of ``ents_ece``.

    ``ents_ece`` is the expected calibration error of the entities that ``component`` found with
    ``annotate = "probabilities"``. Entities of a label that a text was not annotated for, by
    ``doc._.annotated_labels``, count in neither.

    Args:
        component: name of the ``crf_ner`` in the pipeline; spaCy does not pass it to a scorer. A
            warning is given if no doc has an annotation of it.
        bins: number of equal ranges of probability.
    """

    def score(examples: Iterable[Example], **kwargs: object) -> Scores:
        examples = list(examples)
        found = get_ner_prf([asked_alone(example) for example in examples], **kwargs)
        docs = [example.predicted for example in examples if len(example.predicted)]
        if docs and not any(component in doc._.latent for doc in docs):
            there = ", ".join(sorted({name for doc in docs for name in doc._.latent}))
            warnings.warn(
                f"entity_scorer: no doc has anything of a component {component!r}, so that there "
                f"is no ents_ece. The docs have {there or 'nothing of any'}. Set component in the "
                "block of the scorer to the name of the crf_ner, and annotate = 'probabilities' in "
                "that of the crf_ner.",
                LatentWarning,
                stacklevel=2,
            )
        return {**found, "ents_ece": entity_calibration_error(examples, component, bins)}

    return score
