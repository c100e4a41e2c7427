"""What labelled spans learn from, and how sure they are: a chart over all binary trees, whose spans
have one class each, of which class 0 is "no label".

The annotation says which spans have a label. A tree agrees with it that holds those, each with its
label, and no other labelled span; spans without a label are summed out: the partially observed
TreeCRF of Fu et al. (2021). The sum over classes is taken in each span before the chart, so that
this is the chart of trees without labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.layers.span_features import SpanCells
from spacy_latent.models.tree_span_classifier import SpanScores, threads_of
from spacy_latent.structures.constituency_tree import ConstituencyTree

# A span of a doc, start and end, with the classes that it may have.
Observed = tuple[int, int, tuple[int, ...]]
TREES = ConstituencyTree()


def fold(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of ``scores`` ``(C, P, B)`` the sum over classes in the logarithm, ``(P, B)``, and shares of
    classes ``(C, P, B)``, which are to be divided by their sum ``(P, B)``. Classes come first: sums
    over a last axis of a few entries are slow."""
    top = scores.amax(0)
    shares = (scores - top).exp_()
    total = shares.sum(0)
    return top + total.log(), shares, total


@dataclass
class Gold:
    """What the annotation says of a group of pieces.

    crossing: ``(B, n, n)`` bool, spans that no tree has.
    cells: ``(3, O)`` int64, piece, first and last token of each observed span.
    numbers: ``(O,)`` int64, which cell of the group's each of them is.
    classes: ``(C, O)`` bool, those that it may have.
    """

    crossing: Tensor
    cells: Tensor
    numbers: Tensor
    classes: Tensor

    @classmethod
    def of(cls, pieces: Sequence[Sequence[Observed]], group_cells: SpanCells, classes: int) -> Gold:
        """pieces: of each its spans, which do not cross, from its own start."""
        n = group_cells.n
        crossing = np.zeros((len(pieces), n, n), dtype=bool)
        cells, numbers, allowed = [], [], []
        for b, piece in enumerate(pieces):
            own = crossing[b]
            for start, end, known in piece:
                # From before the span into it, and from inside to behind it.
                own[:start, start : end - 1] = True
                own[start + 1 : end, end:] = True
                cells.append((b, start, end - 1))
                numbers.append(group_cells.starts[start] + end - 1 - start)
                allowed.append(known)
        may_be = np.zeros((classes, len(cells)), dtype=bool)
        for place, known in enumerate(allowed):
            may_be[list(known), place] = True
        found = np.array(cells, dtype="int64").reshape(-1, 3).T.copy()
        places = np.array(numbers, dtype="int64")
        return cls(*(torch.from_numpy(array) for array in (crossing, found, places, may_be)))

    def to(self, device: torch.device) -> Gold:
        return Gold(
            self.crossing.to(device),
            self.cells.to(device),
            self.numbers.to(device),
            self.classes.to(device),
        )


def losses_and_gradient(
    scores: Tensor, lengths: Tensor, gold: Gold, cells: SpanCells
) -> tuple[Tensor, Tensor]:
    """−log p(annotation) of each piece, ``(B,)`` float64 in nats, and the gradient of their sum.

    scores: ``(C, P, B)``, finite.
    """
    folded, gradient, total = fold(scores)
    b, first, last = gold.cells
    chosen = scores[:, gold.numbers, b].masked_fill(~gold.classes, -torch.inf)
    agreeing = cells.chart(scores[0]).masked_fill_(gold.crossing, -torch.inf)
    agreeing[b, first, last] = chosen.logsumexp(0).double()
    with torch.enable_grad():
        both = torch.cat([cells.chart(folded), agreeing]).requires_grad_()
        totals = TREES.log_partition(both, torch.cat([lengths, lengths]))
        (marginals,) = torch.autograd.grad(totals.sum(), both)
    everything, wanted = marginals.chunk(2)
    gradient *= cells.of_chart(everything).to(scores.dtype) / total
    # An observed span is in every tree that agrees, with one of its classes.
    unlabelled = wanted.clone()
    unlabelled[b, first, last] = 0.0
    gradient[0] -= cells.of_chart(unlabelled).to(scores.dtype)
    gradient[:, gold.numbers, b] -= chosen.softmax(0)
    whole, agreed = totals.detach().chunk(2)
    return whole - agreed, gradient


def probabilities(scores: Tensor, lengths: Tensor, cells: SpanCells) -> Tensor:
    """``(C, P, B)``: that a span is in the tree with this class."""
    folded, shares, total = fold(scores)
    marginals = TREES.marginals(cells.chart(folded), lengths)
    return shares.mul_(cells.of_chart(marginals).to(scores.dtype) / total)


def best_compatible(gains: Tensor, lengths: Tensor) -> Tensor:
    """Of spans with a gain above 0, ``(B, n, n)``, those that together have the greatest, among
    such as do not cross; bool."""
    return (TREES.map(gains.clamp_min(0.0), lengths) > 0) & (gains > 0)


def most_compatible(observed: Sequence[tuple[int, int]]) -> list[bool]:
    """Which spans to keep so that none crosses another and as few as possible are left out."""
    if not crosses(observed):
        return [True] * len(observed)
    low = min(start for start, _ in observed)
    n = max(end for _, end in observed) - low
    gains = torch.zeros(1, n, n, dtype=torch.float64)
    for start, end in observed:
        gains[0, start - low, end - 1 - low] = 1.0
    kept = best_compatible(gains, torch.tensor([n]))[0]
    return [bool(kept[start - low, end - 1 - low]) for start, end in observed]


def crosses(observed: Sequence[tuple[int, int]]) -> bool:
    """Whether two of the spans overlap and neither holds the other."""
    around: list[int] = []
    for start, end in sorted(observed, key=lambda span: (span[0], -span[1])):
        while around and around[-1] <= start:
            around.pop()
        if around and around[-1] < end:
            return True
        around.append(end)
    return False


# ---------------------------------------------------------------- batches of docs


def place_of(pieces: Sequence[tuple[int, ...]], start: int, end: int) -> int | None:
    """The piece of a doc that holds the whole span, or None."""
    return next(
        (s for s, piece in enumerate(pieces) if piece[0] <= start and end <= piece[1]), None
    )


def loss_and_gradient(
    found: SpanScores, observed: Sequence[Sequence[Observed]]
) -> tuple[float, SpanScores]:
    """The loss summed over all pieces, and its gradient.

    observed: of each doc its spans, which do not cross and lie each in one piece.
    """
    within: list[list[list[Observed]]] = [[[] for _ in pieces] for pieces in found.spans]
    for pieces, own, spans in zip(found.spans, within, observed):
        for start, end, classes in spans:
            place = place_of(pieces, start, end)
            assert place is not None
            shift = pieces[place][0]
            own[place].append((start - shift, end - shift, classes))
    loss, gradients = 0.0, []
    for group, cells, array in zip(found.groups, found.cells, found.scores):
        scores = xp2torch(array)
        pieces_of_group = [within[d][s] for d, s in group.members]
        gold = Gold.of(pieces_of_group, cells, len(scores)).to(scores.device)
        lengths = group.lengths.to(scores.device)
        with threads_of(scores), torch.no_grad():
            losses, gradient = losses_and_gradient(scores, lengths, gold, cells)
        loss += float(losses.sum())
        gradients.append(torch2xp(gradient))
    return loss, replace(found, scores=gradients)  # type: ignore[arg-type]


@dataclass
class LabelledSpan:
    """start, end: of the doc. label: its number. probability: of this span with this label."""

    start: int
    end: int
    label: int
    probability: float


@dataclass
class FoundSpans:
    """Of one piece of a doc.

    chosen: none of which crosses another, the outer ones first.
    likely: all at least so probable as is asked for.
    """

    start: int
    end: int
    chosen: list[LabelledSpan]
    likely: list[LabelledSpan]


def find_spans(
    found: SpanScores, label_sets: Sequence[Sequence[int]], threshold: float, least: float | None
) -> list[list[FoundSpans]]:
    """For each doc what there is in each of its pieces.

    The chosen spans have, each with its label, a probability of ``threshold`` or more, and together
    the greatest sum of what is above it, among sets of which none crosses another. Of two that
    cross at most one is more probable than .5, so that with such a threshold all are chosen.

    label_sets: the labels of each class but the first.
    least: that of ``likely`` spans, or None for none of these.
    """
    pieces = [[FoundSpans(span[0], span[1], [], []) for span in spans] for spans in found.spans]
    labels = 1 + max((label for known in label_sets for label in known), default=-1)
    for group, cells, array in zip(found.groups, found.cells, found.scores):
        scores = xp2torch(array)
        lengths = group.lengths.to(scores.device)
        member = scores.new_zeros(len(label_sets), labels)
        for place, known in enumerate(label_sets):
            member[place, list(known)] = 1.0
        with threads_of(scores), torch.no_grad():
            of_classes = probabilities(scores, lengths, cells)[1:]
            of_labels = torch.einsum("kl,kpb->lpb", member, of_classes)
            chosen = choose(of_labels, member, lengths, threshold, cells)
            _put(pieces, group.members, cells, "chosen", chosen, of_labels)
            if least is not None:
                likely = of_labels >= max(least, 1e-30)
                _put(pieces, group.members, cells, "likely", likely, of_labels)
    return pieces


def choose(
    of_labels: Tensor, member: Tensor, lengths: Tensor, threshold: float, cells: SpanCells
) -> Tensor:
    """Which labels of which spans are predicted, ``(L, P, B)`` bool; see :func:`find_spans`.

    of_labels: probabilities ``(L, P, B)``. member: ``(K, L)``, 1 where a class has a label.
    """
    likely = (of_labels >= threshold) & (of_labels > 0.0)
    if not likely.any() or threshold > 0.501:
        return likely
    # A label at the threshold itself counts for something.
    gains = torch.where(likely, of_labels - threshold + 1e-6, 0.0)
    best, which = torch.einsum("kl,lpb->kpb", member, gains).max(0)
    taken = cells.of_chart(best_compatible(cells.chart(best), lengths))
    return likely & taken & (member[which].movedim(-1, 0) > 0)


def _put(
    pieces: list[list[FoundSpans]],
    members: list[tuple[int, int]],
    cells: SpanCells,
    where: str,
    chosen: Tensor,
    of_labels: Tensor,
) -> None:
    label, cell, b = chosen.nonzero(as_tuple=True)
    values = of_labels[label, cell, b].cpu().numpy()
    label, cell, b = label.cpu(), cell.cpu(), b.cpu()
    rows = torch.stack([b, cells.first[cell], -cells.last[cell], label]).numpy()
    for place in np.lexsort(rows[::-1]).tolist():
        piece, start, minus_last, number = rows[:, place].tolist()
        d, s = members[piece]
        own = pieces[d][s]
        span = LabelledSpan(
            own.start + start, own.start - minus_last + 1, number, float(values[place])
        )
        getattr(own, where).append(span)
