"""Predictions of labelled spans, from the marginals of a chart over all binary trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.annotations.span_structure import LEAST_IN_SETS
from spacy_latent.errors import LatentError, NothingLeft
from spacy_latent.interventions import Intervention
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.kernels.spans.labelled_spans import LabelledSpans
from spacy_latent.layers.span_features import SpanCells
from spacy_latent.models.compatible_spans import TREES, best_compatible
from spacy_latent.models.span_confidence import UNCHANGED, SpanConfidence
from spacy_latent.models.tree_span_classifier import SpanScores, threads_of

# At most one of two crossing spans, or of two exclusive labels of a span, is more probable than one
# half. The margin is for rounding of sums in float32.
SURE = 0.501
# Least penalty on the scores of forbidden parts. It is finite, so that every span still has a
# class, and trees that cross a forced span still have a probability.
FORBIDDEN = 1e4


@dataclass
class LabelledSpan:
    """Span of a doc, from its first token to the token after its last, with a label.

    Attributes:
        label: number of the label.
        probability: probability of this span with this label, or its confidence after calibration.
    """

    start: int
    end: int
    label: int
    probability: float


@dataclass
class FoundSpans:
    """Spans of one piece of a doc, from its first token to the token after its last.

    Attributes:
        chosen: predicted spans, which do not cross each other, the outer ones first.
        likely: all spans with at least the requested probability.
        possible: the set of possible spans, the most probable first, or None without sets.
    """

    start: int
    end: int
    chosen: list[LabelledSpan]
    likely: list[LabelledSpan]
    possible: list[LabelledSpan] | None


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
    has = [[label in known for known in label_sets] for label in range(_count(label_sets))]
    # A penalty that the scores of all spans of a tree together cannot outweigh.
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
        f"{list(part)} is no labelled span of the sentence that begins at token {start}. Give the "
        "first token, the token after the last, and the number of the label."
    )


def find_spans(
    found: SpanScores,
    label_sets: Sequence[Sequence[int]],
    threshold: float,
    least: float | None,
    sure: SpanConfidence = UNCHANGED,
    least_of_set: float | None = None,
) -> list[list[FoundSpans]]:
    """Return the spans of each piece of each doc.

    Each chosen span has, with its label, a probability of at least ``threshold``. Among all sets of
    such spans without crossings, the chosen one has the largest sum of probability minus threshold.
    At most one of two crossing spans is more probable than .5. So with a threshold above .5, all
    spans that reach it are chosen.

    A calibration changes the confidences of the spans, but not the choice.

    Args:
        label_sets: the labels of each class except the first.
        least: least probability of ``likely`` spans, or None for no such spans.
        sure: calibrated confidences of spans.
        least_of_set: least confidence of ``possible`` spans, or None for no such spans.
    """
    has_sets = least_of_set is not None
    pieces = [
        [FoundSpans(span[0], span[1], [], [], [] if has_sets else None) for span in spans]
        for spans in found.spans
    ]
    labels = _count(label_sets)
    if not labels:
        return pieces
    bounds = [threshold] if least is None else [threshold, max(least, 1e-30)]
    if least_of_set is not None:
        bounds.append(LEAST_IN_SETS)
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
            if least_of_set is not None:
                # The candidates do not depend on the threshold, since the coverage was measured
                # with them.
                possible = (said >= least_of_set) & (spans.of_labels >= LEAST_IN_SETS)
                _put(pieces, group.members, "possible", spans, said, possible)
    for piece in (piece for own in pieces for piece in own):
        if piece.possible:
            piece.possible.sort(key=lambda span: -span.probability)
    return pieces


def _count(label_sets: Sequence[Sequence[int]]) -> int:
    """Return one more than the largest label."""
    return 1 + max((label for known in label_sets for label in known), default=-1)


def memberships(label_sets: Sequence[Sequence[int]], labels: int, like: Tensor) -> Tensor:
    """Return sets of labels as 0/1 rows, ``(sets, labels)``, in the dtype of ``like``."""
    member = like.new_zeros(len(label_sets), labels)
    for place, known in enumerate(label_sets):
        member[place, list(known)] = 1.0
    return member


@dataclass
class LikelySpans:
    """The K spans of a group that have a probable label.

    A label of a span is at most as probable as the span, so labels of improbable spans are not
    computed.

    Attributes:
        item, first, last: ``(K,)`` int64, the piece of each span, and its tokens in the piece.
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

        Raises:
            InvalidScores: if a score is not finite.
        """
        marginals = span_marginals(scores, lengths, cells)
        # Spans longer than all cells have no label.
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
        scores, member: see :meth:`LikelySpans.of`.
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
    """Return whether class i + 1 has exactly the label i, for all labels."""
    return member.shape[0] == member.shape[1] and torch.equal(
        member, torch.eye(len(member), dtype=member.dtype, device=member.device)
    )


def choose(spans: LikelySpans, member: Tensor, lengths: Tensor, threshold: float, n: int) -> Tensor:
    """Return which labels of which spans are predicted, ``(L, K)`` bool; see :func:`find_spans`.

    Args:
        member, lengths: see :meth:`LikelySpans.of`.
        n: number of tokens of the longest piece.
    """
    of_labels = spans.of_labels
    likely = (of_labels >= threshold) & (of_labels > 0.0)
    sure = _alone(member) and not (likely & (of_labels <= SURE)).any()
    if threshold > SURE or sure or not likely.any():
        return likely
    # A label exactly at the threshold still has a positive gain.
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
    """Append the ``wanted`` spans, ``(L, K)`` bool, with confidences ``said`` to their pieces."""
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
