"""Words of two texts in one array: the first text's words, followed at once by the second's."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import LatentError


def split_texts(vectors: Tensor, lengths: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return the vectors of the first texts and of the second, 0 at padding.

    Args:
        vectors: ``(B, N, d)``.
        lengths: ``(B, 2)`` int64, with a sum of at most N for each item.

    Returns:
        ``(B, n, d)`` and ``(B, m, d)``, with n and m the lengths of the longest texts.
    """
    if lengths.dim() != 2 or lengths.shape[1] != 2:
        raise LatentError(
            f"{name}: lengths have shape {tuple(lengths.shape)}, so each item is one text, and "
            'aligning needs two. Set span_getter to {"@misc": "spacy-latent.PairSpans.v1"}.'
        )
    first, second = lengths.unbind(1)
    return _window(vectors, torch.zeros_like(first), first), _window(vectors, first, second)


def join_texts(first: Tensor, second: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Return the inverse of :func:`split_texts`: ``(B, size, d)``, zero at padding."""
    column = torch.arange(size, device=first.device)[None]
    rows, columns = lengths.to(first.device).unbind(1)
    of_first = column < rows[:, None]
    of_second = ~of_first & (column < (rows + columns)[:, None])
    place = torch.where(of_first, column, column - rows[:, None] + first.shape[1])
    place = torch.where(of_first | of_second, place, first.shape[1] + second.shape[1])
    zero = first.new_zeros(len(first), 1, first.shape[2])
    both = torch.cat([first, second, zero], 1)
    return both.gather(1, place[:, :, None].expand(-1, -1, both.shape[2]))


def _window(vectors: Tensor, start: Tensor, length: Tensor) -> Tensor:
    start, length = start.to(vectors.device), length.to(vectors.device)
    column = torch.arange(int(length.max()) if len(length) else 0, device=vectors.device)[None]
    inside = column < length[:, None]
    place = torch.where(inside, start[:, None] + column, vectors.shape[1])
    padded = torch.cat([vectors, vectors.new_zeros(len(vectors), 1, vectors.shape[2])], 1)
    return padded.gather(1, place[:, :, None].expand(-1, -1, vectors.shape[2]))
