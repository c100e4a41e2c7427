"""A module that records the terms of the evidence bound, for comparisons in float64."""

from __future__ import annotations

from torch import nn

from spacy_latent.layers.bag_of_words import build_bag_of_words_v1
from spacy_latent.layers.learned_prior import build_learned_prior_v1
from spacy_latent.models.evidence_bound import BoundTerms, build_evidence_bound_v1
from spacy_latent.models.text_module import TextModule


class Noting(TextModule):
    """A module that records the terms before they are converted to single precision."""

    def _evidence(self, rows, vectors, weights, *others) -> BoundTerms:
        self.weights = weights
        self.terms = super()._evidence(rows, vectors, weights, *others)
        return self.terms


def noting(layer: nn.Module, pooling: str, words: int, places: int) -> Noting:
    """Return a module in training mode over a layer.

    Args:
        words: Number of words of its decoder, a bag of words.
        places: Number of places of its learned prior.
    """
    settings = build_evidence_bound_v1(
        build_bag_of_words_v1(size=words), build_learned_prior_v1(places=places)
    )
    return Noting(layer, (pooling,), 1, 0.0, settings).double().train()
