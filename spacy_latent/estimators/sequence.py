"""Estimators that follow one another in training."""

from __future__ import annotations

from spacy_latent.estimators.base import Estimator
from spacy_latent.stages import follow


def build_estimator_sequence_v1(first: Estimator, then: Estimator, switch_at: int) -> Estimator:
    """first: the estimator in the first updates of the weights. then: the one from then on, and at
    prediction. Each may be such a sequence itself. switch_at: number of updates by ``first``, at
    least 1.

    Where ``then`` needs the loss of each structure, only a component that owns its loss can train
    it, such as ``latent_textcat``.
    """
    return follow(first, then, switch_at)
