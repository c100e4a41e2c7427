"""What words tell of trees, exactly: objectives of sentences whose heads are not known, or not all.

With a decoder that tells each word from its head, log p(x | T) is a sum over the arcs of the tree T
and fits into the scores of arcs, so that nothing is drawn. Of the trees that agree with the heads
that are known, q(T) are the parser's probabilities, renormalised, and there are two objectives.

The bound, see :mod:`spacy_latent.models.evidence_bound`: E_q[log p(x | T)] − KL(q ‖ p), with a
prior p over trees. It is at most the logarithm of the probability of the words and of the known
heads.

The conditional random field's autoencoder (Ammar et al. 2014; of trees Zhang and Goldwasser 2020):
log Σ_T q(T) p(x | T). The parser, which sees the words, stands in the prior's place, so that this
is no probability of a sentence and no bound on one. With the expected log p(x | T) as its lower
bound, it asks that some probable tree tells the words well, where the other asks it of all.

Where all heads are known, both are log p(x | T), and of the bound also the prior's of T.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spacy_latent.layers.generative import ArcDecoder, ArcDecoderBuilder, Prior
from spacy_latent.models.evidence_bound import Evidence, EvidenceBound, masked_prior
from spacy_latent.structures.dependency import DependencyTree


class CrfAutoencoder(Evidence):
    """A sentence without heads has the loss −log Σ_T q(T) p(words | T) · unlabelled_weight, one
    with heads the loss of these − log p(words | heads) · labelled_weight."""

    name = "CrfAutoencoder"


def build_crf_autoencoder_v1(
    decoder: ArcDecoderBuilder | None = None,
    unlabelled_weight: float | Iterable[float] = 1.0,
    labelled_weight: float | Iterable[float] = 1.0,
    learn_rate: float = 1.0,
) -> CrfAutoencoder:
    """For ``latent_parser``: the probability of a sentence's words, each told from its head, in the
    mean over all trees by the parser's own probabilities (Ammar et al. 2014; of trees Zhang and
    Goldwasser 2020). There is no prior, as the parser is in its place.

    decoder: of the words where the heads are known; None for WordsByHeads.
    unlabelled_weight, labelled_weight: of this for sentences without and with heads.
    learn_rate: of the decoder, as a multiple of the optimizer's.
    """
    from spacy_latent.layers.words_by_heads import build_words_by_heads_v1

    return CrfAutoencoder(
        decoder or build_words_by_heads_v1(), unlabelled_weight, labelled_weight, learn_rate
    )


@dataclass(frozen=True)
class Shares:
    """Weights of an update: of what the words tell in the loss of sentences with heads and without,
    and of the KL in the bound."""

    labelled: float
    unlabelled: float
    kl: float = 1.0

    @staticmethod
    def at(update: int, settings: Evidence) -> Shares:
        labelled = settings.labelled_weight.at(update)
        unlabelled = settings.unlabelled_weight.at(update)
        if isinstance(settings, EvidenceBound):
            return Shares(labelled, unlabelled, settings.kl_weight.at(update))
        return Shares(labelled, unlabelled)


class TreeEvidence(nn.Module):
    """The weights of an :class:`Evidence` of trees."""

    def __init__(self, settings: Evidence, structure: DependencyTree, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.structure = structure
        self.decoder: ArcDecoder = settings.decoder(width)
        self.prior: Prior | None = None
        if isinstance(settings, EvidenceBound):
            self.prior = settings.prior(structure)

    def forward(
        self,
        scores: Tensor,
        agreeing: Tensor,
        lengths: Tensor,
        words: Tensor,
        kl_weight: float = 1.0,
    ) -> Tensor:
        """What the words of B sentences tell, ``(B,)`` float64, in nats.

        scores: of arcs, ``(B, n+1, n+1)``. agreeing: the same with −inf for arcs that the known
            heads exclude. words: ``(B, n)`` int64, hashes. kl_weight: of the KL in the bound.
        """
        told = self.decoder(words, lengths).double()
        q = agreeing.double()
        if self.prior is None:
            return autoencoded(self.structure, q, told, lengths)
        prior = masked_prior(self.prior, scores, lengths).double()
        return bound(self.structure, q, told, prior, lengths, kl_weight)


def autoencoded(structure: DependencyTree, q: Tensor, told: Tensor, lengths: Tensor) -> Tensor:
    """log Σ_T q(T) p(x | T), ``(B,)``. q: scores ``(B, n+1, n+1)``. told: log p(word | head) of
    each arc."""
    return structure.log_partition(q + told, lengths) - structure.log_partition(q, lengths)


def bound(
    structure: DependencyTree,
    q: Tensor,
    told: Tensor,
    prior: Tensor,
    lengths: Tensor,
    kl_weight: float = 1.0,
) -> Tensor:
    """E_q[log p(x | T)] − kl_weight · KL(q ‖ p), ``(B,)``. prior: scores as q, −inf only where
    these are."""
    open_arcs = ~q.isneginf()
    # Both are of exponential form, so that the KL is linear in the marginals.
    gain = torch.where(open_arcs, told + kl_weight * torch.where(open_arcs, prior - q, 0.0), 0.0)
    expected = (structure.marginals(q, lengths) * gain).sum((1, 2))
    sums = structure.log_partition(q, lengths) - structure.log_partition(prior, lengths)
    return expected + kl_weight * sums
