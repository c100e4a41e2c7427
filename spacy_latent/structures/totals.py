"""What structures score in all, in float64, where their differences count."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.structures.base import Structure


def exact_scores(structure: Structure, scores: Tensor) -> Tensor:
    """The scores in float64. Those of decisions stay as they are: modules compute with them, and
    log-probabilities have no offset in common."""
    return scores.double() if structure.linear else scores


def exact_potential(structure: Structure, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """:meth:`Structure.log_potential` in float64, ``(K, B)`` or ``(B,)``: beside what all
    structures have in common, such as 10,000 in the score of each part, float32 has no digits left
    for what they differ by."""
    exact = exact_scores(structure, scores)
    return structure.log_potential(z.to(exact.dtype), exact, lengths).double()
