"""Rows of the spans, docs and texts of a batch, and sums over the spans of docs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spacy_latent.models.span_groups import Group, Placed

# Rows (first, end) of a text.
Range = tuple[int, int]


@dataclass
class TextBatch:
    """Rows of the spans, docs and texts of a batch, on its device.

    Attributes:
        groups, placed: groups of spans, and their rows.
        bounds: ``(texts, 2)``, the rows of each text.
        of_docs: rows of the docs as in :func:`_places`.
        first, doc: the first span of each doc and the doc of each span, see :func:`first_spans`.
        of_texts: rows of the texts as in :func:`_places`; None if only their ends are read.
        words: ``(N,)``, hashes of the words of all rows, or None.
    """

    groups: list[Group]
    placed: Placed
    bounds: Tensor
    of_docs: Tensor
    first: Tensor
    doc: list[Tensor]
    of_texts: Tensor | None
    words: Tensor | None

    @classmethod
    def of(
        cls,
        rows: Tensor,
        groups: list[Group],
        docs: list[Range],
        texts: list[Range],
        words: Tensor | None,
        only_ends: bool,
    ) -> TextBatch:
        """Return the batch, with all places sent to the device in one transfer.

        Args:
            rows: ``(N, d)``, of which only the number and the device are read.
            docs, texts: the rows of each doc and of each text.
            only_ends: whether the pooling only reads the first and the last word of a text.
        """
        bounds = torch.tensor(texts, dtype=torch.int64).view(-1, 2)
        first, doc = first_spans(groups, len(docs))
        known = [bounds, _places(docs, len(rows)), first, *doc]
        # An empty text has no root and no ends.
        reads_all = not only_ends or not bool((bounds[:, 1] > bounds[:, 0]).any())
        if reads_all:
            known.append(_places(texts, len(rows)))
        if words is not None:
            known.append(words)
        placed = Placed.of(groups, len(rows), rows.device, *known)
        bounds, of_docs, first, *others = placed.others
        hashes = None if words is None else others.pop()
        of_texts = others.pop() if reads_all else None
        return cls(groups, placed, bounds, of_docs, first, others, of_texts, hashes)


def first_spans(groups: list[Group], docs: int) -> tuple[Tensor, list[Tensor]]:
    """Return the first span of each doc, and the doc of each span, on the CPU.

    Returns:
        For each doc the number of its first span among the spans of all groups, ``(D,)``; the total
        number of spans if it has none. For each group the doc of each span, ``(B,)``.
    """
    doc = [torch.tensor(group.docs, dtype=torch.int64) for group in groups]
    together = torch.cat([*doc, torch.zeros(0, dtype=torch.int64)])
    first = torch.full((docs,), len(together))
    return first.scatter_reduce(0, together, torch.arange(len(together)), "amin"), doc


def sum_over_spans(
    docs_of: list[Tensor], parts: list[Tensor | None], count: int, docs: int, like: Tensor
) -> Tensor:
    """Sum parts ``(up to count, B)`` of each group over spans, to ``(count, D)``.

    The dtype is the dtype of ``like``. A part may be None.
    """
    total = like.new_zeros(count, docs)
    for doc, part in zip(docs_of, parts):
        if part is not None:
            total = total.index_add(1, doc, up_to(part, count).to(total))
    return total


def up_to(part: Tensor, count: int) -> Tensor:
    """Pad ``(K, ...)`` with zeros to ``count`` rows."""
    if len(part) == count:
        return part
    return torch.cat([part, part.new_zeros(count - len(part), *part.shape[1:])])


def _places(ranges: list[Range], count: int) -> Tensor:
    """Return the rows of each range, ``(ranges, longest)`` int64; ``count`` at padding."""
    first, end = torch.tensor(ranges, dtype=torch.int64).view(-1, 2).unbind(1)
    column = torch.arange(int((end - first).max()) if ranges else 0)
    inside = column < (end - first)[:, None]
    return torch.where(inside, first[:, None] + column, count)


def padded_rows(rows: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows ``(K, N, width)`` as ``(K, ranges, longest, width)``, and a mask.

    Padding has zeros. For ``places`` see :func:`_places`.
    """
    zero = rows.new_zeros(len(rows), 1, rows.shape[2])
    return torch.cat([rows, zero], 1)[:, places], places < rows.shape[1]


def padded_words(words: Tensor, places: Tensor) -> Tensor:
    """Return words ``(N,)`` as ``(D, longest)``, with ``places`` of :func:`padded_rows`."""
    return torch.cat([words, words.new_zeros(1)])[places]
