"""Losses and predictions of labelled spans, from a chart over all binary trees.

Each span of a tree has one class, and class 0 is "no label". The annotation gives the spans that
have a label. A tree agrees if it has exactly these labelled spans with their labels. Spans without
a label are summed out, as in the partially observed TreeCRF of Fu et al. (2021). Classes are summed
in each span before the chart. The chart is then a chart of trees without labels; see
:mod:`spacy_latent.kernels.spans.labelled_spans`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.errors import LatentError, NothingLeft
from spacy_latent.interventions import Intervention
from spacy_latent.kernels.core.gpu_transfers import send, send_together
from spacy_latent.kernels.spans.labelled_spans import LabelledSpans
from spacy_latent.layers.span_features import SpanCells
from spacy_latent.models.span_confidence import UNCHANGED, SpanConfidence
from spacy_latent.models.tree_span_classifier import SpanScores, threads_of
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.copies import solve_copies

# A span of a doc, start and end, with the classes that it may have.
Observed = tuple[int, int, tuple[int, ...]]
TREES = ConstituencyTree()
# At most one of two crossing spans, or of two exclusive labels of a span, is more probable than one
# half. The margin is for rounding of sums in float32.
SURE = 0.501


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
    """Return the log-sum-exp over classes, ``(P, B)``, and shares of classes.

    The shares ``(C, P, B)`` must be divided by their sum ``(P, B)``, the third result. Classes are
    the first axis: sums over a short last axis are slow.

    Args:
        scores: ``(C, P, B)``.
    """
    top = scores.amax(0)
    shares = (scores - top).exp_()
    total = shares.sum(0)
    return top + total.log(), shares, total


def best_compatible(gains: Tensor, lengths: Tensor) -> Tensor:
    """Return the spans with the largest sum of gains that do not cross each other, bool.

    Args:
        gains: ``(B, n, n)``. Only spans with a gain above 0 are chosen.
        lengths: ``(B,)``.
    """
    return (TREES.map(gains.clamp_min(0.0), lengths) > 0) & (gains > 0)


def most_compatible(observed: Sequence[tuple[int, int]]) -> list[bool]:
    """Return which spans to keep, so that no two cross and as few as possible are left out."""
    kept = [True] * len(observed)
    if not crosses(observed):
        return kept
    # Most spans of a long text cross no other.
    starts, ends = np.array(observed, dtype="int64").T
    crossing = np.zeros(len(observed), dtype=bool)
    for i, (start, end) in enumerate(observed):
        into = (starts < start) & (start < ends) & (ends < end)
        crossing |= into
        crossing[i] |= into.any()
    cluster: list[int] = []
    for i in sorted(np.flatnonzero(crossing).tolist(), key=lambda i: observed[i]):
        if cluster and observed[i][0] >= max(observed[k][1] for k in cluster):
            _leave_out(observed, cluster, kept)
            cluster = []
        cluster.append(i)
    _leave_out(observed, cluster, kept)
    return kept


def _leave_out(observed: Sequence[tuple[int, int]], cluster: list[int], kept: list[bool]) -> None:
    """Choose among overlapping spans, on a chart of the stretches between their ends.

    Each stretch is one token of the chart.
    """
    ends = sorted({end for i in cluster for end in observed[i]})
    number = {end: place for place, end in enumerate(ends)}
    n = len(ends) - 1
    gains = torch.zeros(1, n, n, dtype=torch.float64)
    places = {i: (number[observed[i][0]], number[observed[i][1]] - 1) for i in cluster}
    for place in places.values():
        gains[0][place] = 1.0
    taken = best_compatible(gains, torch.tensor([n]))[0]
    for i, place in places.items():
        kept[i] = bool(taken[place])


def crosses(observed: Sequence[tuple[int, int]]) -> bool:
    """Return whether two of the spans overlap and neither contains the other."""
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
    """Return the piece of a doc that contains the whole span, or None."""
    return next(
        (s for s, piece in enumerate(pieces) if piece[0] <= start and end <= piece[1]), None
    )


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
    within = _by_piece(found, observed)
    loss, gradients = 0.0, []
    for group, cells, array in zip(found.groups, found.cells, found.scores):
        scores = xp2torch(array)
        pieces_of_group = [within[d][s] for d, s in group.members]
        gold = Gold.of(pieces_of_group, cells, len(scores))
        lengths = send(group.lengths, scores.device)
        open_classes = None
        if any(len(unlabelled[d]) > 1 for d, _ in group.members if unlabelled):
            shape = len(scores), len(group.members)
            open_classes = torch.zeros(shape, dtype=torch.bool, device="cpu")
            for b, (d, _) in enumerate(group.members):
                open_classes[list(unlabelled[d]), b] = True
        with threads_of(scores), torch.no_grad():
            losses, gradient = losses_and_gradient(scores, lengths, gold, cells, open_classes)
        loss += float(losses.sum())
        gradients.append(torch2xp(gradient))
    return loss, replace(found, scores=gradients)  # type: ignore[arg-type]


def log_probabilities(
    found: SpanScores, observed: Sequence[Sequence[Observed]], temperature: float
) -> np.ndarray:
    """Return the log-probability that each doc has exactly the observed spans, ``(D,)``.

    The first arguments are those of :func:`loss_and_gradient`.

    Args:
        temperature: divisor of the scores.
    """
    within, total = _by_piece(found, observed), np.zeros(len(found.spans))
    for group, cells, array in zip(found.groups, found.cells, found.scores):
        scores = xp2torch(array) / temperature
        gold = Gold.of([within[d][s] for d, s in group.members], cells, len(scores))
        lengths = send(group.lengths, scores.device)
        with threads_of(scores), torch.no_grad():
            losses, _ = losses_and_gradient(scores, lengths, gold, cells)
        np.subtract.at(total, [d for d, _ in group.members], losses.cpu().numpy())
    return total


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


@dataclass
class LabelledSpan:
    """Span of a doc with a label.

    Attributes:
        start: first token.
        end: token after the last.
        label: number of the label.
        probability: probability of this span with this label, or its confidence after calibration.
    """

    start: int
    end: int
    label: int
    probability: float


@dataclass
class FoundSpans:
    """Spans of one piece of a doc.

    Attributes:
        start: first token of the piece.
        end: token after its last.
        chosen: predicted spans, which do not cross each other, the outer ones first.
        likely: all spans with at least the requested probability.
    """

    start: int
    end: int
    chosen: list[LabelledSpan]
    likely: list[LabelledSpan]


# Least penalty on the scores of forbidden parts. It is finite, so that a span still has some class,
# and trees that cross a forced span still have a probability.
FORBIDDEN = 1e4


def edit_spans(
    found: SpanScores, label_sets: Sequence[Sequence[int]], asked: Intervention
) -> SpanScores:
    """Return the scores of one doc, changed so that its labelled spans satisfy an intervention.

    Args:
        label_sets: see :func:`find_spans`.

    Raises:
        LatentError: if no tree has a part of the intervention.
        NothingLeft: if a forced span is also forbidden, or crosses another forced one.
    """
    made: list[Tensor] = [xp2torch(array).clone() / asked.temperature for array in found.scores]
    has = [
        [label in known for known in label_sets]
        for label in range(1 + max((label for known in label_sets for label in known), default=-1))
    ]
    # More than the scores of all spans of a tree can outweigh.
    largest = max([float(part.abs().max()) for part in made if part.numel()], default=0.0)
    words = max((int(group.lengths.max()) for group in found.groups), default=0)
    penalty = max(FORBIDDEN, 4.0 * words * largest)
    for forced, places in ((False, asked.forbidden), (True, asked.forced)):
        for start, part in places:
            scores, cells, b, cell = _cell_of(found, made, start, part, len(has))
            labelled = torch.tensor([False, *has[part[2]]])
            if forced:
                first, last = part[0], part[1] - 1
                crossing = (cells.first < first) & (cells.last >= first) & (cells.last < last)
                crossing |= (cells.first > first) & (cells.first <= last) & (cells.last > last)
                scores[:, crossing.to(scores.device), b] -= penalty
                scores[~labelled, cell, b] -= penalty
            else:
                scores[labelled, cell, b] -= penalty
    for start, part in asked.forced:
        scores, _, b, cell = _cell_of(found, made, start, part, len(has))
        if float(scores[:, cell, b].max()) < -penalty / 2:
            raise NothingLeft("tree of labelled spans")
    edited: list[Any] = [torch2xp(part) for part in made]
    return replace(found, scores=edited)


def _cell_of(
    found: SpanScores, made: Sequence[Tensor], start: int, part: Sequence[int], labels: int
) -> tuple[Tensor, SpanCells, int, int]:
    """Return scores, cells, piece and cell of a labelled span of the piece at token ``start``."""
    for group, cells, scores in zip(found.groups, found.cells, made):
        for b, (d, s) in enumerate(group.members):
            if found.spans[d][s][0] != start or len(part) != 3:
                continue
            first, end, label = part
            there = (cells.first == first) & (cells.last == end - 1)
            if end <= int(group.lengths[b]) and there.any() and 0 <= label < labels:
                return scores, cells, b, int(there.nonzero()[0])
    raise LatentError(
        f"{list(part)} of the piece that begins at token {start} is no span with a label of this "
        "text. Give the first token, the token after the last, and the number of the label."
    )


def find_spans(
    found: SpanScores,
    label_sets: Sequence[Sequence[int]],
    threshold: float,
    least: float | None,
    sure: SpanConfidence = UNCHANGED,
) -> list[list[FoundSpans]]:
    """Return the spans of each piece of each doc.

    The chosen spans have, each with its label, a probability of at least ``threshold``. Among all
    sets of spans that do not cross, they have the largest sum of probability above the threshold.
    At most one of two crossing spans is more probable than .5. With such a threshold all spans
    above it are chosen.

    A calibration changes the confidences of these spans, and not which they are.

    Args:
        label_sets: the labels of each class except the first.
        threshold: least probability of chosen spans.
        least: least probability of ``likely`` spans, or None for no such spans.
        sure: calibrated confidences of spans.
    """
    pieces = [[FoundSpans(span[0], span[1], [], []) for span in spans] for spans in found.spans]
    labels = 1 + max((label for known in label_sets for label in known), default=-1)
    if not labels:
        return pieces
    bounds = [threshold] if least is None else [threshold, max(least, 1e-30)]
    for group, cells, array in zip(found.groups, found.cells, found.scores):
        scores = xp2torch(array)
        lengths = send(group.lengths, scores.device)
        member = memberships(label_sets, labels, scores)
        with threads_of(scores), torch.no_grad():
            spans = LikelySpans.of(scores, lengths, cells, member, min(bounds))
            said = spans.of_labels
            if sure.temperature != 1:
                said = spans.under(scores / sure.temperature, lengths, cells, member)
            said = sure(said)
            chosen = choose(spans, member, lengths, threshold, cells.n)
            _put(pieces, group.members, "chosen", spans, said, chosen)
            if least is not None:
                likely = spans.of_labels >= bounds[1]
                _put(pieces, group.members, "likely", spans, said, likely)
    return pieces


def memberships(label_sets: Sequence[Sequence[int]], labels: int, like: Tensor) -> Tensor:
    """Return sets of labels as 0/1 rows, ``(sets, labels)``, in the dtype of ``like``."""
    member = like.new_zeros(len(label_sets), labels)
    for place, known in enumerate(label_sets):
        member[place, list(known)] = 1.0
    return member


@dataclass
class LikelySpans:
    """The K spans of a group with a probable label, few of many.

    A label is at most as probable as its span. Labels of improbable spans are not computed.

    Attributes:
        item: ``(K,)`` int64, piece of each span.
        first: ``(K,)`` int64, its first token in the piece.
        last: ``(K,)`` int64, its last token in the piece.
        of_labels: ``(L, K)``, probabilities of a span with each label.
    """

    item: Tensor
    first: Tensor
    last: Tensor
    of_labels: Tensor

    @classmethod
    def of(
        cls, scores: Tensor, lengths: Tensor, cells: SpanCells, member: Tensor, least: float
    ) -> LikelySpans:
        """Return the spans with a label of at least a given probability.

        Args:
            scores: ``(C, P, B)``.
            lengths: ``(B,)``.
            member: ``(C − 1, L)``, 1 if a class, without the first, has a label.
            least: least probability of a label.

        Raises:
            InvalidScores: if a score is not finite.
        """
        marginals = span_marginals(scores, lengths, cells)
        # Spans longer than the longest cells have no class.
        likely = (marginals >= least) & (marginals > 0.0)
        item, first, last = likely.nonzero(as_tuple=True)
        if len(cells) < cells.n * (cells.n + 1) // 2:
            starts = torch.tensor(cells.starts, device=first.device)
            known = starts[first] + last - first < starts[first + 1]
            item, first, last = item[known], first[known], last[known]
        places = item, first, last
        of_labels = labels_at(scores, cells, member, marginals, places)
        some = of_labels.amax(0) >= least
        return cls(item[some], first[some], last[some], of_labels[:, some])

    def under(self, scores: Tensor, lengths: Tensor, cells: SpanCells, member: Tensor) -> Tensor:
        """Return the probabilities ``(L, K)`` of these spans under other scores."""
        places = self.item, self.first, self.last
        return labels_at(scores, cells, member, span_marginals(scores, lengths, cells), places)


def span_marginals(scores: Tensor, lengths: Tensor, cells: SpanCells) -> Tensor:
    """Return the probabilities of spans, whatever their class, ``(B, n, n)`` float64."""
    if scores.device.type == "cpu":
        chart = torch.empty(scores.shape[2], cells.n, cells.n, dtype=torch.float64)
        spans = LabelledSpans(scores.numpy(), lengths.numpy(), cells.starts)
        spans.fold(chart.numpy())
    else:
        chart = cells.chart(scores.logsumexp(0))
    return TREES.marginals(chart, lengths)


def labels_at(
    scores: Tensor,
    cells: SpanCells,
    member: Tensor,
    marginals: Tensor,
    places: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Return the probabilities of K spans with each label, ``(L, K)``.

    Args:
        scores: ``(C, P, B)``.
        member: see :meth:`LikelySpans.of`.
        marginals: result of :func:`span_marginals`.
        places: piece, first and last token of each span.
    """
    item, first, last = places
    starts = torch.tensor(cells.starts, device=first.device)
    of_labels = scores[:, starts[first] + last - first, item].softmax(0)[1:]
    if not _alone(member):
        of_labels = member.T @ of_labels
    return of_labels * marginals[places].to(of_labels.dtype)


def _alone(member: Tensor) -> bool:
    """Return whether each class is one label, in the same order."""
    return member.shape[0] == member.shape[1] and torch.equal(
        member, torch.eye(len(member), dtype=member.dtype, device=member.device)
    )


def choose(spans: LikelySpans, member: Tensor, lengths: Tensor, threshold: float, n: int) -> Tensor:
    """Return which labels of which spans are predicted, ``(L, K)`` bool; see :func:`find_spans`.

    Args:
        member: see :meth:`LikelySpans.of`.
        lengths: ``(B,)``.
        threshold: least probability.
        n: number of tokens of the longest piece.
    """
    of_labels = spans.of_labels
    likely = (of_labels >= threshold) & (of_labels > 0.0)
    sure = _alone(member) and not (likely & (of_labels <= SURE)).any()
    if threshold > SURE or sure or not likely.any():
        return likely
    # A label exactly at the threshold still has a gain.
    gains = torch.where(likely, of_labels - threshold + 1e-6, 0.0)
    best, which = (member @ gains).max(0)
    chart = best.new_zeros(len(lengths), n, n, dtype=torch.float64)
    places = spans.item, spans.first, spans.last
    chart[places] = best.double()
    taken = best_compatible(chart, lengths)[places]
    return likely & taken & (member[which].T > 0)


def _put(
    pieces: list[list[FoundSpans]],
    members: list[tuple[int, int]],
    where: str,
    spans: LikelySpans,
    said: Tensor,
    wanted: Tensor,
) -> None:
    """Append the labelled spans of a mask ``wanted``, ``(L, K)`` bool, to their pieces.

    Args:
        said: confidences, ``(L, K)``.
    """
    label, place = wanted.nonzero(as_tuple=True)
    values = said[label, place].cpu().numpy()
    ends = spans.first[place], -spans.last[place]
    rows = torch.stack([spans.item[place], *ends, label]).cpu().numpy()
    for column in np.lexsort(rows[::-1]).tolist():
        piece, start, minus_last, number = rows[:, column].tolist()
        d, s = members[piece]
        own = pieces[d][s]
        span = LabelledSpan(
            own.start + start, own.start - minus_last + 1, number, float(values[column])
        )
        getattr(own, where).append(span)
