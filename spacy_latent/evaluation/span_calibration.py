"""Calibration of the confidences of spans of ``tree_spancat`` on held-out text.

The scores of spans are divided by a temperature, which changes the probabilities of all trees and
spans. A slope and shifts of the log-odds then map these to confidences. The predicted spans stay
the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import minibatch
from thinc.api import xp2torch

from spacy_latent.analysis.independent_texts import independent_texts
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.span_calibration import SET_OF_SPANS, SPAN, SpanJudge, gold_labels
from spacy_latent.errors import LatentError
from spacy_latent.evaluation.calibration_examples import Examples, prepared
from spacy_latent.evaluation.calibration_fit import (
    TEMPERATURES,
    UNCHANGED,
    TemperatureFit,
    at_temperature,
    choose_confidence,
    folds_of,
    gain_of,
    left_out_confidences,
    surprise,
)
from spacy_latent.evaluation.covering_sets import span_scores
from spacy_latent.evaluation.entity_calibration import Calibrated, Measured
from spacy_latent.evaluation.precise_threshold import checked_coverage
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from spacy_latent.pipeline.stored_component import changed
from spacy_latent.structures.derivatives import recording

BATCH = 128


@recording()
def calibrate(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    *,
    confidence: bool | None = None,
    coverage: float | None = None,
    progress: Progress = silent,
) -> Calibrated:
    """Fit the calibration of a ``tree_spancat`` and store it in the component if it gains.

    The gain is measured on spans of texts left out of the fit, in five folds. If it is not larger
    than its standard error, the component stays as trained. Texts without the group ``spans_key``
    do not count.

    Args:
        examples: as in :func:`spacy_latent.evaluation.entity_calibration.calibrate`, with spans.
        component: name of a ``tree_spancat``; may be left out if the pipeline has one.
        confidence: whether to fit a slope and a shift; None to fit them if held-out spans support
            it. With True the fit is kept in any case.
        coverage: share of the annotated spans of a text that its set is to hold, on average over
            texts with spans; None for no sets.

    Raises:
        LatentError: if no text has spans of the component's labels, or if no sets of useful size
            have this coverage.
    """
    coverage = checked_coverage(coverage)
    name, pipe, made = prepared("calibrate", nlp, component, "tree_spancat", examples, progress)
    named = {label for one in made for label in gold_labels(one, pipe.key)}
    if not named & set(pipe.labels):
        raise LatentError(
            f"No text has spans of {name!r} in doc.spans[{pipe.key!r}], so it cannot be "
            f"calibrated. Its labels are {', '.join(pipe.labels) or 'none'}, and those of the "
            f"texts {', '.join(sorted(named)) or 'none'}. Give annotated text that it was not "
            "trained on."
        )
    earlier = pipe.calibration
    try:
        found = _fit(pipe, made, confidence, progress)
        if coverage is not None:
            documents = independent_texts(example.reference for example in made)
            scores = span_scores(pipe, made, documents, progress)
            least = scores.least(coverage)
            calibration = replace(found.calibration, coverage=coverage, least=least)
            found = replace(found, calibration=calibration, covered=scores.covered(least))
            pipe.calibration = calibration
    except BaseException:
        pipe.calibration = earlier
        raise
    return replace(found, unknown=tuple(sorted(named.difference(pipe.labels))))


def measure(
    nlp: Language, examples: Examples, component: str | None = None, progress: Progress = silent
) -> Measured:
    """Compare the spans of a component with annotation, without a new calibration.

    The arguments are the same as in :func:`calibrate`.
    """
    _, pipe, made = prepared("measure", nlp, component, "tree_spancat", examples, progress)
    spans, _ = _judge(pipe, made, progress)
    sets = None
    if pipe.calibration is not None and pipe.calibration.least is not None:
        documents = independent_texts(example.reference for example in made)
        sets = span_scores(pipe, made, documents, progress).covered(pipe.calibration.least)
    return Measured(spans, None, math.nan, sets)


def _fit(
    pipe: Any, made: Sequence[Example], confidence: bool | None, progress: Progress
) -> Calibrated:
    documents = independent_texts(example.reference for example in made)
    pipe.calibration = None
    table = _table(pipe, made, progress)
    spans = table.spans
    right, texts = np.asarray(spans.correct, dtype=bool), np.asarray(spans.texts, dtype="int64")
    folds = folds_of(documents)
    fit = TemperatureFit.of(table.said, right, texts, folds)
    left_out = at_temperature(table.said, fit.by_fold[folds[texts]])
    warm = replace(spans, probabilities=left_out.tolist())
    sure, confidence_losses = choose_confidence(warm, folds, confidence)
    crossed = replace(spans, probabilities=left_out_confidences(warm, sure, folds).tolist())
    trained = surprise(table.said[:, UNCHANGED], right)
    gain = gain_of(trained, surprise(crossed.probabilities, right), texts)
    counts = EntityCalibration(docs=len(made), entities=spans.gold)
    found = counts
    if gain.is_sure or confidence:
        found = replace(counts, temperature=math.exp(fit.best), **vars(sure))
    kept = found != counts
    pipe.calibration = found if kept else None
    # Compute them once if both temperatures are 1.
    temperatures = tuple(dict.fromkeys((1.0, found.temperature)))
    after, sets = _judge(pipe, made, progress, temperatures)
    return Calibrated(
        found,
        {},
        {"as trained": float(trained.mean()), **confidence_losses} if len(trained) else {},
        spans,
        documents.group(after),
        [],
        0,
        gain=gain,
        kept=kept,
        crossed=crossed,
        sets=(sets[0], sets[-1]),
    )


def _judge(
    pipe: Any, examples: Sequence[Example], progress: Progress, temperatures: Sequence[float] = ()
) -> tuple[JudgedEntities, list[JudgedEntities]]:
    """Compare the predictions of the component with the references.

    Return the spans. For each temperature, also return whether the spans of each judged doc are
    exactly those of its reference. The probability of such a set sums over all trees that have
    these labelled spans and no others.
    """
    judge, labels = SpanJudge(pipe.key), pipe.labels
    sets = [JudgedEntities(noun=SET_OF_SPANS) for _ in temperatures]
    with changed(pipe.cfg, min_confidence=0.0):
        for batch in minibatch(progress(examples, "Spans", len(examples)), BATCH):
            docs = [example.predicted for example in batch]
            predicted = [
                [one for piece in pieces for one in piece.chosen] for pieces in pipe.predict(docs)
            ]
            for example, chosen in zip(batch, predicted):
                judge.add(
                    example,
                    (((one.start, one.end, labels[one.label]), one.probability) for one in chosen),
                )
            for found, said in zip(sets, _sets_of(pipe, docs, predicted, temperatures)):
                rows = zip(docs, judge.sets[-len(docs) :], said.tolist())
                for number, (doc, right, p) in enumerate(rows, len(judge.sets) - len(docs)):
                    if right is None:
                        found.unannotated += 1
                        continue
                    found.add(p, right, number, length=len(doc))
                    found.gold += 1
    return judge.found, sets


def _sets_of(
    pipe: Any, docs: list[Doc], predicted: list[list[Any]], temperatures: Sequence[float]
) -> Iterator[np.ndarray]:
    """Return the probabilities of the predicted spans of each doc as a set, by temperature."""
    from spacy_latent.models.span_losses import Observed, log_probabilities

    if not temperatures:
        return
    classes = {frozenset(known): i for i, known in enumerate(pipe.numbered_sets, 1)}
    observed: list[list[Observed]] = []
    for chosen in predicted:
        labels: dict[tuple[int, int], set[int]] = {}
        for one in chosen:
            labels.setdefault((one.start, one.end), set()).add(one.label)
        kinds = {place: classes.get(frozenset(own), 0) for place, own in labels.items()}
        observed.append([(*place, (kind,)) for place, kind in kinds.items()])
    # No class has just these labels.
    impossible = [any(kind == 0 for *_, (kind,) in own) for own in observed]
    scores = pipe.model.predict(docs)
    for temperature in temperatures:
        said = np.exp(log_probabilities(scores, observed, temperature))
        yield np.where(impossible, 0.0, said)


@dataclass
class _Table:
    """The N spans of the fit, with their probabilities at T temperatures, ``(N, T)``."""

    spans: JudgedEntities
    said: np.ndarray


def _table(pipe: Any, examples: Sequence[Example], progress: Progress) -> _Table:
    judge, rows = SpanJudge(pipe.key), [np.zeros((0, len(TEMPERATURES)))]
    for batch in minibatch(progress(examples, "Temperatures", len(examples)), BATCH):
        found = _predicted(pipe, [example.predicted for example in batch])
        for example, (places, said) in zip(batch, found):
            judged = judge.add(example, zip(places, said[:, UNCHANGED].tolist()))
            rows.append(said[np.asarray(judged, dtype=bool)])
    return _Table(replace(judge.found, noun=SPAN), np.concatenate(rows))


def _predicted(pipe: Any, docs: list[Doc]) -> list[tuple[list[tuple[int, int, str]], np.ndarray]]:
    """Return the predicted spans of each doc, with their probabilities at T temperatures."""
    from spacy_latent.models.found_spans import LikelySpans, choose, memberships
    from spacy_latent.models.tree_span_classifier import threads_of

    sets, labels, threshold = pipe.numbered_sets, pipe.labels, pipe.cfg["threshold"]
    places: list[list[tuple[int, int, str]]] = [[] for _ in docs]
    rows: list[list[np.ndarray]] = [[np.zeros((0, len(TEMPERATURES)))] for _ in docs]
    scored = pipe.model.predict(docs)
    for group, cells, array in zip(scored.groups, scored.cells, scored.scores):
        scores = xp2torch(array)
        lengths = group.lengths.to(scores.device)
        member = memberships(sets, len(labels), scores)
        with threads_of(scores), torch.no_grad():
            spans = LikelySpans.of(scores, lengths, cells, member, threshold)
            chosen = choose(spans, member, lengths, threshold, cells.n)
            each = [spans.under(scores / t, lengths, cells, member) for t in TEMPERATURES]
        label, column = chosen.nonzero(as_tuple=True)
        said = torch.stack([one[label, column] for one in each], 1).double().cpu().numpy()
        where = torch.stack([spans.item, spans.first, spans.last])[:, column].cpu().tolist()
        for i, (number, item, first, last) in enumerate(zip(label.tolist(), *where)):
            d, s = group.members[item]
            start = scored.spans[d][s][0]
            places[d].append((start + first, start + last + 1, labels[number]))
            rows[d].append(said[i : i + 1])
    made = []
    for own, parts in zip(places, rows):
        # In the order of the predictions, so that both refer to the same span.
        keys = [(start, -end, labels.index(label)) for start, end, label in own]
        order = sorted(range(len(own)), key=keys.__getitem__)
        said = np.concatenate(parts)
        made.append(([own[i] for i in order], said[order]))
    return made
