"""Estimators that follow one another in training."""

from __future__ import annotations

from spacy_latent.estimators.base import Estimator
from spacy_latent.stages import follow


def build_estimator_sequence_v1(first: Estimator, then: Estimator, switch_at: int) -> Estimator:
    """Build an estimator that is ``first`` for a number of updates, and then ``then``.

    If ``then`` needs the loss of each structure, only a component that owns its loss, such as
    ``latent_textcat``, can train it. Both estimators may be such sequences themselves.

    Args:
        first: the estimator in the first updates of the weights.
        then: the estimator from then on, and at prediction.
        switch_at: number of updates by ``first``, at least 1.
    """
    return follow(first, then, switch_at)
