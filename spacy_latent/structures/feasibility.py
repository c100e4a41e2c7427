"""Items of a batch without any structure."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from spacy_latent.errors import InfeasibleError


def infeasible_items(
    find_best: Callable[[Tensor, Tensor], object], scores: Tensor, lengths: Tensor
) -> list[int]:
    """Return the places in the batch of items without any structure.

    Args:
        find_best: function that finds best structures, such as the ``map`` of a structure, or a
            cheaper one. It raises InfeasibleError if there are such items.
    """
    try:
        find_best(scores, lengths)
    except InfeasibleError as error:
        return list(error.items)
    return []
