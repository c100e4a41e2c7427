"""Exact objectives of the words of sentences whose heads are not all known.

The decoder predicts each word from its head. Then log p(x | T) is a sum over the arcs of the tree T
and can be added to the scores of arcs. Nothing is sampled. q(T) are the parser's probabilities,
renormalized over the trees that agree with the known heads. There are two objectives.

The bound, see :mod:`spacy_latent.models.evidence_bound`, is E_q[log p(x | T)] − KL(q ‖ p), with a
prior p over trees. It is at most the log-probability of the words and of the known heads.

The objective of the conditional random field's autoencoder is log Σ_T q(T) p(x | T) (Ammar et al.
2014; for trees Zhang and Goldwasser 2020). The parser, which sees the words, replaces the prior. So
this is neither the probability of a sentence nor a bound on it. It is at least the expected log p(x
| T). It is large if one probable tree predicts the words well, while the bound is large only if all
probable trees do.

If all heads are known, both are log p(x | T), and the bound adds the prior of T.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spacy_latent.layers.generative import ArcDecoder, ArcDecoderBuilder, Prior
from spacy_latent.models.evidence_bound import EvidenceBound, WordObjective, masked_prior
from spacy_latent.structures.base import Structure
from spacy_latent.structures.dependency import DependencyTree


class CrfAutoencoder(WordObjective):
    """Log-probability of words in the mean over trees as an objective.

    A sentence without heads has the loss −log Σ_T q(T) p(words | T) · unlabelled_weight. A sentence
    with heads has the loss of its heads − log p(words | heads) · labelled_weight.
    """

    name = "CrfAutoencoder"


def build_crf_autoencoder_v1(
    decoder: ArcDecoderBuilder | None = None,
    unlabelled_weight: float | Iterable[float] = 1.0,
    labelled_weight: float | Iterable[float] = 1.0,
    learn_rate: float = 1.0,
) -> CrfAutoencoder:
    """Build the objective of a CRF autoencoder for ``latent_parser``.

    The objective is the probability of a sentence's words, each given its head, averaged over all
    trees with the parser's probabilities (Ammar et al. 2014; for trees Zhang and Goldwasser 2020).
    The parser takes the place of a prior.

    Args:
        decoder: decoder of the words given the heads; None for WordsByHeads.
        unlabelled_weight, labelled_weight: weights of the objective for sentences without and with
            heads.
        learn_rate: learning rate of the decoder, as a multiple of the optimizer's.
    """
    from spacy_latent.layers.words_by_heads import build_words_by_heads_v1

    return CrfAutoencoder(
        decoder or build_words_by_heads_v1(), unlabelled_weight, labelled_weight, learn_rate
    )


@dataclass(frozen=True)
class Shares:
    """Weights of an update.

    Attributes:
        labelled, unlabelled: weights of the words in the loss of sentences with and without heads.
        kl: weight of the KL in the bound.
    """

    labelled: float
    unlabelled: float
    kl: float = 1.0

    @staticmethod
    def at(update: int, settings: WordObjective) -> Shares:
        """Return the weights at this update, from 0."""
        labelled = settings.labelled_weight.at(update)
        unlabelled = settings.unlabelled_weight.at(update)
        if isinstance(settings, EvidenceBound):
            return Shares(labelled, unlabelled, settings.kl_weight.at(update))
        return Shares(labelled, unlabelled)


class TreeWordObjective(nn.Module):
    """Weights of a :class:`WordObjective` of trees."""

    def __init__(self, settings: WordObjective, structure: DependencyTree, width: int) -> None:
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
        """Return the objective of the words of B sentences, ``(B,)`` float64, in nats.

        Args:
            scores: scores of arcs, ``(B, n+1, n+1)``.
            agreeing: the same, with −inf for arcs that the known heads exclude.
            lengths: ``(B,)``.
            words: ``(B, n)`` int64, hashes.
        """
        word_log_probs = self.decoder(words, lengths).double()
        q = agreeing.double()
        if self.prior is None:
            return autoencoded(self.structure, q, word_log_probs, lengths)
        prior = masked_prior(self.prior, scores, lengths).double()
        return bound(self.structure, q, word_log_probs, prior, lengths, kl_weight)


def autoencoded(structure: Structure, q: Tensor, word_log_probs: Tensor, lengths: Tensor) -> Tensor:
    """Return log Σ_T q(T) p(x | T), ``(B,)``.

    Args:
        q: scores ``(B, *parts)``, such as ``(B, n+1, n+1)`` for arcs.
        word_log_probs: log p(word | head) of each arc, or of another part.
        lengths: ``(B,)``, or ``(B, 2)`` for alignments.
    """
    both = structure.log_partition(q + word_log_probs, lengths)
    return both - structure.log_partition(q, lengths)


def bound(
    structure: DependencyTree,
    q: Tensor,
    word_log_probs: Tensor,
    prior: Tensor,
    lengths: Tensor,
    kl_weight: float = 1.0,
) -> Tensor:
    """Return E_q[log p(x | T)] − kl_weight · KL(q ‖ p), ``(B,)``.

    Args:
        q, word_log_probs, lengths: as for :func:`autoencoded`.
        prior: scores of the same shape, −inf only if q is.
    """
    open_arcs = ~q.isneginf()
    # Both are exponential families, so that the KL is linear in the marginals.
    gain = torch.where(
        open_arcs, word_log_probs + kl_weight * torch.where(open_arcs, prior - q, 0.0), 0.0
    )
    expected = (structure.marginals(q, lengths) * gain).sum((1, 2))
    sums = structure.log_partition(q, lengths) - structure.log_partition(prior, lengths)
    return expected + kl_weight * sums
