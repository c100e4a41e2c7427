"""Calibration of the probabilities of arcs, labels and whole trees of ``latent_parser``.

The scores of arcs are divided by a temperature, and the scores of labels by another. This changes
the probabilities of arcs, trees and labels, but neither the best tree nor its labels. Each
temperature minimises the mean loss of the predicted arcs, or of their labels: −log of the
probability of the outcome, right or wrong. Arcs that cannot be right, since their sentence is
wrong, count too.

The probabilities of arcs are then mapped to confidences, as for entities: by a slope and a shift of
the log-odds, with or without a further shift for the most probable label of the arc. The confidence
of a labelled arc is the confidence of the arc times the probability of the label given the arc. So
it is never above the confidence of the arc. This map does not apply to single trees and their
weights.

A whole tree is right if its sentence and each of its arcs is right. Its probability under the model
is the product of the probabilities of the sentence, of the tree at the temperature, and of its
labels. A slope and a shift of the log-odds map it to a confidence. Trees with and without labels
have separate maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.util import minibatch

from spacy_latent.analysis.arc_calibration import ARC, LABELLED_ARC, judged_arcs
from spacy_latent.analysis.independent_texts import IndependentTexts, independent_texts
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.thresholds import ThresholdResult
from spacy_latent.annotations import write
from spacy_latent.errors import LatentError
from spacy_latent.evaluation.calibration_examples import (
    Examples,
    choose_component,
    examples_up_to,
    prepared,
)
from spacy_latent.evaluation.calibration_fit import (
    UNCHANGED,
    Gain,
    TemperatureFit,
    at_temperature,
    choose_confidence,
    fit_map,
    folds_of,
    gain_of,
    left_out_confidences,
    surprise,
)
from spacy_latent.evaluation.covering_sets import Coverage, arc_scores
from spacy_latent.evaluation.judged_parses import BATCH, JudgedParses, judge_parses
from spacy_latent.evaluation.precise_threshold import checked_coverage, precise_threshold
from spacy_latent.pipeline.learnt_calibration import confidence_of
from spacy_latent.pipeline.learnt_parse_calibration import LEAST_TREE
from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration as ParseCalibration
from spacy_latent.pipeline.stored_component import changed
from spacy_latent.structures.derivatives import recording


@dataclass
class Fitted:
    """Predictions to which a calibration was fitted.

    Attributes:
        gain: reduction of the loss of predictions left out of the fit, in five folds of texts.
        before, after: predictions with their probabilities as trained, and as calibrated.
        crossed: predictions of each text with confidences from a fit to the other folds.
    """

    gain: Gain
    before: JudgedEntities
    after: JudgedEntities
    crossed: JudgedEntities


@dataclass
class FittedTemperature(Fitted):
    """A temperature, 1 if it was not kept, and the arcs that it was fitted to."""

    temperature: float

    @property
    def kept(self) -> bool:
        """True if the fitted temperature is used; otherwise it is 1."""
        return self.temperature != 1


@dataclass
class FittedMap(Fitted):
    """A slope and a shift of log-odds, 1 and 0 if they were not kept, for arcs or whole trees.

    The gain is measured against the same predictions with only the temperature.

    Attributes:
        shifts: further shift by label, for arcs; empty for no such shifts.
        losses: mean loss of each map that was tried, on predictions left out of its fit.
    """

    slope: float
    shift: float
    shifts: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """True if the fitted map is used; otherwise it changes nothing."""
        return (self.slope, self.shift) != (1.0, 0.0) or any(self.shifts.values())


@dataclass
class CalibratedParses:
    """Result of :func:`calibrate`.

    Attributes:
        arcs: the temperature of trees, with the confidences of arcs.
        labelled: the temperature of labels, with the confidences of labelled arcs. Its gain is
            measured on the labels of right arcs.
        confidences: the map of arcs, with the same confidences as ``arcs``.
        labelled_trees: the map of whole trees with their labels.
        covered: coverage of the sets of heads on the texts of the fit, or None without sets.
    """

    calibration: ParseCalibration
    arcs: FittedTemperature
    labelled: FittedTemperature
    confidences: FittedMap
    trees: FittedMap
    labelled_trees: FittedMap
    covered: Coverage | None = None

    @property
    def fits(self) -> tuple[FittedTemperature | FittedMap, ...]:
        """The fits, each with another kind of prediction."""
        return self.arcs, self.labelled, self.trees, self.labelled_trees


@recording()
def calibrate(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    *,
    confidence: bool | None = None,
    coverage: float | None = None,
    progress: Progress = silent,
) -> CalibratedParses:
    """Fit temperatures and maps of a parser and store them in it, each if it gains.

    Each is kept if predictions left out of its fit, in five folds of texts, gain by more than the
    standard error of that gain. Words without a known head do not count.

    Args:
        examples: as in :func:`spacy_latent.evaluation.entity_calibration.calibrate`, with heads.
        component: name of a ``latent_parser``; may be left out if the pipeline has one.
        confidence: whether to fit a slope and a shift of arcs; None to fit them if held-out arcs
            support it. With True this fit is kept in any case.
        coverage: share of the heads of a text that the sets of its words are to hold, on average
            over texts; None for no sets.

    Raises:
        LatentError: if no text has heads, or if no sets of useful size have this coverage.
    """
    coverage = checked_coverage(coverage)
    name, pipe, made = prepared("calibrate", nlp, component, "latent_parser", examples, progress)
    documents = independent_texts(example.reference for example in made)
    before = pipe.calibration
    with changed(pipe.cfg, calibration=None):
        table = judge_parses(pipe, made, progress) if made else None
    if table is None or not len(table.arcs.right):
        raise LatentError(
            f"No text has annotated heads, so {name!r} cannot be calibrated. Give text with "
            "token.head that it was not trained on."
        )
    found = _fit(table, documents, confidence)
    kept = any(fit.kept for fit in (*found.fits, found.confidences))
    pipe.calibration = found.calibration if kept else None
    if coverage is not None:
        try:
            scores = arc_scores(pipe, made, documents, progress)
            least = scores.least(coverage)
        except BaseException:
            pipe.calibration = before
            raise
        found.covered = scores.covered(least)
        found.calibration = replace(found.calibration, coverage=coverage, least=least)
        pipe.calibration = found.calibration
    return found


def measure_sets(
    nlp: Language, examples: Examples, component: str | None = None, progress: Progress = silent
) -> Coverage | None:
    """Measure the sets of heads on annotated texts; None for a parser without sets.

    The arguments are the same as in :func:`calibrate`.
    """
    name = choose_component(nlp, component, "latent_parser")
    pipe: Any = nlp.get_pipe(name)
    if pipe.calibration is None or pipe.calibration.least is None:
        return None
    made = examples_up_to("measure", nlp, name, examples, progress)
    documents = independent_texts(example.reference for example in made)
    return arc_scores(pipe, made, documents, progress).covered(pipe.calibration.least)


def measure(
    nlp: Language, examples: Examples, component: str | None = None, progress: Progress = silent
) -> dict[str, JudgedEntities]:
    """Judge the arcs and trees of a parser by annotation, without a new calibration.

    The arguments are the same as in :func:`calibrate`.

    Returns:
        Arcs, labelled arcs, trees and labelled trees, by these nouns.
    """
    name, pipe, made = prepared("measure", nlp, component, "latent_parser", examples, progress)
    with changed(pipe.cfg, annotate="probabilities", alternatives=0):
        for batch in minibatch(progress(made, "Arcs", len(made)), BATCH):
            docs = [example.predicted for example in batch]
            for doc, parse in zip(docs, pipe.predict(docs)):
                write(doc, name, parse.spans)
    return judged_arcs(made, name)


def precise_arcs(
    found: CalibratedParses, precision: float, *, confidence: float | None = 0.9, few: bool = False
) -> dict[str, ThresholdResult]:
    """Return the lowest thresholds at which arcs, and whole trees, have a precision.

    A parser has no setting for such a threshold, since it drops no arcs. Select arcs and trees by
    their probabilities. For the other arguments see
    :func:`spacy_latent.evaluation.entity_calibration.set_precision`.

    Args:
        found: result of :func:`calibrate`.

    Returns:
        The thresholds by noun, without those that the texts do not support.

    Raises:
        LatentError: if the texts support none.
    """
    made: dict[str, ThresholdResult] = {}
    refused: list[LatentError] = []
    for judged in (fit.after for fit in found.fits):
        try:
            made[judged.noun] = precise_threshold(judged, precision, confidence=confidence, few=few)
        except LatentError as error:
            refused.append(error)
    if not made:
        raise refused[0]
    return made


def _fit(
    table: JudgedParses, documents: IndependentTexts, confidence: bool | None
) -> CalibratedParses:
    folds, own = folds_of(documents), table.arcs
    arcs = TemperatureFit.of(own.said, own.right, own.texts, folds)
    # Only labels of right arcs count, since a label of a wrong arc cannot be right.
    worded = own.right & ~own.roots
    labels = TemperatureFit.of(
        own.of_labels[worded], own.labelled_right[worded], own.texts[worded], folds
    )

    plain = own.said[:, UNCHANGED]
    fold = folds[own.texts]
    confidences = _fit_confidences(table, arcs, folds, documents, confidence)
    own_results = confidences.before, confidences.after, confidences.crossed
    trees = FittedTemperature(arcs.gain, *own_results, math.exp(arcs.kept))
    after, crossed = map(np.asarray, (trees.after.probabilities, trees.crossed.probabilities))
    before_labels = plain * own.of_labels[:, UNCHANGED]
    after_labels = after * at_temperature(own.of_labels, labels.kept)
    crossed_labels = crossed * at_temperature(own.of_labels, labels.by_fold[fold])
    labelled = FittedTemperature(
        labels.gain,
        table.judged(LABELLED_ARC, before_labels, own.labelled_right),
        documents.group(table.judged(LABELLED_ARC, after_labels, own.labelled_right)),
        table.judged(LABELLED_ARC, crossed_labels, own.labelled_right),
        math.exp(labels.kept),
    )
    fold_of_trees = folds[np.array(table.judge.trees.texts, dtype="int64")]

    def tempered(said: np.ndarray, fit: TemperatureFit) -> tuple[np.ndarray, np.ndarray]:
        left_out = fit.by_fold[fold_of_trees] if fit.kept else 0.0
        return at_temperature(said, fit.kept), at_temperature(said, left_out)

    whole, crossed_whole = tempered(table.trees, arcs)
    products, crossed_products = tempered(table.labels_of_trees, labels)
    of_trees = _fit_map(table.judge.trees, whole, crossed_whole, folds, documents)
    of_labelled_trees = _fit_map(
        table.judge.labelled, whole * products, crossed_whole * crossed_products, folds, documents
    )
    # As in ParseCalibration.tree_confidences.
    of_labelled_trees.after = _at_most(of_labelled_trees.after, of_trees.after)
    of_labelled_trees.crossed = _at_most(of_labelled_trees.crossed, of_trees.crossed)
    made = ParseCalibration(
        temperature=trees.temperature,
        label_temperature=labelled.temperature,
        slope=confidences.slope,
        shift=confidences.shift,
        shifts=confidences.shifts,
        tree_slope=of_trees.slope,
        tree_shift=of_trees.shift,
        labelled_tree_slope=of_labelled_trees.slope,
        labelled_tree_shift=of_labelled_trees.shift,
        docs=len(folds),
        arcs=len(own.right),
    )
    return CalibratedParses(made, trees, labelled, confidences, of_trees, of_labelled_trees)


def _fit_confidences(
    table: JudgedParses,
    fit: TemperatureFit,
    folds: np.ndarray,
    documents: IndependentTexts,
    confidence: bool | None,
) -> FittedMap:
    """Fit the map of arcs at the temperature, with the fold of each doc, ``(D,)``."""
    own = table.arcs
    fold = folds[own.texts]
    warm = table.judged(ARC, at_temperature(own.said, fit.kept), own.right)
    by_fold = table.judged(ARC, at_temperature(own.said, fit.by_fold[fold]), own.right)
    apart = by_fold if fit.kept else warm
    sure, losses = choose_confidence(apart, folds, confidence)
    mapped = left_out_confidences(apart, sure, folds)
    gain = gain_of(surprise(apart.probabilities, own.right), surprise(mapped, own.right), own.texts)
    before = table.judged(ARC, own.said[:, UNCHANGED], own.right)
    if not sure.changes_odds or not (gain.is_sure or confidence):
        return FittedMap(gain, before, documents.group(warm), by_fold, 1.0, 0.0, losses=losses)
    pairs = zip(warm.probabilities, warm.labels)
    after = replace(warm, probabilities=[sure.confidence(*pair) for pair in pairs])
    crossed = replace(apart, probabilities=mapped.tolist())
    parts = sure.slope, sure.shift, sure.shifts, losses
    return FittedMap(gain, before, documents.group(after), crossed, *parts)


def _fit_map(
    before: JudgedEntities,
    warm: np.ndarray,
    left_out: np.ndarray,
    folds: np.ndarray,
    documents: IndependentTexts,
) -> FittedMap:
    """Fit the map of whole trees.

    Args:
        warm, left_out: probabilities of the trees at the temperature, and at the temperatures
            fitted to the other folds, ``(S,)``.
        folds: fold of each doc, ``(D,)``.
    """
    apart = replace(before, probabilities=left_out.tolist())
    sure, mapped, gain = fit_map(apart, folds)
    after = [confidence_of(p, sure.slope, sure.shift, LEAST_TREE) for p in warm.tolist()]
    crossed = replace(before, probabilities=mapped.tolist()) if gain.is_sure else apart
    after_all = documents.group(replace(before, probabilities=after))
    return FittedMap(gain, before, after_all, crossed, sure.slope, sure.shift)


def _at_most(labelled: JudgedEntities, trees: JudgedEntities) -> JudgedEntities:
    """Return labelled trees, with probabilities reduced to those of the same unlabelled trees."""
    pairs = zip(labelled.probabilities, trees.probabilities)
    return replace(labelled, probabilities=[min(pair) for pair in pairs])
