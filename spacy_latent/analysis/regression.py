"""How far scores in ``doc.cats`` are from those of the reference, where they are no shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.analysis.scores import ExampleScorer, Scores

if TYPE_CHECKING:
    from spacy.training import Example


def score_regression(
    examples: Iterable[Example], *, labels: Iterable[str] | None = None, **options: object
) -> Scores:
    """``cats_mse``, the squared error, and ``cats_r2``, 1 less its share of the variance of the
    reference, each the mean over the labels; ``cats_mse_per_type`` and ``cats_r2_per_type``, by
    label. None, and no entry, where no reference has the label; R² also where all of them have the
    same score.

    labels: of the component; None for all that references have. What a reference lacks is left out.
    """
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for example in examples:
        for label, score in example.reference.cats.items():
            pairs[label].append((score, example.predicted.cats.get(label, 0.0)))
    errors: dict[str, float] = {}
    explained: dict[str, float] = {}
    for label in sorted(pairs if labels is None else set(labels) & set(pairs)):
        truths, scores = np.array(pairs[label], dtype=np.float64).T
        errors[label] = float(np.mean((scores - truths) ** 2))
        # Not those that differ by rounding alone.
        if np.ptp(truths) > 1e-9 * max(1.0, float(np.abs(truths).max())):
            explained[label] = 1.0 - errors[label] / float(np.var(truths))
    return {
        "cats_mse": float(np.mean(list(errors.values()))) if errors else None,
        "cats_r2": float(np.mean(list(explained.values()))) if explained else None,
        "cats_mse_per_type": errors,
        "cats_r2_per_type": explained,
    }


def build_regression_scorer_v1() -> ExampleScorer:
    """A scorer of spaCy's ``scorers`` registry, see :func:`score_regression`, for
    ``latent_textcat_multilabel`` with a ``score_range``."""
    return score_regression
