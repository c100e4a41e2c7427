"""What a chain of tags learns from: a value of all sequences less that of those that the gold
annotation allows.

With whole annotation that is one sequence, and these are the Fenchel-Young losses (Blondel et al.
2020) of four regularizers; where tokens have none, every tag is allowed there, and the second value
is that of the best, or a sum over, what remains (Tsuboi et al. 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.transfers import fetch_together, send_together
from spacy_latent.models.crf_loss import crf_loss
from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.span_groups import group_spans, no_loss
from spacy_latent.models.tag_evidence import Contradiction, TagEvidence
from spacy_latent.structures.derivatives import recording
from spacy_latent.structures.feasibility import infeasible_items
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.results import SparseSolution
from spacy_latent.structures.smoothed import smoothed_expectation, smoothed_value
from spacy_latent.structures.tag_sequence import TagSequence, allowed_transitions
from spacy_latent.structures.totals import exact_potential


@dataclass
class TagGroup:
    """Docs that are padded to a common length.

    docs: their places in the batch. rows: ``(B, N)``, rows of the emissions; at padding one past
        the last. lengths: ``(B,)``.
    """

    docs: list[int]
    rows: Tensor
    lengths: Tensor

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and lengths there, by one transfer."""
        rows, lengths = send_together([self.rows, self.lengths], device)
        return rows, lengths


def group_docs(sizes: Sequence[int]) -> list[TagGroup]:
    """The docs that have tokens, in groups of similar length."""
    groups = group_spans(sizes, [[(0, size)] if size else [] for size in sizes])
    return [TagGroup([d for d, _ in group.members], group.rows, group.lengths) for group in groups]


def bound_chain(transitions: Tensor, tags: Sequence[str]) -> TagSequence:
    """Sequences of BILUO tags with learned scores ``(K + 2, K)`` of neighbours."""
    allowed = [part.to(transitions.dtype) for part in allowed_transitions(tags, "biluo")]
    between, start, end = send_together(allowed, transitions.device)
    count = len(tags)
    return TagSequence().bind(
        transitions[:count] + between, transitions[count] + start, transitions[count + 1] + end
    )


# ---------------------------------------------------------------- values


def crf_value(chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
    """The log-partition: −log p(gold) is the loss (Lafferty et al. 2001)."""
    return chain.log_partition(scores, lengths)


def quadratic_value(chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
    """The recursion with the quadratically smoothed maximum (Mensch and Blondel 2018)."""
    return smoothed_value(chain, scores, lengths, "quadratic")


def perceptron_value(chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
    """The score of the best sequence (Collins 2002)."""
    return exact_potential(chain, chain.map(scores, lengths), scores, lengths)


def sparsemap_value(chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
    """max over the marginal polytope of μ·s − ½‖μ‖², μ over pairs of neighbouring tags (Niculae et
    al. 2018a)."""
    pairs = chain.chain_scores(scores.double(), lengths)
    mean = LinearChain().sparsemap(pairs.detach(), lengths).mean
    # By Danskin's theorem the gradient is the mean.
    taken = torch.where(mean != 0, pairs, 0.0)
    return (mean * taken - 0.5 * mean.square()).flatten(1).sum(1)


VALUES: dict[str, Callable[[TagSequence, Tensor, Tensor], Tensor]] = {
    "crf": crf_value,
    "quadratic": quadratic_value,
    "perceptron": perceptron_value,
    "sparsemap": sparsemap_value,
}


def tag_loss(
    kind: str, chain: TagSequence, scores: Tensor, lengths: Tensor, allowed: Tensor
) -> Tensor:
    """Losses ``(B,)`` in nats, never negative.

    scores, allowed: ``(B, N, K)``; allowed is bool, what agrees with the annotation.
    """
    gold = scores.masked_fill(~allowed, -torch.inf)
    value = VALUES[kind]
    # Two large numbers, whose difference float32 would not hold: they may be of float64.
    return (value(chain, scores, lengths) - value(chain, gold, lengths)).to(scores.dtype)


def loss_and_gradient(
    kind: str,
    found: TagScores,
    tags: Sequence[str],
    evidence: Sequence[TagEvidence],
    posteriors: list[np.ndarray] | None = None,
) -> tuple[list[float], TagScores, list[int]]:
    """Losses of the docs, and the gradient of their sum.

    evidence: of each doc; for other losses than "crf" what :attr:`TagEvidence.only_forbids`.
    posteriors: gets for the loss "crf" of each doc ``(n, K)``, as of
        :class:`~spacy_latent.models.crf_loss.Loss`.
    RETURNS: also the docs whose annotation no sequence of tags agrees with. They do not count.
        Raises Contradiction where there are some but for the counts of entities.
    """
    if kind == "crf":
        losses, gradient, left_out, likely = _crf_loss_and_gradient(found, tags, evidence)
        if posteriors is not None:
            ends = np.cumsum([len(own.potentials) for own in evidence])
            posteriors += np.split(likely, ends[:-1])
        return losses, gradient, left_out
    if not all(own.only_forbids for own in evidence):
        raise LatentError(
            f"tag_losses: the loss is {kind!r}, and some runs of tags are said to be wrong, some "
            "entities are counted, or some tags are more probable than others; expected 'crf', the "
            "loss that has probabilities of all these."
        )
    allowed = [torch.from_numpy(own.allowed) for own in evidence]
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
            each = tag_loss(kind, chain, scores, lengths, open_to)
            total = total + each.sum()
            for doc, value in zip(group.docs, each.tolist()):
                losses[doc] = value
        d_emissions, d_transitions = torch.autograd.grad(
            total, (emissions, transitions), allow_unused=True, materialize_grads=True
        )
    gradient = TagScores(torch2xp(d_emissions), torch2xp(d_transitions))  # type: ignore[arg-type]
    return losses, gradient, left_out


def _crf_loss_and_gradient(
    found: TagScores, tags: Sequence[str], evidence: Sequence[TagEvidence]
) -> tuple[list[float], TagScores, list[int], np.ndarray]:
    emissions = xp2torch(found.emissions).detach()
    given = fetch_together([emissions, xp2torch(found.transitions).detach()])
    chain = bound_chain(given[1].double(), tags)
    loss = crf_loss(chain, given[0].numpy(), evidence)
    if loss.contradictory:
        raise Contradiction(loss.contradictory)
    slopes = torch.from_numpy(loss.emissions), torch.from_numpy(loss.transitions)
    d_emissions, d_transitions = send_together(
        [slope.to(own.dtype) for slope, own in zip(slopes, given)], emissions.device
    )
    gradient = TagScores(torch2xp(d_emissions), torch2xp(d_transitions))  # type: ignore[arg-type]
    return loss.losses.tolist(), gradient, loss.left_out, loss.posteriors


def rehearsal_gradient(
    found: TagScores, teacher: TagScores, tags: Sequence[str], sizes: Sequence[int]
) -> tuple[float, TagScores]:
    """The cross-entropy of the chain to that of a teacher with as many tags or fewer first ones, in
    nats summed over docs, and its gradient: what is expected of the one less of the other."""
    known = teacher.emissions.shape[1]
    own = first_tags(found, known)
    value, uses = _expected_uses(own, tags[:known], sizes)
    _, wanted = _expected_uses(teacher, tags[:known], sizes)
    d_emissions = torch.zeros_like(xp2torch(found.emissions))
    d_emissions[:, :known] = uses[0] - wanted[0]
    difference = uses[1] - wanted[1]
    d_transitions = torch.zeros_like(xp2torch(found.transitions))
    d_transitions[:known, :known] = difference[:known]
    d_transitions[len(tags) :, :known] = difference[known:]
    scored = (wanted[0] * xp2torch(own.emissions)).sum()
    scored = scored + (wanted[1] * xp2torch(own.transitions)).sum()
    gradient = TagScores(torch2xp(d_emissions), torch2xp(d_transitions))  # type: ignore[arg-type]
    # Of a sure teacher the difference may come out below zero.
    return max(value - float(scored), 0.0), gradient


def first_tags(found: TagScores, known: int) -> TagScores:
    """The scores of so many tags, and of them beside each other."""
    transitions = xp2torch(found.transitions)
    count = transitions.shape[1]
    rows = [*range(known), count, count + 1]
    kept = torch2xp(transitions[rows][:, :known].contiguous())
    return TagScores(found.emissions[:, :known], kept)  # type: ignore[arg-type]


def _expected_uses(
    found: TagScores, tags: Sequence[str], sizes: Sequence[int]
) -> tuple[float, tuple[Tensor, Tensor]]:
    emissions = xp2torch(found.emissions).detach()
    transitions = xp2torch(found.transitions).detach()
    sums = bound_chain(transitions, tags).batch_sums(emissions, torch.tensor(sizes))
    uses = sums.uses(np.ones(len(sizes)))
    made = [torch.from_numpy(part).to(emissions.dtype) for part in uses[:2]]
    of_emissions, of_transitions = send_together(made, emissions.device)
    return float(sums.log_partition.sum()), (of_emissions, of_transitions)


# ---------------------------------------------------------------- probabilities


@dataclass
class Probabilities:
    """Of a group of docs, under the distribution that the loss has learned.

    tags: ``(B, N, K)``, of each tag at each token.
    steps: ``(B, N)``, along the best sequence, see ``TagSequence.follow``; None for a mixture.
    mixture: sequences ``(S, B, N)`` and weights ``(S, B)`` of SparseMAP, else None.
    best: ``(B, N)``.
    """

    tags: np.ndarray
    best: np.ndarray
    steps: np.ndarray | None = None
    mixture: tuple[np.ndarray, np.ndarray] | None = None

    def of_run(self, b: int, start: int, end: int) -> float:
        """Of the tags of the best sequence from ``start`` to before ``end``, together."""
        own = self.best[b, start:end]
        if self.mixture is not None:
            sequences, weights = self.mixture
            same = (sequences[:, b, start:end] == own).all(1)
            return float((same * weights[:, b]).sum())
        assert self.steps is not None
        first = self.tags[b, start, own[0]]
        return float(first * self.steps[b, start + 1 : end].prod())


def probabilities(
    kind: str, chain: TagSequence, best: Tensor, scores: Tensor, lengths: Tensor
) -> Probabilities:
    """Of the CRF, also for the perceptron; of the walk that quadratic smoothing induces; or of the
    mixture of SparseMAP. best: ``(B, N)``, from ``best_tags``."""
    path = best.cpu().numpy()
    if kind in ("crf", "perceptron"):
        followed = chain.follow(best, scores, lengths)
        return Probabilities(followed[0].cpu().numpy(), path, followed[1].cpu().numpy())
    pairs = chain.chain_scores(scores, lengths)
    if kind == "sparsemap":
        solution = LinearChain().sparsemap(pairs, lengths)
        mixture = _tags_of(solution, pairs), solution.weights.cpu().numpy()
        return Probabilities(solution.mean.sum(2).cpu().numpy(), path, mixture=mixture)
    walk = smoothed_expectation(LinearChain(), pairs, lengths, "quadratic")
    of_pairs = walk.double().cpu().numpy()
    of_tags = of_pairs.sum(2)
    items, places = np.indices(path.shape)
    before = np.concatenate([np.zeros_like(path[:, :1]), path[:, :-1]], 1)
    pair = of_pairs[items, places, before, path]
    whole = np.where(places > 0, of_tags[items, places - 1, before], 1.0)
    steps = np.divide(pair, whole, out=np.zeros(path.shape), where=(path >= 0) & (whole > 0))
    return Probabilities(of_tags, path, steps)


def _tags_of(solution: SparseSolution, pairs: Tensor) -> np.ndarray:
    """The sequences of a mixture, ``(S, B, N)``, −1 at padding, by one transition at each position;
    as 0/1 arrays they would be S times as large as the scores of pairs, ``(B, N, K, K)``."""
    numbers, count = solution.part_numbers, pairs.shape[-1]
    return np.where(numbers < 0, -1, numbers % count)


def ranked(
    kind: str, chain: TagSequence, scores: Tensor, lengths: Tensor, count: int
) -> list[list[tuple[np.ndarray, float]]]:
    """For each doc of a group up to ``count`` sequences ``(n,)`` int32 with their weights, heaviest
    first: the support of SparseMAP where that was learned, the most probable ones of the walk that
    quadratic smoothing induces, else the best ones with their probabilities."""
    if kind == "quadratic":
        walk = smoothed_expectation(
            LinearChain(), chain.chain_scores(scores, lengths).double(), lengths, "quadratic"
        )
        # Each pair given its first tag: the logarithms of these add up to that of a sequence.
        before = walk.sum(2)[:, :-1, :, None]
        steps = torch.cat([walk[:, :1], walk[:, 1:] / before.where(before > 0, 1.0)], 1)
        tags, totals = LinearChain().top_k_tags(steps.log(), lengths, count)
        weights = totals.exp()
    elif kind == "sparsemap":
        pairs = chain.chain_scores(scores, lengths)
        solution = LinearChain().sparsemap(pairs, lengths)
        # Heaviest first, as the solver leaves them.
        tags = torch.from_numpy(_tags_of(solution, pairs)[:count])
        weights = solution.weights[:count]
    else:
        tags, totals = chain.top_k_tags(scores, lengths, count)
        assert chain.bound is not None
        # The difference of two large numbers, for a long doc.
        exact = chain.bind(*(part.double() for part in chain.bound))
        weights = (totals - exact.log_partition(scores.double(), lengths)).exp()
    sequences, shares = tags.cpu().numpy(), weights.cpu().numpy()
    # Where there are fewer. A weight may be too small for a number, and its sequence still there.
    there = sequences[:, :, 0] >= 0 if kind != "sparsemap" else shares > 0
    return [
        [(sequences[k, b, :n].copy(), float(shares[k, b])) for k in np.flatnonzero(there[:, b])]
        for b, n in enumerate(lengths.tolist())
    ]
