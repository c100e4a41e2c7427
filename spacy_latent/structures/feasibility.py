"""Which items of a batch have any structure."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from spacy_latent.errors import InfeasibleError


def infeasible_items(
    find_best: Callable[[Tensor, Tensor], object], scores: Tensor, lengths: Tensor
) -> list[int]:
    """The items without one, by their places in the batch.

    find_best: what a structure finds best ones by, such as its ``map``, or the cheapest that it
        has. It raises InfeasibleError where there are such items.
    """
    try:
        find_best(scores, lengths)
    except InfeasibleError as error:
        return list(error.items)
    return []
