"""Log-probability of the words of a text given another text, summed over alignments (IBM models).

Each word of the first text is drawn given the word of the second with which it is aligned. The
alignment is summed out: log p(a | b) = Σ_i log Σ_j p(j | i) t(a_i | b_j), one log-sum-exp for each
word. The prior p(j | i) is uniform in model 1, and depends on the positions in model 2 (Brown et
al. 1993).

The decoder t and the prior learn by this marginal likelihood, which is exact. The scorer's
distribution q of alignments learns by KL(q ‖ p(z | a, b)), the divergence from the posterior of the
model. Together they are the bound E_q[log p(a, z | b) − log q(z)].

Without a prior, q takes its place: log Σ_z q(z) p(a | z, b), the autoencoder of a conditional
random field (Ammar et al. 2014).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.generative import CellDecoder, CellDecoderBuilder, Prior, PriorBuilder
from spacy_latent.layers.two_texts import split_texts
from spacy_latent.models.evidence_bound import WordObjective, check_prior, masked_prior
from spacy_latent.models.scheduled_value import ScheduledValue
from spacy_latent.models.tree_evidence import autoencoded
from spacy_latent.structures.base import Structure
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment


class AlignedWords(WordObjective):
    """Log-probability of the words of the first text given the second as an objective.

    A pair without labels has the loss −bound · unlabelled_weight. A pair with labels has the loss
    of the task − bound · labelled_weight.

    Args:
        prior: prior of the alignments; None for the scorer's own distribution.
    """

    name = "AlignedWords"
    loss = "bound"

    def __init__(
        self,
        decoder: CellDecoderBuilder,
        prior: PriorBuilder | None,
        unlabelled_weight: float | Iterable[float],
        labelled_weight: float | Iterable[float],
        learn_rate: float,
    ) -> None:
        self._check_decoder(decoder, CellDecoder, "spacy-latent.WordsByWords.v1")
        super().__init__(decoder, unlabelled_weight, labelled_weight, learn_rate)
        self.prior = prior
        self.kl_weight = ScheduledValue(1.0, "kl_weight")

    def check(self, structure: Structure, estimator: Estimator) -> None:
        """Raise an error if the words of the first text do not have one partner at most.

        The estimator must train the softmax over alignments, with one step for each update.
        """
        for each in [structure, *(stage for _, stage in structure.stages)]:
            if not isinstance(each, ManyToOneAlignment):
                raise IncompatiblePair(
                    self.name,
                    each.name,
                    "each word of the first text is drawn once, given one word of the second",
                    "ManyToOneAlignment",
                )
        for one in [estimator, *(stage for _, stage in estimator.stages)]:
            if one.inner_steps > 1 or not one.entropy_of_scores:
                raise IncompatiblePair(
                    self.name,
                    f"{one.name} with inner_steps = {one.inner_steps}",
                    "the KL divergence is the one of the softmax over alignments, for one step in "
                    "each update",
                    "Marginals, or ScoreFunction with inner_steps = 1",
                )
        if self.prior is not None:
            check_prior(self.prior, structure)


def build_aligned_words_v1(
    decoder: CellDecoderBuilder | None = None,
    prior: PriorBuilder | None = None,
    unlabelled_weight: float | Iterable[float] = 1.0,
    labelled_weight: float | Iterable[float] = 1.0,
    learn_rate: float = 1.0,
) -> AlignedWords:
    """Build the objective of the words of pairs for ``AlignedPairTextCat``: IBM models 1 and 2.

    It is the log-probability of the words of the first text given those of the second, summed over
    all alignments (Brown et al. 1993). It is in nats for a whole text, tens of times the loss of a
    label. The scorer learns the posterior of the alignments, a softmax over them. An estimator such
    as SparseMAP composes other means of alignments under the same scores. The structure must be
    ``ManyToOneAlignment``; with ``unaligned``, a word may be drawn without a partner.

    Args:
        decoder: decoder of a word given its partner; None for WordsByWords.
        prior: UniformPrior for model 1, PositionPrior for model 2. None for the scorer's own
            distribution in place of a prior, which makes it the autoencoder of a conditional random
            field (Ammar et al. 2014).
        unlabelled_weight, labelled_weight: weights of the objective for pairs without and with
            labels in ``cats``.
        learn_rate: learning rate of decoder and prior, as a multiple of the optimizer's.
    """
    from spacy_latent.layers.words_by_words import build_words_by_words_v1

    return AlignedWords(
        decoder or build_words_by_words_v1(), prior, unlabelled_weight, labelled_weight, learn_rate
    )


class AlignmentWordObjective(nn.Module):
    """Weights of an :class:`AlignedWords`."""

    def __init__(self, settings: AlignedWords, structure: Structure, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.decoder: CellDecoder = settings.decoder(width)
        self.prior: Prior | None = settings.prior(structure) if settings.prior else None

    def forward(
        self, structure: ManyToOneAlignment, scores: Tensor, words: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return the objective of B pairs, ``(B,)`` float64, in nats.

        Args:
            scores: scores q of the cells, ``(B, n, m)``.
            words: ``(B, N)`` int64, hashes of the words of both texts, one after the other.
            lengths: ``(B, 2)``.
        """
        first, second = split_texts(words[..., None], lengths, self.settings.name)
        cells, alone = (
            log_probs.double() for log_probs in self.decoder(first[..., 0], second[..., 0])
        )
        sizes = lengths.to(scores.device)
        inside = structure.part_mask(scores, sizes)
        row = torch.arange(scores.shape[1], device=scores.device)
        if structure.unaligned:
            # An unaligned word has no cell, so its log-probability is added as a constant.
            cells = cells - alone[..., None]
            without = alone
        else:
            # No word has a partner if the second text is empty.
            without = torch.where(sizes[:, 1:] == 0, alone, 0.0)
        constant = torch.where(row < sizes[:, :1], without, 0.0).sum(1)
        word_log_probs = torch.where(inside, cells, 0.0)
        q = torch.where(inside, scores.double(), 0.0)
        if self.prior is None:
            return autoencoded(structure, q, word_log_probs, lengths) + constant
        prior = torch.where(inside, masked_prior(self.prior, q, lengths), 0.0)
        marginal = autoencoded(structure, prior, word_log_probs, lengths)
        return marginal + constant - structure.kl(q, (prior + word_log_probs).detach(), lengths)
