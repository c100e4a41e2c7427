"""Enumeration of all structures of a few items, as the reference of the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import LatentError

Length = Any
Members = Callable[[Length], Sequence[np.ndarray] | np.ndarray]
LogPotential = Callable[[Tensor, Tensor, Length], Tensor]
MOST_MEMBERS = 20_000


def scored(z: Tensor, scores: Tensor, length: Length) -> Tensor:
    """Return z·s ``(M,)`` of structures ``(M, *parts)``, differentiable; 0·(−inf) counts as 0."""
    return (z * torch.where(z != 0, scores, 0.0)).flatten(1).sum(1)


def _stacked(listed: list[np.ndarray], length: Length) -> np.ndarray:
    """Return the structures as one array ``(M, *parts)``.

    Raises:
        LatentError: If the list is invalid. Without this error, the checks would blame the
            structure for an invalid list.
    """
    shapes = sorted({z.shape for z in listed})
    if len(shapes) > 1:
        raise LatentError(
            f"members({length!r}) gives arrays of the shapes {shapes[:5]}; expected a single "
            "shape, which scores of an item of this length have."
        )
    stacked = np.stack(listed)
    wrong = stacked[(stacked != 0) & (stacked != 1)]
    if len(wrong):
        raise LatentError(
            f"members({length!r}) gives arrays with values such as {wrong[0]}; expected 1 for each "
            "part of a structure, else 0."
        )
    places: dict[bytes, int] = {}
    for i, z in enumerate(stacked):
        before = places.setdefault(z.tobytes(), i)
        if before != i:
            raise LatentError(
                f"members({length!r}) gives one structure twice, at {before} and {i}; list each "
                "once."
            )
    return stacked


class Listing:
    """Ragged batch of B items with all structures of each item.

    Attributes:
        members: ``(M, *own parts)`` float64 for each item, with values 0 and 1.
        shape: Shape of the parts in the padded batch.
        windows: For each item, the slices of its own parts in the padded batch.
    """

    def __init__(
        self, members: Members, lengths: Sequence[Length], log_potential: LogPotential | None
    ) -> None:
        self.sizes = list(lengths)
        if len(self.sizes) < 2:
            raise LatentError(
                f"lengths is {self.sizes}; expected the lengths of at least two items."
            )
        self.lengths = torch.tensor(self.sizes, dtype=torch.int64)
        self.log_potential = log_potential or scored
        self.members: list[Tensor] = []
        for length in self.sizes:
            listed = [np.asarray(z, dtype="float64") for z in members(length)]
            if not listed or len(listed) > MOST_MEMBERS:
                raise LatentError(
                    f"members({length!r}) gives {len(listed)} structures; expected at least one, "
                    f"and at most {MOST_MEMBERS}, which is what can be compared in a test. Give "
                    "other lengths."
                )
            self.members.append(torch.from_numpy(_stacked(listed, length)))
        shapes = [tuple(z.shape[1:]) for z in self.members]
        if len({len(shape) for shape in shapes}) > 1:
            raise LatentError(f"members gives arrays of the shapes {shapes}; expected as many axes")
        sizes = np.array(shapes)
        # Axes that differ between the items follow the lengths and are padded. Other axes, such as
        # the axis of tags, have a fixed length.
        follows = (sizes != sizes[:1]).any(0)
        self.shape = tuple((sizes.max(0) + 2 * follows).tolist())
        self.windows = [tuple(slice(0, size) for size in shape) for shape in shapes]

    def __len__(self) -> int:
        return len(self.sizes)

    def item(self, b: int) -> str:
        """Return the description of item b, for messages."""
        return f"item {b} (length {self.sizes[b]})"

    def own(self, scores: Tensor, b: int) -> Tensor:
        """Return the entries of item b in scores ``(B, *shape)``, without padding."""
        return scores[b][self.windows[b]]

    def inside(self) -> Tensor:
        """Return a mask of the entries that are not padding, ``(B, *shape)`` bool."""
        ones = (torch.ones(1, *members.shape[1:]) for members in self.members)
        return torch.cat([self.placed(b, one) for b, one in enumerate(ones)]).bool()

    def used(self) -> Tensor:
        """Return a mask of the parts of at least one structure, ``(B, *shape)`` bool."""
        each = (self.placed(b, members) for b, members in enumerate(self.members))
        return torch.stack([placed.bool().any(0) for placed in each])

    def placed(self, b: int, z: Tensor) -> Tensor:
        """Return ``z`` ``(M, *own parts)`` of item b in the shape of the batch, ``(M, *shape)``."""
        result = torch.zeros(len(z), *self.shape, dtype=z.dtype)
        window = (slice(None), *self.windows[b])
        result[window] = z
        return result

    def totals(self, scores: Tensor, b: int, members: Tensor | None = None) -> Tensor:
        """Return the scores of all structures of item b, or of ``members``, differentiable."""
        members = self.members[b] if members is None else members
        return self.log_potential(members, self.own(scores, b), self.sizes[b])

    def feasible(self, scores: Tensor, b: int) -> tuple[Tensor, Tensor]:
        """Return the structures of item b that are not forbidden, and their scores, differentiable.

        A structure is forbidden if its score is −inf.
        """
        totals = self.totals(scores, b)
        kept = ~totals.detach().isneginf()
        return self.members[b][kept], totals[kept]

    def find(self, b: int, z: Tensor) -> Tensor:
        """Return the indices ``(R,)`` of structures ``(R, *shape)`` in ``members[b]``.

        An array that is not in ``members[b]``, or has a part in the padding, has the index −1.
        """
        window = (slice(None), *self.windows[b])
        own = z[window].flatten(1).to(torch.float64)
        same = (own[:, None] == self.members[b].flatten(1)).all(2)
        outside = z.flatten(1).count_nonzero(1) != own.count_nonzero(1)
        found = torch.where(same.any(1), same.int().argmax(1), -1)
        return torch.where(outside, -1, found)
