"""Errors of scores in ``doc.cats`` that are numbers rather than probabilities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from spacy.training import Example

from spacy_latent.analysis.scores import ExampleScorer, Scores


def score_regression(
    examples: Iterable[Example], *, labels: Iterable[str] | None = None, **options: object
) -> Scores:
    """Return the squared error and R² of scores in ``doc.cats``.

    ``cats_mse`` is the squared error. ``cats_r2`` is 1 minus the quotient of the error and the
    variance of the reference. Both are means over labels. ``cats_mse_per_type`` and
    ``cats_r2_per_type`` have the values by label.

    A mean is None if no reference has a label, and a label without references has no entry. R² also
    has no entry if all references have the same score.

    Args:
        labels: labels of the component; None for all labels of the references. Docs whose reference
            lacks a label are left out for it.
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
        # Scores that differ only by rounding count as equal.
        if np.ptp(truths) > 1e-9 * max(1.0, float(np.abs(truths).max())):
            explained[label] = 1.0 - errors[label] / float(np.var(truths))
    return {
        "cats_mse": float(np.mean(list(errors.values()))) if errors else None,
        "cats_r2": float(np.mean(list(explained.values()))) if explained else None,
        "cats_mse_per_type": errors,
        "cats_r2_per_type": explained,
    }


def build_regression_scorer_v1() -> ExampleScorer:
    """Build a scorer of regression for spaCy's ``scorers`` registry, see :func:`score_regression`.

    It is for ``latent_textcat_multilabel`` with a ``score_range``.
    """
    return score_regression
