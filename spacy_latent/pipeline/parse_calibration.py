"""Calibration of the probabilities of arcs and labels of ``latent_parser`` on held-out text.

The scores of arcs are divided by a temperature, which changes every probability of trees and
arcs, and those of labels by another. Neither changes the best tree or its labels. Each temperature
is where the probabilities of the arcs, or labels, that the parser finds have the least mean loss,
−log of the probability of what is the case. Arcs that cannot be right, since their sentence is
wrong, count too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.training import Example
from spacy.util import minibatch

from spacy_latent.analysis.arc_calibration import ARC, LABELLED_ARC, gold_arcs, judged_arcs
from spacy_latent.analysis.calibration import JudgedEntities
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.annotations import write
from spacy_latent.errors import LatentError
from spacy_latent.pipeline.calibration_fit import (
    FOLDS,
    SPREAD,
    Gain,
    folds_of,
    gain_of,
    surprise,
)
from spacy_latent.pipeline.entity_calibration import Examples, examples_up_to, given_examples
from spacy_latent.pipeline.learnt_calibration import ParseCalibration, parse_components
from spacy_latent.structures.derivatives import recording

# Logarithms of the temperatures at which probabilities are computed: .5 to 10.
LOGARITHMS = np.arange(-0.7, 2.31, 0.1)
UNCHANGED = int(np.abs(LOGARITHMS).argmin())
BATCH = 64


@dataclass
class FittedTemperature:
    """A temperature and the predictions that it was fitted to.

    Attributes:
        temperature: 1 if it was not kept.
        gain: gain of predictions left out of the fit, in five folds of texts.
        before, after: predictions with their probabilities as trained, and with this temperature.
        crossed: predictions of each text with the temperature fitted to the other folds.
    """

    temperature: float
    gain: Gain
    before: JudgedEntities
    after: JudgedEntities
    crossed: JudgedEntities

    @property
    def kept(self) -> bool:
        return self.temperature != 1


@dataclass
class CalibratedParses:
    """Result of :func:`calibrate`.

    Attributes:
        arcs: the temperature of trees, with arcs.
        labelled: the temperature of labels, with labelled arcs. Its gain is of the labels of right
            arcs.
    """

    calibration: ParseCalibration
    arcs: FittedTemperature
    labelled: FittedTemperature


def choose_parser(nlp: Language, component: str | None) -> str:
    known = parse_components(nlp)
    if component is None and len(known) == 1:
        return known[0]
    if component in known:
        return str(component)
    there = ", ".join(nlp.pipe_names) or "none"
    raise LatentError(
        f"Expected the name of a latent_parser as component, and it is {component!r}. The "
        f"components are {there}; parsers with probabilities are {', '.join(known) or 'none'}."
    )


@recording()
def calibrate(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    *,
    progress: Progress = silent,
) -> CalibratedParses:
    """Fit the temperatures of a parser and store them in it, each if it gains.

    A temperature is kept if predictions left out of its fit, in five folds of texts, gain by more
    than the standard error of that gain.

    Args:
        examples: examples with heads on which the parser was not trained, or a function that
            returns them. Predicted docs are not processed yet. Words without a known head do not
            count.
        component: name of a ``latent_parser``; may be left out if the pipeline has one.
        progress: see :class:`spacy_latent.analysis.progress.Progress`.

    Raises:
        LatentError: if no text has heads.
    """
    name = choose_parser(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    given = given_examples("calibrate", examples)
    made = [one for one in examples_up_to(nlp, name, given, progress) if len(one.predicted)]
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
    found = _fit(table, len(made))
    made_of_arcs = found.arcs.kept or found.labelled.kept
    pipe.calibration = found.calibration if made_of_arcs else None
    return found


def measure(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    progress: Progress = silent,
) -> dict[str, JudgedEntities]:
    """Judge the arcs of a parser by annotation, without a new calibration.

    The arguments are the same as in :func:`calibrate`.

    Returns:
        Arcs and labelled arcs, by these nouns.
    """
    name = choose_parser(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    given = given_examples("measure", examples)
    made = [one for one in examples_up_to(nlp, name, given, progress) if len(one.predicted)]
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


@dataclass
class _Table:
    """The A arcs of all texts at T temperatures.

    Attributes:
        arcs: probabilities ``(A, T)``.
        of_labels: probabilities of labels given the arcs, ``(A, T)``.
        right, labelled_right: ``(A,)`` bool.
        roots: arcs without a label to be wrong, ``(A,)`` bool.
        texts: ``(A,)`` int64.
        labels: label of each.
        unannotated: number of further words, without a known head.
    """

    arcs: np.ndarray
    of_labels: np.ndarray
    right: np.ndarray
    labelled_right: np.ndarray
    roots: np.ndarray
    texts: np.ndarray
    labels: list[str]
    unannotated: int


def _table(pipe: Any, examples: Sequence[Example], progress: Progress) -> _Table:
    from spacy_latent.models.labelled_parser import run
    from spacy_latent.models.parse_temperatures import arc_probabilities
    from spacy_latent.models.parses import Request

    names = pipe.all_labels
    request = Request(names, max_length=pipe.model.attrs["max_length"])
    temperatures = np.exp(LOGARITHMS).tolist()
    columns: list[list[np.ndarray]] = [[] for _ in range(6)]
    labels: list[str] = []
    unannotated, text = 0, 0
    for batch in minibatch(progress(examples, "Arcs", len(examples)), BATCH):
        docs = [example.predicted for example in batch]
        work = partial(arc_probabilities, docs=docs, request=request, temperatures=temperatures)
        parses, _ = run(pipe.model, docs, work, is_train=False)
        for example, parse in zip(batch, parses):
            heads, gold = gold_arcs(example)
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
            )
            for column, part in zip(columns, parts):
                column.append(part)
            labels += own
            text += 1
    arcs, of_labels, right, labelled, roots, texts = map(np.concatenate, columns)
    return _Table(arcs, of_labels, right, labelled, roots, texts, labels, unannotated)


def _fit(table: _Table, texts: int) -> CalibratedParses:
    arcs = _Fit.of(table.arcs, table.right, table.texts, texts)
    # A label can only be right with its arc.
    worded = table.right & ~table.roots
    labels = _Fit.of(
        table.of_labels[worded], table.labelled_right[worded], table.texts[worded], texts
    )
    every = np.arange(len(table.right))

    def judged(noun: str, said: np.ndarray, right: np.ndarray) -> JudgedEntities:
        return JudgedEntities(
            said.tolist(),
            right.tolist(),
            table.labels,
            len(right),
            unannotated=table.unannotated,
            texts=table.texts.tolist(),
            noun=noun,
        )

    plain = table.arcs[:, UNCHANGED]
    after = _at(table.arcs, arcs.kept)
    crossed = _at(table.arcs, arcs.by_fold[folds_of(table.texts, texts)])
    trees = FittedTemperature(
        math.exp(arcs.kept) if arcs.gain.is_sure else 1.0,
        arcs.gain,
        *(judged(ARC, said, table.right) for said in (plain, after, crossed)),
    )
    before_labels = plain * table.of_labels[:, UNCHANGED]
    after_labels = after * _at(table.of_labels, labels.kept)
    crossed_labels = crossed * _at(table.of_labels, labels.by_fold[folds_of(table.texts, texts)])
    both = (before_labels, after_labels, crossed_labels)
    labelled = FittedTemperature(
        math.exp(labels.kept) if labels.gain.is_sure else 1.0,
        labels.gain,
        *(judged(LABELLED_ARC, said, table.labelled_right) for said in both),
    )
    made = ParseCalibration(
        temperature=trees.temperature,
        label_temperature=labelled.temperature,
        docs=texts,
        arcs=len(every),
    )
    return CalibratedParses(made, trees, labelled)


@dataclass
class _Fit:
    """Logarithm of a temperature.

    Attributes:
        kept: the logarithm that is applied, 0 without a sure gain.
        gain: gain of what is left out.
        by_fold: logarithms fitted to all folds but one, ``(FOLDS,)``.
    """

    kept: float
    gain: Gain
    by_fold: np.ndarray

    @classmethod
    def of(cls, said: np.ndarray, right: np.ndarray, texts: np.ndarray, count: int) -> _Fit:
        """Fit to predictions ``(A, T)``, of which those in ``right`` ``(A,)`` are right."""
        columns = [surprise(said[:, t], right) for t in range(said.shape[1])]
        losses = np.stack(columns, 1)
        fold = folds_of(texts, count)
        of_folds = np.stack([losses[fold == k].sum(0) for k in range(FOLDS)])
        whole = of_folds.sum(0)
        by_fold = np.array([_lowest(whole - own) for own in of_folds])
        gain = gain_of(losses[:, UNCHANGED], surprise(_at(said, by_fold[fold]), right), texts)
        return cls(_lowest(whole) if gain.is_sure else 0.0, gain, by_fold)


def _lowest(losses: np.ndarray) -> float:
    """Return the logarithm of the temperature with the least loss, between the computed ones.

    A Gaussian prior draws it to 0, as in :class:`~spacy_latent.pipeline.calibration_fit.ScoreFit`.
    """
    drawn = losses + 0.5 * (LOGARITHMS / SPREAD) ** 2
    i = int(np.clip(drawn.argmin(), 1, len(drawn) - 2))
    left, middle, right = drawn[i - 1 : i + 2]
    curvature = left - 2 * middle + right
    # The vertex of the parabola through three points.
    offset = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(LOGARITHMS[i] + np.clip(offset, -1, 1) * (LOGARITHMS[1] - LOGARITHMS[0]))


def _at(said: np.ndarray, logarithms: np.ndarray | float) -> np.ndarray:
    """Return probabilities ``(A,)`` at a temperature, or at one for each, between computed ones."""
    place = (np.broadcast_to(logarithms, len(said)) - LOGARITHMS[0]) / (
        LOGARITHMS[1] - LOGARITHMS[0]
    )
    below = np.clip(place.astype("int64"), 0, len(LOGARITHMS) - 2)
    share, rows = place - below, np.arange(len(said))
    return (1 - share) * said[rows, below] + share * said[rows, below + 1]


__all__ = ["CalibratedParses", "FittedTemperature", "ParseCalibration", "calibrate", "measure"]
