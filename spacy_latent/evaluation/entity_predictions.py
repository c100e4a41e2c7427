"""Scores and predictions of a component that finds entities, compared with the annotation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from spacy.tokens import Span
from spacy.training import Example
from spacy.util import minibatch

from spacy_latent.analysis.judged_entities import JudgedEntities, judged_entities
from spacy_latent.analysis.progress import Progress
from spacy_latent.annotations import aligned_spans, annotated_labels, write
from spacy_latent.evaluation.score_fit import ScoredDocs, ScoreFit, feasible
from spacy_latent.models.tag_losses import LOSSES
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from spacy_latent.pipeline.stored_component import changed

# Number of docs per batch.
BATCH = 256


def gold_entities(example: Example) -> list[Span]:
    """Return the annotated entities, without labels that the text was not annotated for."""
    asked = annotated_labels(example.reference)
    return [span for span in example.reference.ents if asked is None or span.label_ in asked]


def _batches(
    examples: Sequence[Example], progress: Progress, stage: str
) -> Iterator[list[Example]]:
    return minibatch(progress(examples, stage, len(examples)), BATCH)


def fit_of_scores(
    pipe: Any, examples: Sequence[Example], folds: np.ndarray, progress: Progress
) -> tuple[ScoreFit, int]:
    """Return a fit to the scores of examples as trained.

    Also return the number of docs whose annotation no sequence of tags agrees with.
    """
    groups, done = [], 0
    for batch in _batches(examples, progress, "Scores"):
        # The component cannot learn unknown labels here, so entities with such labels count as not
        # found.
        gold = [pipe.gold_tags(example, refuse_unknown=False) for example in batch]
        for group in pipe.scored([example.predicted for example in batch], EntityCalibration()):
            scores, lengths = group.scores.cpu().double(), group.lengths.cpu()
            allowed = torch.ones(scores.shape, dtype=torch.bool)
            for b, d in enumerate(group.docs):
                allowed[b, : len(gold[d])] = gold[d]
            transitions = group.transitions.cpu()
            chain = group.chain.bind(*(part.cpu().double() for part in group.chain.bound))
            allowed, counts = feasible(chain, scores, lengths, allowed)
            places = [done + d for d in group.docs]
            groups.append(ScoredDocs(places, scores, lengths, allowed, counts))
        done += len(batch)
    fit = ScoreFit(LOSSES[pipe.cfg["loss"]], pipe.tags, transitions, groups, folds)
    return fit, sum(int((group.counts == 0).sum()) for group in groups)


def judge(
    pipe: Any, examples: Sequence[Example], progress: Progress, sizes: list[int] | None = None
) -> JudgedEntities:
    """Compare the predictions of the component with the references.

    Args:
        sizes: list to which the sizes of the sets are appended.
    """
    with changed(pipe.cfg, annotate="probabilities", alternatives=0, min_confidence=0.0):
        for batch in _batches(examples, progress, "Entities"):
            docs = [example.predicted for example in batch]
            for doc, found in zip(docs, pipe.predict(docs)):
                # Do not call set_annotations: later predictions would keep the entities that it
                # puts on the doc.
                write(doc, pipe.name, [found])
                if sizes is not None and found.possible is not None:
                    sizes.append(len(found.possible))
    judged = judged_entities(examples, pipe.name)
    assert judged is not None
    return judged


def least_of_texts(
    pipe: Any, examples: Sequence[Example], calibration: EntityCalibration, progress: Progress
) -> list[float]:
    """Return the probability of the least probable entity of each text with entities."""
    number = {label: i for i, label in enumerate(pipe.labels)}
    scores: list[float] = []
    loss = LOSSES[pipe.cfg["loss"]]
    for batch in _batches(examples, progress, "Sets"):
        for group in pipe.scored([example.predicted for example in batch], calibration):
            likely = loss.probabilities(group, within_labels=True).spans()
            for b, d in enumerate(group.docs):
                gold = gold_entities(batch[d])
                if not gold:
                    continue
                aligned = aligned_spans(batch[d], gold)
                # No set holds an entity with misaligned tokens or an unknown label.
                own = [0.0] * (len(gold) - len(aligned))
                own += [
                    likely.of(b, (span.start, span.end, number[span.label_]))
                    if span.label_ in number
                    else 0.0
                    for span in aligned
                ]
                scores.append(min(own))
    return scores
