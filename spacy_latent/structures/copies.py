"""Batches of copies of a batch, and errors that name items of the batch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores

Found = TypeVar("Found")


def repeat(values: Tensor, count: int) -> Tensor:
    """Return ``count`` copies of a batch, one after another."""
    return values.repeat(count, *[1] * (values.dim() - 1))


def solve_copies(
    solve: Callable[[Tensor, Tensor], Found], scores: Tensor, lengths: Tensor, batch: int
) -> Found:
    """Return ``solve(scores, lengths)`` for copies of a batch, with errors that name its own items.

    Args:
        scores: ``(K·B, *parts)``, K copies of the batch, one after another.
        lengths: ``(K·B,)`` or one column for each axis of the item, lengths of the copies.
        batch: number of items B of the batch.

    Raises:
        InvalidScores, InfeasibleError: as ``solve`` raises them. Each copy is then solved alone, so
            that the error names items of the batch, from 0 to B − 1. If every copy alone is solved,
            the first error is raised unchanged. So are other errors of ``solve``.
    """
    try:
        return solve(scores, lengths)
    except (InvalidScores, InfeasibleError) as error:
        refused = error
    # Solve again for one copy at a time, whose items have the numbers of the batch. This costs
    # nothing if there is no error, and it finds the items of any error.
    for copy in zip(scores.detach().split(batch), lengths.split(batch)):
        solve(*copy)
    raise refused
