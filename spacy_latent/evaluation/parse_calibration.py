"""Calibration of the probabilities of arcs, labels and whole trees of ``latent_parser``.

The scores of arcs are divided by a temperature, which changes every probability of trees and
arcs, and those of labels by another. Neither changes the best tree or its labels. Each temperature
is where the probabilities of the arcs, or labels, that the parser finds have the least mean loss,
−log of the probability of what is the case. Arcs that cannot be right, since their sentence is
wrong, count too.

A whole tree is right if its sentence and each of its arcs is. Its probability under the model is
that of the sentence, of the tree at this temperature, and of its labels. It is then mapped to a
confidence: a slope and a shift of the log-odds, for trees with labels and for those without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.training import Example
from spacy.util import minibatch

from spacy_latent.analysis.arc_calibration import (
    ARC,
    LABELLED_ARC,
    TreeJudge,
    gold_arcs,
    gold_sentences,
    is_sentence,
    judged_arcs,
)
from spacy_latent.analysis.calibration import JudgedEntities, ThresholdResult
from spacy_latent.analysis.independent_texts import IndependentTexts, independent_texts
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.annotations import write
from spacy_latent.errors import LatentError
from spacy_latent.evaluation.calibration_examples import Examples, choose_component, examples_up_to
from spacy_latent.evaluation.calibration_fit import (
    TEMPERATURES,
    UNCHANGED,
    Gain,
    TemperatureFit,
    at_temperature,
    fit_map,
    folds_of,
)
from spacy_latent.evaluation.entity_calibration import precise_threshold
from spacy_latent.pipeline.learnt_calibration import (
    LEAST_TREE,
    ParseCalibration,
    confidence_of,
    parse_components,
)
from spacy_latent.structures.derivatives import recording

BATCH = 64


@dataclass
class Fitted:
    """The predictions that a calibration was fitted to.

    Attributes:
        gain: gain of predictions left out of the fit, in five folds of texts.
        before, after: predictions with their probabilities as trained, and as calibrated.
        crossed: predictions of each text with what is fitted to the other folds.
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
        return self.temperature != 1


@dataclass
class FittedMap(Fitted):
    """A slope and a shift of log-odds, 1 and 0 if they were not kept, for whole trees.

    The gain is over the trees at the temperature alone.
    """

    slope: float
    shift: float

    @property
    def kept(self) -> bool:
        return (self.slope, self.shift) != (1.0, 0.0)


@dataclass
class CalibratedParses:
    """Result of :func:`calibrate`.

    Attributes:
        arcs: the temperature of trees, with arcs.
        labelled: the temperature of labels, with labelled arcs. Its gain is of the labels of right
            arcs.
        labelled_trees: the map of whole trees with their labels.
    """

    calibration: ParseCalibration
    arcs: FittedTemperature
    labelled: FittedTemperature
    trees: FittedMap
    labelled_trees: FittedMap

    @property
    def fits(self) -> tuple[FittedTemperature | FittedMap, ...]:
        return self.arcs, self.labelled, self.trees, self.labelled_trees


@recording()
def calibrate(
    nlp: Language, examples: Examples, component: str | None = None, *, progress: Progress = silent
) -> CalibratedParses:
    """Fit temperatures and maps of a parser and store them in it, each if it gains.

    Each is kept if predictions left out of its fit, in five folds of texts, gain by more than the
    standard error of that gain.

    Args:
        examples: examples with heads on which the parser was not trained, or a function that
            returns them. Predicted docs are not processed yet. Words without a known head do not
            count. References that are pieces of documents name them in
            ``doc.user_data["document"]``; then a promised precision counts documents as
            independent, not docs.
        component: name of a ``latent_parser``; may be left out if the pipeline has one.

    Raises:
        LatentError: if no text has heads.
    """
    name = choose_component(nlp, component, parse_components(nlp), "latent_parser")
    pipe: Any = nlp.get_pipe(name)
    made = examples_up_to("calibrate", nlp, name, examples, progress)
    documents = independent_texts(example.reference for example in made)
    before = pipe.calibration
    pipe.calibration = None
    try:
        table = _table(pipe, made, progress) if made else None
    finally:
        pipe.calibration = before
    if table is None or not len(table.right):
        raise LatentError(
            f"No text has annotated heads, so {name!r} cannot be calibrated. Give text with "
            "token.head that it was not trained on."
        )
    found = _fit(table, documents)
    pipe.calibration = found.calibration if any(fit.kept for fit in found.fits) else None
    return found


def measure(
    nlp: Language, examples: Examples, component: str | None = None, progress: Progress = silent
) -> dict[str, JudgedEntities]:
    """Judge the arcs and trees of a parser by annotation, without a new calibration.

    The arguments are the same as in :func:`calibrate`.

    Returns:
        Arcs, labelled arcs, trees and labelled trees, by these nouns.
    """
    name = choose_component(nlp, component, parse_components(nlp), "latent_parser")
    pipe: Any = nlp.get_pipe(name)
    made = examples_up_to("measure", nlp, name, examples, progress)
    before = dict(pipe.cfg)
    pipe.cfg.update(annotate="probabilities", alternatives=0)
    try:
        for batch in minibatch(progress(made, "Arcs", len(made)), BATCH):
            docs = [example.predicted for example in batch]
            for doc, parse in zip(docs, pipe.predict(docs)):
                write(doc, name, parse.spans)
    finally:
        pipe.cfg.update(before)
    return judged_arcs(made, name)


def precise_arcs(
    found: CalibratedParses, precision: float, *, confidence: float | None = 0.9, few: bool = False
) -> dict[str, ThresholdResult]:
    """Return the least probability from which on arcs, or whole trees, have a precision.

    A parser drops no arc, so it has no such setting: select by the probabilities. The
    other arguments are those of :func:`spacy_latent.evaluation.entity_calibration.set_precision`.

    Args:
        found: result of :func:`calibrate`.

    Returns:
        The thresholds by noun, without those that the texts do not support.

    Raises:
        LatentError: if the texts support none.
    """
    made: dict[str, ThresholdResult] = {}
    refused: list[LatentError] = []
    for fit in found.fits:
        try:
            made[fit.after.noun] = precise_threshold(
                fit.after, precision, confidence=confidence, few=few
            )
        except LatentError as error:
            refused.append(error)
    if not made:
        raise refused[0]
    return made


@dataclass
class _Table:
    """The A arcs of all texts at T temperatures.

    Attributes:
        arcs: probabilities ``(A, T)``.
        of_labels: probabilities of labels given the arcs, ``(A, T)``.
        right, labelled_right: ``(A,)`` bool.
        roots: arcs without a label to be wrong, ``(A,)`` bool.
        texts: doc of each, ``(A,)`` int64.
        lengths: distance of each between head and modifier, 0 for roots, ``(A,)`` int64.
        unannotated: number of further words, without a known head.
        judge: whole trees, with the probabilities as trained.
        trees: probabilities of these trees, ``(S, T)``.
        labels_of_trees: products of the probabilities of their labels, ``(S, T)``.
    """

    arcs: np.ndarray
    of_labels: np.ndarray
    right: np.ndarray
    labelled_right: np.ndarray
    roots: np.ndarray
    texts: np.ndarray
    labels: list[str]
    lengths: np.ndarray
    unannotated: int
    judge: TreeJudge
    trees: np.ndarray
    labels_of_trees: np.ndarray

    def judged(self, noun: str, said: np.ndarray, right: np.ndarray) -> JudgedEntities:
        return JudgedEntities(
            said.tolist(),
            right.tolist(),
            self.labels,
            len(right),
            unannotated=self.unannotated,
            texts=self.texts.tolist(),
            lengths=self.lengths.tolist(),
            noun=noun,
        )


def _table(pipe: Any, examples: Sequence[Example], progress: Progress) -> _Table:
    from spacy_latent.models.labelled_parser import run
    from spacy_latent.models.parse_temperatures import arc_probabilities
    from spacy_latent.models.parses import Request

    names = pipe.all_labels
    request = Request(names, max_length=pipe.model.attrs["max_length"])
    columns: list[list[np.ndarray]] = [[] for _ in range(7)]
    labels: list[str] = []
    unannotated, text = 0, 0
    judge = TreeJudge()
    trees, of_trees = [np.zeros((0, len(TEMPERATURES)))], [np.zeros((0, len(TEMPERATURES)))]
    for batch in minibatch(progress(examples, "Arcs", len(examples)), BATCH):
        docs = [example.predicted for example in batch]
        work = partial(arc_probabilities, docs=docs, request=request, temperatures=TEMPERATURES)
        parses, _ = run(pipe.model, docs, work, is_train=False)
        for example, parse in zip(batch, parses):
            heads, gold = gold_arcs(example)
            numbers = gold_sentences(example)
            known = np.flatnonzero(heads >= 0)
            words = sum(not token.is_space for token in example.predicted)
            unannotated += words - len(known)
            right = parse.heads[known] == heads[known]
            roots = parse.heads[known] == known
            own = [names[place] for place in parse.labels[known]]
            same = np.array([a == gold[i] for a, i in zip(own, known)], dtype=bool)
            parts = (
                parse.arcs[known],
                parse.of_labels[known],
                right,
                right & (roots | same),
                roots,
                np.full(len(known), text),
                np.abs(parse.heads[known] - known),
            )
            for column, part in zip(columns, parts):
                column.append(part)
            labels += own
            right_at = dict(zip(known.tolist(), zip(parts[2].tolist(), parts[3].tolist())))
            for (start, end), said in zip(parse.sentences, parse.trees):
                judged = [right_at[i] for i in range(start, end) if i in right_at]
                tokens = example.predicted[start:end]
                product = parse.of_labels[start:end].prod(0)
                if judge.add(
                    text,
                    sum(not token.is_space for token in tokens),
                    [one for one, _ in judged],
                    [one for _, one in judged],
                    float(said[UNCHANGED]),
                    float(said[UNCHANGED] * product[UNCHANGED]),
                    is_sentence(numbers, start, end),
                ):
                    trees.append(said[None])
                    of_trees.append(product[None])
            text += 1
    arcs, of_labels, right, labelled, roots, texts, lengths = map(np.concatenate, columns)
    return _Table(
        arcs=arcs,
        of_labels=of_labels,
        right=right,
        labelled_right=labelled,
        roots=roots,
        texts=texts,
        labels=labels,
        lengths=lengths,
        unannotated=unannotated,
        judge=judge,
        trees=np.concatenate(trees),
        labels_of_trees=np.concatenate(of_trees),
    )


def _fit(table: _Table, documents: IndependentTexts) -> CalibratedParses:
    folds = folds_of(documents)
    arcs = TemperatureFit.of(table.arcs, table.right, table.texts, folds)
    # A label can only be right with its arc.
    worded = table.right & ~table.roots
    labels = TemperatureFit.of(
        table.of_labels[worded], table.labelled_right[worded], table.texts[worded], folds
    )
    every = np.arange(len(table.right))

    plain = table.arcs[:, UNCHANGED]
    after = at_temperature(table.arcs, arcs.kept)
    fold = folds[table.texts]
    crossed = at_temperature(table.arcs, arcs.by_fold[fold])
    trees = FittedTemperature(
        arcs.gain,
        table.judged(ARC, plain, table.right),
        documents.group(table.judged(ARC, after, table.right)),
        table.judged(ARC, crossed, table.right),
        math.exp(arcs.kept),
    )
    before_labels = plain * table.of_labels[:, UNCHANGED]
    after_labels = after * at_temperature(table.of_labels, labels.kept)
    crossed_labels = crossed * at_temperature(table.of_labels, labels.by_fold[fold])
    labelled = FittedTemperature(
        labels.gain,
        table.judged(LABELLED_ARC, before_labels, table.labelled_right),
        documents.group(table.judged(LABELLED_ARC, after_labels, table.labelled_right)),
        table.judged(LABELLED_ARC, crossed_labels, table.labelled_right),
        math.exp(labels.kept),
    )
    fold_of_trees = folds[np.array(table.judge.trees.texts, dtype="int64")]

    def tempered(said: np.ndarray, fit: TemperatureFit) -> tuple[np.ndarray, np.ndarray]:
        left_out = fit.by_fold[fold_of_trees] if fit.kept else 0.0
        return at_temperature(said, fit.kept), at_temperature(said, left_out)

    whole, crossed_whole = tempered(table.trees, arcs)
    own, crossed_own = tempered(table.labels_of_trees, labels)
    of_trees = _fit_map(table.judge.trees, whole, crossed_whole, folds, documents)
    of_labelled_trees = _fit_map(
        table.judge.labelled, whole * own, crossed_whole * crossed_own, folds, documents
    )
    # As in ParseCalibration.tree_confidences.
    of_labelled_trees.after = _at_most(of_labelled_trees.after, of_trees.after)
    of_labelled_trees.crossed = _at_most(of_labelled_trees.crossed, of_trees.crossed)
    made = ParseCalibration(
        temperature=trees.temperature,
        label_temperature=labelled.temperature,
        tree_slope=of_trees.slope,
        tree_shift=of_trees.shift,
        labelled_tree_slope=of_labelled_trees.slope,
        labelled_tree_shift=of_labelled_trees.shift,
        docs=len(folds),
        arcs=len(every),
    )
    return CalibratedParses(made, trees, labelled, of_trees, of_labelled_trees)


def _fit_map(
    before: JudgedEntities,
    warm: np.ndarray,
    left_out: np.ndarray,
    folds: np.ndarray,
    documents: IndependentTexts,
) -> FittedMap:
    """Fit the map of whole trees.

    Args:
        warm: their probabilities at the temperature, ``(S,)``.
        left_out: their probabilities at temperatures fitted to the other folds, ``(S,)``.
        folds: fold of each doc, ``(D,)``.
    """
    apart = replace(before, probabilities=left_out.tolist())
    sure, mapped, gain = fit_map(apart, folds)
    after = [confidence_of(p, sure.slope, sure.shift, LEAST_TREE) for p in warm.tolist()]
    crossed = replace(before, probabilities=mapped.tolist()) if gain.is_sure else apart
    after_all = documents.group(replace(before, probabilities=after))
    return FittedMap(gain, before, after_all, crossed, sure.slope, sure.shift)


def _at_most(labelled: JudgedEntities, trees: JudgedEntities) -> JudgedEntities:
    """Return labelled trees with probabilities that are not above those of the same trees."""
    pairs = zip(labelled.probabilities, trees.probabilities)
    return replace(labelled, probabilities=[min(pair) for pair in pairs])


__all__ = [
    "CalibratedParses",
    "FittedMap",
    "FittedTemperature",
    "ParseCalibration",
    "calibrate",
    "measure",
    "precise_arcs",
]
