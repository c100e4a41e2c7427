"""Groups of spans of a batch of docs, padded to a common length, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import LatentError, number_of
from spacy_latent.estimators.base import Given
from spacy_latent.kernels.core.gpu_transfers import send_together

# For each doc its spans as (start, end), or its pairs of spans as (start, end, other_start,
# other_end): token offsets.
Spans = list[list[tuple[int, ...]]]

# Bounds on the cost of padding the spans of a group to the longest one.
MAX_CELLS = 1 << 22
ALWAYS_TOGETHER = 16


@dataclass
class Group:
    """Spans, or pairs of spans, that are padded to a common length.

    Attributes:
        members: for each of the B spans its doc and its place among the doc's spans.
        rows: ``(B, n)`` int64, rows of the batch; the number of rows at padding. A pair has the
            rows of the first span, directly followed by the rows of the second.
        lengths: ``(B,)`` int64, or ``(B, 2)`` for pairs.
    """

    members: list[tuple[int, int]]
    rows: Tensor
    lengths: Tensor

    @property
    def docs(self) -> list[int]:
        """Doc of each span."""
        return [d for d, _ in self.members]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return rows and lengths on a device, in one transfer."""
        rows, lengths = send_together([self.rows, self.lengths], device)
        return rows, lengths


@dataclass
class Placed:
    """Groups of a batch of N rows on a device.

    Attributes:
        cells: ``(N,)`` int64, for each row its cell, counted through the cells of all groups. It is
            the number of cells if the row is in no span.
        others: tensors that were sent with them.
    """

    rows: list[Tensor]
    lengths: list[Tensor]
    cells: Tensor
    others: list[Tensor]

    @classmethod
    def of(
        cls, groups: Sequence[Group], count: int, device: torch.device, *others: Tensor
    ) -> Placed:
        """Send groups to a device in one transfer, without waiting."""
        rows, lengths = [group.rows for group in groups], [group.lengths for group in groups]
        sent = send_together([_cells_of_rows(groups, count), *rows, *lengths, *others], device)
        ends = 1 + len(groups), 1 + 2 * len(groups)
        return cls(sent[1 : ends[0]], sent[ends[0] : ends[1]], sent[0], sent[ends[1] :])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over rows and lengths of each group."""
        return zip(self.rows, self.lengths)


def group_spans(lengths: Sequence[int], spans: Spans, max_cells: int = MAX_CELLS) -> list[Group]:
    """Group spans of similar length, so that one long span does not pad all the others."""
    if len(spans) != len(lengths):
        raise LatentError(
            f"The span getter gave spans for {number_of(len(spans), 'doc')}; expected a list for "
            f"each of the {number_of(len(lengths), 'doc')}, empty for a doc without spans."
        )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("int64")
    total = int(offsets[-1])
    paired = any(len(span) == 4 for doc_spans in spans for span in doc_spans)
    flat = []
    for d, (doc_spans, length) in enumerate(zip(spans, lengths)):
        _check_spans(doc_spans, length, paired)
        offset = int(offsets[d])
        for s, (start, end, *other) in enumerate(doc_spans):
            other_start, other_end = other or (end, end)
            size = end - start + other_end - other_start
            flat.append((size, d, s, offset + start, end - start, offset + other_start))
    flat.sort(key=lambda entry: -entry[0])
    groups: list[Group] = []
    begin = 0
    while begin < len(flat):
        longest = flat[begin][0]
        stop = begin + 1
        while (
            stop < len(flat)
            and (longest <= ALWAYS_TOGETHER or 2 * flat[stop][0] >= longest)
            and (stop + 1 - begin) * (longest + 1) ** 2 <= max_cells
        ):
            stop += 1
        part = flat[begin:stop]
        sizes, _, _, first, first_size, second = np.array(part, dtype="int64").T[:, :, None]
        column = np.arange(longest)
        rows = first + column
        if paired:
            rows = np.where(column < first_size, rows, second + column - first_size)
            own = np.concatenate([first_size, sizes - first_size], 1)
        else:
            own = sizes[:, 0]
        rows = np.where(column < sizes, rows, total)
        members = [(d, s) for _, d, s, *_ in part]
        groups.append(Group(members, torch.from_numpy(rows), torch.from_numpy(own)))
        begin = stop
    return groups


def _check_spans(spans: list[tuple[int, ...]], length: int, paired: bool) -> None:
    """Raise an error for spans of a doc that are out of range or overlap."""
    last = 0
    for start, end in sorted(span[k : k + 2] for span in spans for k in range(0, len(span), 2)):
        if not last <= start < end <= length:
            raise LatentError(
                f"The span getter gave the spans {spans[:10]} for a doc of "
                f"{number_of(length, 'token')}. Spans must hold tokens of the doc, in order and "
                "without overlap."
            )
        last = end
    if spans != sorted(spans) or any(len(span) != (4 if paired else 2) for span in spans):
        raise LatentError(
            f"The span getter gave the spans {spans[:10]}; expected all as (start, end), or all as "
            "(start, end, other_start, other_end), in the order of the text."
        )


def of_group(given: Given | None, group: Group) -> list[np.ndarray | None] | None:
    """Return the given structures of the group's spans."""
    return None if given is None else [given[d][s] for d, s in group.members]


def side_by_side(composed: list[Tensor], groups: list[Group], rows: Tensor, width: int) -> Tensor:
    """Concatenate padded groups, each ``(K, B, n, width)``, to cells ``(K, C, width)``.

    See :class:`Placed`. A cell of zeros follows if some row is in no span, or there are no spans.
    """
    flat = [part.flatten(1, 2) for part in composed]
    if not flat or sum(int(group.lengths.sum()) for group in groups) < rows.shape[0]:
        count = len(flat[0]) if flat else 1
        flat.append(no_loss(rows).expand(count, 1, width))
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def no_loss(rows: Tensor) -> Tensor:
    """Return 0, with a gradient of 0 for these rows, even if they are not finite.

    It is the loss of a batch in which nothing was computed from the rows. A loss without a gradient
    would raise an error.
    """
    return rows[:0].sum()


def _cells_of_rows(groups: Sequence[Group], count: int) -> Tensor:
    cells = torch.cat([group.rows.flatten() for group in groups] or [torch.zeros(0).long()])
    place = torch.full((count + 1,), len(cells))
    place[cells] = torch.arange(len(cells))
    return place[:count]
