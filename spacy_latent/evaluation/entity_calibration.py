"""Calibration of probabilities of entities on held-out text.

The fitted calibration is stored with what the component has learnt.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from spacy.language import Language
from spacy.training import Example

from spacy_latent.analysis.calibration import left_out_in_words
from spacy_latent.analysis.independent_texts import independent_texts
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.span_calibration import SPAN
from spacy_latent.analysis.thresholds import ThresholdResult
from spacy_latent.annotations.span_structure import LEAST_IN_SETS
from spacy_latent.errors import LatentError, PartlyAnnotated, number_of
from spacy_latent.evaluation.calibration_examples import (
    Examples,
    choose_component,
    examples_up_to,
    prepared,
    without_entities_of_others,
)
from spacy_latent.evaluation.calibration_fit import (
    Gain,
    choose_confidence,
    folds_of,
    gain_of,
    left_out_confidences,
    surprise,
)
from spacy_latent.evaluation.covering_sets import Coverage, useful_threshold
from spacy_latent.evaluation.entity_predictions import (
    fit_of_scores,
    gold_entities,
    judge,
    least_of_texts,
)
from spacy_latent.evaluation.precise_threshold import checked_coverage, precise_threshold
from spacy_latent.pipeline.learnt_calibration import EntityCalibration as EntityCalibration
from spacy_latent.structures.derivatives import recording


@dataclass
class Calibrated:
    """Result of :func:`calibrate`.

    Attributes:
        losses: mean losses of docs, by name. Without a choice of biases, "as trained" and
            "calibrated" are measured on the docs of the fit. With this choice, "as trained",
            "temperature", and "temperature and biases" are measured on docs left out of the fit.
        confidence_losses: mean losses of entities left out of the fit.
        before, after: entities with their probabilities before and after calibration, on the docs
            of the calibration. Without biases they are the same entities. Entities on tokens
            without annotation are left out; ``after.unannotated`` is their number. The texts of
            ``after`` are documents if docs name them.
        set_sizes: for entities, number of spans in the set of each doc; empty without a coverage.
        left_out: number of docs whose annotation no sequence of tags can have, for example because
            of an unknown label. Scores are not fitted to them.
        unknown: unknown labels of the annotation, sorted.
        gain: reduction of the loss of entities left out of the fit, in five folds of texts. With
            biases it is the reduction of the loss of texts, since other entities are found.
        kept: whether the calibration was stored. If the gain is not larger than its error, the
            component stays as trained.
        crossed: entities of each text with probabilities from a fit to the other folds.
        sets: for spans, whether the whole set of spans of each doc is right, with its probability
            as trained and at the temperature. No slope and shift are fitted to these probabilities.
        covered: for spans, coverage of their sets on the texts of the fit, or None without sets.
    """

    calibration: EntityCalibration
    losses: dict[str, float]
    confidence_losses: dict[str, float]
    before: JudgedEntities
    after: JudgedEntities
    set_sizes: list[int]
    left_out: int
    unknown: tuple[str, ...] = ()
    gain: Gain = field(default_factory=lambda: Gain(0.0, math.inf))
    kept: bool = True
    crossed: JudgedEntities = field(default_factory=JudgedEntities)
    sets: tuple[JudgedEntities, JudgedEntities] | None = None
    covered: Coverage | None = None


@recording()
def calibrate(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    *,
    biases: bool = False,
    confidence: bool | None = None,
    coverage: float | None = None,
    progress: Progress = silent,
) -> Calibrated:
    """Fit the calibration of a component and store it in the component if it gains.

    The gain is measured on texts left out of the fit, in five folds. If it is not larger than its
    standard error, the component is as it was trained, and ``kept`` of the result is False.

    Args:
        examples: examples with entities on which the component was not trained, or a function that
            returns them. Predicted docs are not processed yet. In partly annotated texts,
            predictions on tokens without annotation are left out. A warning (PartlyAnnotated) says
            so if they are more than 5 %. References that are pieces of documents name them in
            ``doc.user_data["document"]``; then a promised precision counts documents as
            independent, not docs. Entities with a label that only another component of the
            pipeline finds are left out.
        component: name of a ``crf_ner``; may be left out if the pipeline has one.
        biases: whether each label may get a bias if held-out docs support it, see
            :meth:`ScoreFit.choose`. With biases the component finds other entities than before.
        confidence: whether to fit a slope and a shift; None to fit them if held-out entities
            support it, see :func:`choose_confidence`. With True the fit is kept in any case.
        coverage: share of the texts with entities whose set is to hold all of them; None for no
            sets.
    """
    name = choose_component(nlp, component, "crf_ner")
    coverage = checked_coverage(coverage)
    pipe: Any = nlp.get_pipe(name)
    if not pipe.labels:
        raise LatentError(f"{name!r} has no labels, so there is nothing to calibrate. Train it.")
    if pipe.untrained_labels:
        raise LatentError(
            f"{name!r} was not trained since the labels {', '.join(pipe.untrained_labels)} were "
            "added, and cannot find them. Train it before you calibrate it."
        )
    made = examples_up_to("calibrate", nlp, name, examples, progress)
    made = without_entities_of_others(nlp, name, made)
    if not any(map(gold_entities, made)):
        raise LatentError(
            f"No text has an annotated entity, so {name!r} cannot be calibrated. Give annotated "
            "text that it was not trained on."
        )
    unknown = _unknown_labels(name, pipe, made)
    before = pipe.calibration
    try:
        found = _fit(pipe, made, biases, confidence, coverage, progress)
    except BaseException:
        pipe.calibration = before
        raise
    _tell_what_is_left_out(name, found.after)
    return replace(found, unknown=unknown)


def _tell_what_is_left_out(name: str, found: JudgedEntities) -> None:
    said = left_out_in_words(name, found)
    if said:
        warnings.warn(said, PartlyAnnotated, stacklevel=3)


def _unknown_labels(name: str, pipe: Any, examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the labels of the references that the component does not have.

    Raise an error if every text with entities has one: all predictions would count as wrong.
    """
    labels = [{span.label_ for span in gold_entities(example)} for example in examples]
    unknown = sorted(set().union(*labels).difference(pipe.labels))
    if all(own.difference(pipe.labels) for own in labels if own):
        raise LatentError(
            f"{name!r} was trained on the labels {', '.join(pipe.labels)}, and every text with "
            f"entities has another one: {', '.join(unknown)}. It cannot find entities of a label "
            "that it was not trained on. Give texts that are annotated with its labels, or rename "
            "their labels as in training."
        )
    return tuple(unknown)


def _fit(
    pipe: Any,
    made: Sequence[Example],
    biases: bool,
    confidence: bool | None,
    coverage: float | None,
    progress: Progress,
) -> Calibrated:
    pipe.calibration = None
    documents = independent_texts(example.reference for example in made)
    before = judge(pipe, made, progress)
    folds = folds_of(documents)
    fit, left_out = fit_of_scores(pipe, made, folds, progress)
    point, losses = fit.choose(None if biases else False)
    points, of_texts = fit.cross_fit(point)
    counts = EntityCalibration(
        docs=len(made), entities=sum(len(gold_entities(one)) for one in made)
    )
    crossed = _judge_crossed(pipe, made, points, folds, progress)
    sure, confidence_losses = choose_confidence(crossed, folds, confidence)
    crossed = replace(crossed, probabilities=left_out_confidences(crossed, sure, folds).tolist())
    if len(point) > 1 or not before.probabilities:
        # With biases other entities are found, so that losses of entities cannot be compared.
        plain = fit.losses(torch.zeros(1, dtype=torch.float64))
        gain = gain_of(plain[fit.counted].numpy(), of_texts[fit.counted].numpy())
    else:
        right = np.asarray(before.correct, dtype=bool)
        gain = gain_of(
            surprise(before.probabilities, right),
            surprise(crossed.probabilities, right),
            np.asarray(before.texts),
        )
    found = counts
    if gain.is_sure or confidence:
        found = replace(_of_point(pipe, point, counts), **vars(sure))
    kept = found != counts
    sizes: list[int] = []
    if coverage is not None:
        pipe.calibration = found
        least = _least(pipe, made, found, coverage, progress)
        found = replace(found, coverage=coverage, least=least)
    pipe.calibration = found if found != counts else None
    after = documents.group(judge(pipe, made, progress, sizes))
    return Calibrated(
        found,
        losses,
        confidence_losses,
        before,
        after,
        sizes,
        left_out,
        gain=gain,
        kept=kept,
        crossed=crossed,
    )


def _of_point(pipe: Any, point: torch.Tensor, counts: EntityCalibration) -> EntityCalibration:
    """Return the temperature and the biases at a point of :class:`ScoreFit`."""
    biases = dict(zip(pipe.labels, point[1:].tolist()))
    return replace(counts, temperature=float((-point[0]).exp()), biases=biases)


def _judge_crossed(
    pipe: Any,
    made: Sequence[Example],
    points: Sequence[torch.Tensor],
    folds: np.ndarray,
    progress: Progress,
) -> JudgedEntities:
    """Judge the entities of each text by the temperature and biases fitted to the other folds."""
    found = JudgedEntities()
    rows: list[tuple[int, float, bool, str]] = []
    for k, point in enumerate(points):
        places = np.flatnonzero(folds == k)
        pipe.calibration = _of_point(pipe, point, EntityCalibration())
        part = judge(pipe, [made[i] for i in places.tolist()], progress)
        texts = places[part.texts].tolist()
        rows += zip(texts, part.probabilities, part.correct, part.labels)
        found.gold += part.gold
        found.unannotated += part.unannotated
    # Keep the order of the texts, so that the gain compares each entity with itself.
    for text, probability, right, label in sorted(rows, key=itemgetter(0)):
        found.add(probability, right, text, label)
    return found


@dataclass
class Measured:
    """Result of :func:`measure`.

    Attributes:
        entities: entities that the annotation judges, with their probabilities, and the number of
            the others.
        covered: for entities, share of the texts with entities whose set holds all of them, and the
            number of such texts; None without sets or such texts.
        set_size: mean number of entities in a set; NaN without sets.
        sets: for spans, their coverage; None without sets.
    """

    entities: JudgedEntities
    covered: tuple[float, int] | None
    set_size: float
    sets: Coverage | None = None


def measure(
    nlp: Language, examples: Examples, component: str | None = None, progress: Progress = silent
) -> Measured:
    """Compare the predictions of a component with annotation, without a new calibration.

    The arguments are the same as in :func:`calibrate`.
    """
    name, pipe, made = prepared("measure", nlp, component, "crf_ner", examples, progress)
    made = without_entities_of_others(nlp, name, made)
    sizes: list[int] = []
    judged, covered = judge(pipe, made, progress, sizes), None
    _tell_what_is_left_out(name, judged)
    found = pipe.calibration
    if found is not None and found.least is not None:
        scores = least_of_texts(pipe, made, found, progress)
        if scores:
            covered = sum(score >= found.least for score in scores) / len(scores), len(scores)
    return Measured(judged, covered, sum(sizes) / len(sizes) if sizes else math.nan)


def set_precision(
    nlp: Language,
    found: Calibrated,
    precision: float,
    component: str | None = None,
    *,
    confidence: float | None = 0.9,
    few: bool = False,
) -> ThresholdResult:
    """Set ``min_confidence`` of a component, and in its config, to reach a precision.

    The value is the lowest one whose precision holds on other text with this confidence, see
    :func:`spacy_latent.analysis.precision_bound.promised_threshold`. It is 0 if the precision holds
    without a threshold. Otherwise it is midway between the least confident entity that is kept and
    the next one below.

    Args:
        precision: requested precision, above 0 and below 1. Without ``confidence`` it may be 1.
        confidence: probability, over draws of calibration texts, that the precision holds on other
            text of the same source. None for a point estimate: the lowest value at which the
            entities of the calibration texts have the precision. On other text the precision is
            lower in more than half of all cases.
        few: whether to accept a value that keeps fewer than 20 entities, or fewer than one in ten.

    Returns:
        The threshold and what it keeps; a
        :class:`~spacy_latent.analysis.precision_bound.PromisedThreshold` with a confidence.

    Raises:
        LatentError: if the texts do not support the precision, or if a point estimate above 0 keeps
            fewer than 20 entities or fewer than one in ten. Also if the texts have no tokens
            annotated as outside of entities, so that no entity is known to be wrong.
    """
    if not isinstance(found, Calibrated):
        raise LatentError(
            f"set_precision: it was given a {type(found).__name__}; expected what calibrate(nlp, "
            "examples) gives."
        )
    factory = "tree_spancat" if found.after.noun == SPAN else "crf_ner"
    name = choose_component(nlp, component, factory)
    pipe: Any = nlp.get_pipe(name)
    least = precise_threshold(found.after, precision, confidence=confidence, few=few)
    pipe.configure("min_confidence", least.threshold)
    nlp.get_pipe_config(name)["min_confidence"] = least.threshold
    return least


def _least(
    pipe: Any,
    examples: Sequence[Example],
    calibration: EntityCalibration,
    coverage: float,
    progress: Progress,
) -> float:
    """Return the least probability of entities in sets that have this coverage of texts."""
    scores = least_of_texts(pipe, examples, calibration, progress)
    known = set(pipe.labels)
    is_unknown = any(span.label_ not in known for one in examples for span in gold_entities(one))
    such = ", or of a label that the component does not have" if is_unknown else ""
    lacking = (
        f"in more than {1 - coverage:.2g} of {number_of(len(scores), 'text')} with entities one is "
        f"less probable than {LEAST_IN_SETS}{such}"
    )
    return useful_threshold(scores, coverage, range(len(scores)), "entity", lacking)
