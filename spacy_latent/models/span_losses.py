"""Losses and predictions of labelled spans, from a chart over all binary trees.

Each span of a tree has one class, and class 0 is "no label". The annotation gives the spans that
have a label. A tree agrees if it has exactly these labelled spans with their labels. Spans without
a label are summed out, as in the partially observed TreeCRF of Fu et al. (2021). Classes are summed
in each span before the chart. The chart is then a chart of trees without labels; see
:mod:`spacy_latent.kernels.spans.labelled_spans`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send, send_together
from spacy_latent.kernels.spans.labelled_spans import LabelledSpans
from spacy_latent.layers.span_features import SpanCells
from spacy_latent.models.compatible_spans import TREES
from spacy_latent.models.span_groups import Group
from spacy_latent.models.tree_span_classifier import SpanScores, threads_of
from spacy_latent.structures.copies import solve_copies

# A span of a doc, start and end, with the classes that it may have.
Observed = tuple[int, int, tuple[int, ...]]


@dataclass
class Gold:
    """Annotation of a group of pieces.

    Attributes:
        cells: ``(3, O)`` int64, piece, first and last token of each observed span.
        numbers: ``(O,)`` int64, its cell among all cells of the group.
        classes: ``(C, O)`` bool, the classes that it may have.
    """

    cells: Tensor
    numbers: Tensor
    classes: Tensor

    @classmethod
    def of(cls, pieces: Sequence[Sequence[Observed]], group_cells: SpanCells, classes: int) -> Gold:
        """Return the annotation of a group.

        Args:
            pieces: observed spans of each piece, counted from its start. They do not cross.
        """
        places = [(b, start, end - 1) for b, piece in enumerate(pieces) for start, end, _ in piece]
        known = [own for piece in pieces for _, _, own in piece]
        cells = np.array(places, dtype="int64").reshape(-1, 3).T.copy()
        numbers = np.array(group_cells.starts)[cells[1]] + cells[2] - cells[1]
        may_be = np.zeros((classes, len(known)), dtype=bool)
        columns = np.repeat(np.arange(len(known)), [len(own) for own in known])
        may_be[[c for own in known for c in own], columns] = True
        return cls(*(torch.from_numpy(array) for array in (cells, numbers, may_be)))

    def crossing(self, batch: int, n: int) -> Tensor:
        """Return a mask of the spans that cross an observed span, ``(batch, n, n)`` bool."""
        crossing = np.zeros((batch, n, n), dtype=bool)
        for b, first, last in self.cells.T.tolist():
            # From before the span into it, and from inside to behind it.
            crossing[b, :first, first:last] = True
            crossing[b, first + 1 : last + 1, last + 1 :] = True
        return torch.from_numpy(crossing)


def losses_and_gradient(
    scores: Tensor, lengths: Tensor, gold: Gold, cells: SpanCells, unlabelled: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return −log p(annotation) of each piece and the gradient of their sum.

    Args:
        scores: ``(C, P, B)``, finite.
        lengths: numbers of tokens of the pieces, ``(B,)`` int64.
        gold: the observed spans, on the CPU.
        cells: places of spans among the P cells.
        unlabelled: mask of the classes that a span may have in each piece if it is not observed,
            ``(C, B)`` bool on the CPU; None for class 0 alone.

    Returns:
        The losses in nats, ``(B,)`` float64, and the gradient, with the shape of the scores.
    """
    if scores.device.type != "cpu" or unlabelled is not None:
        return losses_by_tensors(scores, lengths, gold, cells, unlabelled)
    batch = scores.shape[2]
    spans = LabelledSpans(scores.numpy(), lengths.numpy(), cells.starts)
    both = np.empty((2 * batch, cells.n, cells.n))
    observed = gold.cells.numpy(), gold.classes.numpy()
    spans.fold(both[:batch])
    spans.fold_agreeing(*observed, both[batch:])
    twice = torch.cat([lengths, lengths])
    totals, mean = solve_copies(
        TREES.log_partition_and_marginals, torch.from_numpy(both), twice, batch
    )
    marginals = mean.numpy()
    gradient = spans.gradient(marginals[:batch])
    spans.subtract_agreeing(*observed, both[batch:], marginals[batch:], gradient)
    whole, agreed = totals.chunk(2)
    return whole - agreed, torch.from_numpy(gradient)


def losses_by_tensors(
    scores: Tensor, lengths: Tensor, gold: Gold, cells: SpanCells, unlabelled: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the result of :func:`losses_and_gradient` by torch, on the device of the scores."""
    given = [gold.cells, gold.numbers, gold.classes, gold.crossing(scores.shape[2], cells.n)]
    if unlabelled is not None:
        given.append(unlabelled)
    (b, first, last), numbers, classes, crossing, *masks = send_together(given, scores.device)
    folded, gradient, total = fold_by_tensors(scores)
    chosen = scores[:, numbers, b].masked_fill(~classes, -torch.inf)
    # Scores of spans that are not observed, summed over the classes that these may have.
    others, shares = scores[0], None
    if masks:
        allowed = scores.masked_fill(~masks[0][:, None], -torch.inf)
        others, shares = allowed.logsumexp(0), allowed.softmax(0)
    agreeing = cells.chart(others).masked_fill_(crossing, -torch.inf)
    agreeing[b, first, last] = chosen.logsumexp(0).double()
    both, twice = torch.cat([cells.chart(folded), agreeing]), torch.cat([lengths, lengths])
    totals, marginals = solve_copies(TREES.log_partition_and_marginals, both, twice, len(lengths))
    everything, wanted = marginals.chunk(2)
    gradient *= cells.of_chart(everything).to(scores.dtype) / total
    # An observed span is in every tree that agrees, with one of its classes.
    not_observed = wanted.clone()
    not_observed[b, first, last] = 0.0
    uses = cells.of_chart(not_observed).to(scores.dtype)
    if shares is None:
        gradient[0] -= uses
    else:
        gradient -= shares * uses
    gradient[:, numbers, b] -= chosen.softmax(0)
    whole, agreed = totals.chunk(2)
    return whole - agreed, clear_padding(gradient, lengths, cells)


def clear_padding(values: Tensor, lengths: Tensor, cells: SpanCells) -> Tensor:
    """Set ``values`` ``(C, P, B)`` to 0 in cells without a span, and return them.

    Scores of these cells may be NaN, which a product with 0 does not remove.
    """
    return values.masked_fill_(cells.last.to(values.device)[:, None] >= lengths, 0.0)


def fold_by_tensors(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-sum-exp over classes of scores ``(C, P, B)``, and shares of classes.

    The shares ``(C, P, B)`` must be divided by their sum ``(P, B)``, the third result. Classes are
    the first axis: sums over a short last axis are slow.
    """
    top = scores.amax(0)
    shares = (scores - top).exp_()
    total = shares.sum(0)
    return top + total.log(), shares, total


# ---------------------------------------------------------------- batches of docs


def place_of(pieces: Sequence[tuple[int, ...]], start: int, end: int) -> int | None:
    """Return the piece of a doc that contains the whole span, or None."""
    return next((s for s, (a, b, *_) in enumerate(pieces) if a <= start and end <= b), None)


def loss_and_gradient(
    found: SpanScores,
    observed: Sequence[Sequence[Observed]],
    unlabelled: Sequence[Sequence[int]] = (),
) -> tuple[float, SpanScores]:
    """Return the loss summed over all pieces, and its gradient.

    Args:
        observed: the observed spans of each doc. They do not cross, and each lies in one piece.
        unlabelled: for each doc the classes that its other spans may have; empty for class 0.
    """
    loss, gradients = 0.0, []
    for _, losses, gradient in _of_groups(found, observed, unlabelled):
        loss += float(losses.sum())
        gradients.append(torch2xp(gradient))
    return loss, replace(found, scores=gradients)  # type: ignore[arg-type]


def log_probabilities(
    found: SpanScores, observed: Sequence[Sequence[Observed]], temperature: float
) -> np.ndarray:
    """Return the log-probability that each doc has exactly the observed spans, ``(D,)``.

    For the first arguments see :func:`loss_and_gradient`.
    """
    total = np.zeros(len(found.spans))
    for group, losses, _ in _of_groups(found, observed, temperature=temperature):
        np.subtract.at(total, group.docs, losses.cpu().numpy())
    return total


def _of_groups(
    found: SpanScores,
    observed: Sequence[Sequence[Observed]],
    unlabelled: Sequence[Sequence[int]] = (),
    temperature: float | None = None,
) -> Iterator[tuple[Group, Tensor, Tensor]]:
    """Yield each group with the losses of its pieces and the gradient of their sum."""
    within = _by_piece(found, observed)
    for group, cells, array in zip(found.groups, found.cells, found.scores):
        scores = xp2torch(array) if temperature is None else xp2torch(array) / temperature
        gold = Gold.of([within[d][s] for d, s in group.members], cells, len(scores))
        lengths = send(group.lengths, scores.device)
        open_classes = None
        if any(len(unlabelled[d]) > 1 for d, _ in group.members if unlabelled):
            shape = len(scores), len(group.members)
            open_classes = torch.zeros(shape, dtype=torch.bool, device="cpu")
            for b, (d, _) in enumerate(group.members):
                open_classes[list(unlabelled[d]), b] = True
        with threads_of(scores), torch.no_grad():
            losses, gradient = losses_and_gradient(scores, lengths, gold, cells, open_classes)
        yield group, losses, gradient


def _by_piece(
    found: SpanScores, observed: Sequence[Sequence[Observed]]
) -> list[list[list[Observed]]]:
    """Return the observed spans of each piece of each doc, counted from its start."""
    within: list[list[list[Observed]]] = [[[] for _ in pieces] for pieces in found.spans]
    for pieces, own, spans in zip(found.spans, within, observed):
        for start, end, classes in spans:
            place = place_of(pieces, start, end)
            assert place is not None
            shift = pieces[place][0]
            own[place].append((start - shift, end - shift, classes))
    return within
