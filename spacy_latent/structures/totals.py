"""Scores of whole structures in float64, for uses in which their differences count."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.structures.base import Structure


def exact_scores(structure: Structure, scores: Tensor) -> Tensor:
    """Return the scores in float64.

    Scores of decisions stay unchanged: modules compute with them, and log-probabilities have no
    common offset.
    """
    return scores.double() if structure.linear else scores


def exact_potential(structure: Structure, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return :meth:`Structure.log_potential` in float64, ``(K, B)`` or ``(B,)``.

    All structures may have a large offset in common, such as 10,000 in the score of each part.
    float32 then has no digits left for their differences.
    """
    exact = exact_scores(structure, scores)
    return structure.log_potential(z.to(exact.dtype), exact, lengths).double()
