"""Structures that are given to a layer in the format of annotations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spacy_latent.structures.base import Structure


def encode_given(
    structure: Structure, given: Sequence[np.ndarray | None], vectors: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Encode given structures of a batch, at least one, from the format of annotations to tensors.

    Returns:
        Structures ``(B, *parts)``, 0/1, and 0 for items without a given one; in float64 if the
        vectors ``(B, n, d)`` are, else in float32. Then a mask ``(B,)`` bool of the items with a
        given one.
    """
    sizes = lengths.tolist()
    made = [
        None if one is None else torch.as_tensor(structure.encode(one, size), device="cpu")
        for one, size in zip(given, sizes, strict=True)
    ]
    known = torch.tensor([one is not None for one in made], device=vectors.device)
    # Axes of parts have the length of the item plus a constant, for example 1 for a root.
    more = [np.array(one.shape) - size for one, size in zip(made, sizes) if one is not None]
    shape = (np.min(more, 0) + vectors.shape[1]).tolist()
    dtype = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    z = torch.zeros(len(made), *shape, dtype=dtype, device="cpu")
    for row, one in zip(z, made):
        if one is not None:
            row[tuple(slice(0, size) for size in one.shape)] = one.to(dtype)
    return z.to(vectors.device), known
