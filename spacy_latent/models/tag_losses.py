"""Losses of a chain of tags.

Each loss is value(all sequences) − value(sequences that agree with the annotation). The value is a
log-partition for "crf", and a maximum for "perceptron". With complete annotation one sequence
agrees, and the losses are the Fenchel-Young losses (Blondel et al. 2020) of four regularizers. A
token without annotation may have every tag (Tsuboi et al. 2008).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.core.gpu_transfers import fetch_together, send_together
from spacy_latent.models.crf_loss import crf_loss, log_partitions
from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.span_groups import no_loss
from spacy_latent.models.span_probabilities import (
    MarkovSpans,
    MixtureSpans,
    SpanProbabilities,
    steps_within_labels,
)
from spacy_latent.models.tag_evidence import Contradiction, TagEvidence
from spacy_latent.models.tag_groups import ScoredTags, bound_chain, group_docs
from spacy_latent.structures.derivatives import recording
from spacy_latent.structures.feasibility import infeasible_items
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.results import SparseSolution
from spacy_latent.structures.smoothed import smoothed_expectation, smoothed_value
from spacy_latent.structures.tag_sequence import TagSequence
from spacy_latent.structures.totals import exact_potential

# ---------------------------------------------------------------- results


@dataclass
class Probabilities:
    """Probabilities of a group of docs, under the distribution that the loss has learned.

    Attributes:
        tags: ``(B, N, K)``, the probability of each tag at each token.
        best: ``(B, N)``, the best sequence.
        steps: ``(B, N)``, the conditional probabilities of the tags of the best sequence, see
            ``TagSequence.follow``; None for a mixture.
        within_labels: ``(B, N, 4, labels)``, the probability of each step within a label, given its
            first tag, see :func:`steps_within_labels`; None if it was not asked for.
        mixture: sequences ``(S, B, N)`` and weights ``(S, B)`` of SparseMAP, otherwise None.
    """

    tags: np.ndarray
    best: np.ndarray
    steps: np.ndarray | None = None
    within_labels: np.ndarray | None = None
    mixture: tuple[np.ndarray, np.ndarray] | None = None

    def of_run(self, b: int, start: int, end: int) -> float:
        """Return the joint probability of the best tags in the tokens ``start`` to ``end`` − 1."""
        own = self.best[b, start:end]
        if self.mixture is not None:
            sequences, weights = self.mixture
            same = (sequences[:, b, start:end] == own).all(1)
            return float((same * weights[:, b]).sum())
        assert self.steps is not None
        first = float(self.tags[b, start, own[0]])
        return first if end == start + 1 else first * float(self.steps[b, start + 1 : end].prod())

    def spans(self) -> SpanProbabilities:
        """Return the probabilities of all labelled spans."""
        if self.mixture is not None:
            return MixtureSpans(*self.mixture)
        assert self.within_labels is not None
        return MarkovSpans(self.tags, self.within_labels)


# ---------------------------------------------------------------- losses

# Sequences ``(n,)`` int32 of a doc with their weights, heaviest first.
RankedSequences = list[tuple[np.ndarray, float]]


def _pairs(group: ScoredTags) -> Tensor:
    """Return the scores of pairs of neighbouring tags, ``(B, N, K, K)``."""
    return group.chain.chain_scores(group.scores, group.lengths)


class TagLoss(ABC):
    """Loss value(all sequences) − value(sequences that agree with the annotation).

    Probabilities are computed under the distribution that the loss learns. Unless a subclass
    defines another one, this is the CRF with the same scores.

    Attributes:
        name: the value of the setting ``loss``.
    """

    name: ClassVar[str]

    @abstractmethod
    def value(self, chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the values of the sequences that scores above −inf allow, ``(B,)``.

        Args:
            scores: ``(B, N, K)``.
            lengths: ``(B,)``.
        """

    @property
    def calibration_loss(self) -> TagLoss:
        """Loss whose minimum calibrates the probabilities."""
        return self

    def losses(
        self, chain: TagSequence, scores: Tensor, lengths: Tensor, allowed: Tensor
    ) -> Tensor:
        """Return losses ``(B,)`` in nats, never negative; for the arguments see :meth:`value`.

        Args:
            allowed: ``(B, N, K)`` bool, the tags that agree with the annotation.
        """
        gold = scores.masked_fill(~allowed, -torch.inf)
        # The values may be float64, since float32 would lose the difference of two large numbers.
        difference = self.value(chain, scores, lengths) - self.value(chain, gold, lengths)
        return difference.to(scores.dtype)

    def loss_and_gradient(
        self,
        found: TagScores,
        tags: Sequence[str],
        evidence: Sequence[TagEvidence],
        posteriors: list[np.ndarray] | None = None,
    ) -> tuple[list[float], TagScores, list[int]]:
        """Return the losses of the docs, and the gradient of their sum.

        The gradient for the transitions, which the docs share, is already summed over docs.

        Args:
            evidence: evidence about each doc. Losses other than "crf" need
                :attr:`TagEvidence.only_forbids`.
            posteriors: list that the loss "crf" extends by ``(n, K)`` for each doc, as in
                :class:`~spacy_latent.models.crf_loss.Loss`.

        Returns:
            Losses, gradient, and the docs whose annotation no sequence of tags agrees with. These
            do not count.

        Raises:
            Contradiction: if sequences agree with the tags of a doc, and none of them with its
                counts of entities.
        """
        allowed = [torch.from_numpy(self._allowed_tags(own)) for own in evidence]
        losses, left_out = [0.0] * len(allowed), []
        with recording():
            emissions = xp2torch(found.emissions).requires_grad_()
            transitions = xp2torch(found.transitions).requires_grad_()
            total = no_loss(emissions)
            chain = bound_chain(transitions, tags)
            padded = torch.cat([emissions, emissions.new_zeros(1, len(tags))])
            everything = torch.cat([*allowed, torch.ones(1, len(tags), dtype=torch.bool)])
            for group in group_docs([len(part) for part in allowed]):
                known = [group.rows, group.lengths, everything[group.rows]]
                places, lengths, open_to = send_together(known, padded.device)
                scores = padded[places]
                agreeing = scores.masked_fill(~open_to, -torch.inf)
                bad = infeasible_items(chain.best_tags, agreeing, lengths)
                left_out += [group.docs[b] for b in bad]
                if bad:
                    open_to[bad] = True
                each = self.losses(chain, scores, lengths, open_to)
                total = total + each.sum()
                for doc, value in zip(group.docs, each.tolist()):
                    losses[doc] = value
            d_emissions, d_transitions = torch.autograd.grad(
                total, (emissions, transitions), allow_unused=True, materialize_grads=True
            )
        return losses, _gradient(d_emissions, d_transitions), left_out

    def _allowed_tags(self, evidence: TagEvidence) -> np.ndarray:
        """Return the mask of allowed tags, and refuse evidence that needs probabilities of tags."""
        if not evidence.only_forbids:
            raise LatentError(
                f"tag_losses: the loss is {self.name!r}, and the evidence has incorrect runs of "
                "tags, numbers of entities, or probabilities of tags; expected 'crf', the only "
                "loss for such evidence."
            )
        return evidence.allowed

    def probabilities(self, group: ScoredTags, within_labels: bool = False) -> Probabilities:
        """Return the best sequences, and probabilities under the learned distribution.

        Args:
            within_labels: whether to compute the steps within labels, which
                :meth:`Probabilities.spans` reads.
        """
        within = steps_within_labels((group.scores.shape[-1] - 1) // 4) if within_labels else None
        pairs = None if within is None else within.reshape(2, -1)
        path, tags, steps, given = group.chain.best_and_follow(group.scores, group.lengths, pairs)
        found = None if within is None else given.reshape(*path.shape, *within.shape[1:])
        return Probabilities(tags, path, steps, found)

    def ranked(self, group: ScoredTags, count: int) -> list[RankedSequences]:
        """Return up to ``count`` sequences of each doc with the highest probabilities."""
        chain, scores, lengths = group.chain, group.scores, group.lengths
        tags, totals = chain.top_k_tags(scores, lengths, count)
        assert chain.bound is not None
        # In float64: for a long doc this is the difference of two large numbers.
        exact = chain.bind(*(part.double() for part in chain.bound))
        weights = (totals - exact.log_partition(scores.double(), lengths)).exp()
        return _by_doc(tags, weights, lengths, tags[:, :, 0] >= 0)


class CrfLoss(TagLoss):
    """−log p(gold), with log-partitions as values (Lafferty et al. 2001)."""

    name: ClassVar[str] = "crf"

    def value(self, chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
        return log_partitions(chain, scores, lengths)

    def loss_and_gradient(
        self,
        found: TagScores,
        tags: Sequence[str],
        evidence: Sequence[TagEvidence],
        posteriors: list[np.ndarray] | None = None,
    ) -> tuple[list[float], TagScores, list[int]]:
        emissions = xp2torch(found.emissions).detach()
        given = fetch_together([emissions, xp2torch(found.transitions).detach()])
        chain = bound_chain(given[1].double(), tags)
        loss = crf_loss(chain, given[0].numpy(), evidence)
        if loss.contradictory:
            raise Contradiction(loss.contradictory)
        if posteriors is not None:
            ends = np.cumsum([len(own.potentials) for own in evidence])
            posteriors += np.split(loss.posteriors, ends[:-1])
        slopes = torch.from_numpy(loss.emissions), torch.from_numpy(loss.transitions)
        d_emissions, d_transitions = send_together(
            [slope.to(own.dtype) for slope, own in zip(slopes, given)], emissions.device
        )
        return loss.losses.tolist(), _gradient(d_emissions, d_transitions), loss.left_out


class QuadraticLoss(TagLoss):
    """Loss of the quadratically smoothed recursion (Mensch and Blondel 2018).

    The distribution is the Markov chain over tags that the smoothing induces.
    """

    name: ClassVar[str] = "quadratic"

    def value(self, chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
        return smoothed_value(chain, scores, lengths, "quadratic")

    def probabilities(self, group: ScoredTags, within_labels: bool = False) -> Probabilities:
        path = group.chain.best_path(group.scores, group.lengths)
        walk = smoothed_expectation(LinearChain(), _pairs(group), group.lengths, "quadratic")
        of_pairs = walk.double().cpu().numpy()
        tag_marginals = of_pairs.sum(2)
        items, places = np.indices(path.shape)
        before = np.concatenate([np.zeros_like(path[:, :1]), path[:, :-1]], 1)
        pair = of_pairs[items, places, before, path]
        whole = np.where(places > 0, tag_marginals[items, places - 1, before], 1.0)
        steps = np.divide(pair, whole, out=np.zeros(path.shape), where=(path >= 0) & (whole > 0))
        if not within_labels:
            return Probabilities(tag_marginals, path, steps)
        first, second = steps_within_labels((group.scores.shape[-1] - 1) // 4)
        within = np.zeros((*path.shape, *first.shape))
        pair, whole = of_pairs[:, 1:, first, second], tag_marginals[:, :-1, first]
        within[:, 1:] = np.divide(pair, whole, out=np.zeros(pair.shape), where=whole > 0)
        return Probabilities(tag_marginals, path, steps, within)

    def ranked(self, group: ScoredTags, count: int) -> list[RankedSequences]:
        pairs = _pairs(group).double()
        walk = smoothed_expectation(LinearChain(), pairs, group.lengths, "quadratic")
        # Each pair's weight given its first tag. The product of these is the probability of a
        # sequence.
        before = walk.sum(2)[:, :-1, :, None]
        steps = torch.cat([walk[:, :1], walk[:, 1:] / before.where(before > 0, 1.0)], 1)
        tags, totals = LinearChain().top_k_tags(steps.log(), group.lengths, count)
        return _by_doc(tags, totals.exp(), group.lengths, tags[:, :, 0] >= 0)


class PerceptronLoss(TagLoss):
    """Loss of the structured perceptron, with best scores as values (Collins 2002)."""

    name: ClassVar[str] = "perceptron"

    def value(self, chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
        return exact_potential(chain, chain.map(scores, lengths), scores, lengths)

    @property
    def calibration_loss(self) -> TagLoss:
        """Loss of the CRF, since scores of a perceptron alone have no probabilities."""
        return LOSSES["crf"]


class SparsemapLoss(TagLoss):
    """Loss whose value is the maximum of μ·s − ½‖μ‖² over the marginal polytope.

    See Niculae et al. (2018a). μ has an entry for each pair of neighbouring tags. The distribution
    is SparseMAP's mixture of a few sequences.
    """

    name: ClassVar[str] = "sparsemap"

    def value(self, chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
        pairs = chain.chain_scores(scores.double(), lengths)
        mean = LinearChain().sparsemap(pairs.detach(), lengths).mean
        # By Danskin's theorem the gradient is the mean.
        taken = torch.where(mean != 0, pairs, 0.0)
        return (mean * taken - 0.5 * mean.square()).flatten(1).sum(1)

    def probabilities(self, group: ScoredTags, within_labels: bool = False) -> Probabilities:
        path = group.chain.best_path(group.scores, group.lengths)
        solution, sequences = self._mixture(group)
        mixture = sequences, solution.weights.cpu().numpy()
        return Probabilities(solution.mean.sum(2).cpu().numpy(), path, mixture=mixture)

    def ranked(self, group: ScoredTags, count: int) -> list[RankedSequences]:
        solution, sequences = self._mixture(group)
        # Heaviest first, as the solver leaves them. A sequence may have a weight of 0.
        weights = solution.weights[:count]
        return _by_doc(torch.from_numpy(sequences[:count]), weights, group.lengths, weights > 0)

    def _mixture(self, group: ScoredTags) -> tuple[SparseSolution, np.ndarray]:
        """Return SparseMAP's solution, and its sequences ``(S, B, N)``, −1 at padding.

        Each sequence is stored as a list of tags. As 0/1 arrays the sequences would be S times as
        large as the scores of pairs, ``(B, N, K, K)``.
        """
        pairs = _pairs(group)
        solution = LinearChain().sparsemap(pairs, group.lengths)
        numbers, count = solution.part_numbers, pairs.shape[-1]
        return solution, np.where(numbers < 0, -1, numbers % count)


LOSSES: dict[str, TagLoss] = {
    loss.name: loss for loss in (CrfLoss(), QuadraticLoss(), PerceptronLoss(), SparsemapLoss())
}


def _gradient(emissions: Tensor, transitions: Tensor) -> TagScores:
    return TagScores(torch2xp(emissions), torch2xp(transitions))  # type: ignore[arg-type]


def _by_doc(tags: Tensor, weights: Tensor, lengths: Tensor, there: Tensor) -> list[RankedSequences]:
    """Return the sequences ``(S, B, N)`` of each doc that are ``there``, with their weights."""
    sequences, shares, exist = tags.cpu().numpy(), weights.cpu().numpy(), there.cpu().numpy()
    return [
        [(sequences[k, b, :n].copy(), float(shares[k, b])) for k in np.flatnonzero(exist[:, b])]
        for b, n in enumerate(lengths.tolist())
    ]
