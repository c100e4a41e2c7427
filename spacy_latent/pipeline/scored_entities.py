"""Scores of docs of ``crf_ner``, and the confidences of the entities that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.pipeline.learnt_calibration import EntityCalibration, confidences_of

if TYPE_CHECKING:
    from torch import Tensor

    from spacy_latent.annotations import SpanStructure
    from spacy_latent.layers.batch_interventions import BatchInterventions
    from spacy_latent.models.span_probabilities import SpanProbabilities
    from spacy_latent.structures.tag_sequence import TagSequence


@dataclass
class ScoredGroup:
    """Scores of docs with similar length.

    Attributes:
        transitions: learned transitions, ``(K + 2, K)``.
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.
        interventions: interventions on the scores, or None.
    """

    docs: list[int]
    chain: TagSequence
    transitions: Tensor
    scores: Tensor
    lengths: Tensor
    interventions: BatchInterventions | None = None


def add_spans(
    structures: Sequence[SpanStructure],
    likely: SpanProbabilities,
    labels: Sequence[str],
    calibration: EntityCalibration,
) -> None:
    """Add the confidences of entities in the alternatives, and the set for the coverage.

    Args:
        likely: probabilities of all spans in the docs of the structures.
    """
    from spacy_latent.models.span_probabilities import spans_of_tags

    for b, structure in enumerate(structures):
        structure.alternative_probabilities = [
            np.array(
                [
                    calibration.confidence(likely.of(b, place), labels[place[2]])
                    for place in spans_of_tags(tags)
                ],
                dtype="float32",
            )
            for tags, _ in structure.alternatives
        ]
    if calibration.least is None:
        return
    found = likely.above(calibration.least)
    # Ends and labels are in order already, and the sort is stable.
    keys = [found.starts, -found.probabilities]
    if calibration.changes_odds:
        shifts = np.array(calibration.shifts_of(labels))[found.labels]
        sure = confidences_of(found.probabilities, calibration.slope, shifts)
        keys.append(-sure)
    else:
        sure = np.minimum(found.probabilities, 1.0)
    # For a short text, each operation on arrays counts.
    if len(structures) > 1:
        keys.append(found.docs)
    order = np.lexsort(keys)
    # The tag U represents the label.
    rows = np.array([found.starts, found.ends, 4 + 4 * found.labels], dtype="int32").T[order]
    sure = sure[order].astype("float32")
    bounds = [0, len(order)]
    if len(structures) > 1:
        bounds = np.searchsorted(found.docs[order], np.arange(len(structures) + 1)).tolist()
    for structure, start, end in zip(structures, bounds, bounds[1:]):
        structure.possible, structure.possible_probabilities = rows[start:end], sure[start:end]
