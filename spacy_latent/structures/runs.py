"""Subsets of items in a few contiguous runs: rationales of bounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_flags, check_whole
from spacy_latent.structures.base import Structure, chosen_parts
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.items import ItemSet


class Runs(ItemSet, CompiledStructure):
    """Subsets of k items that lie in at most ``runs`` runs of neighbours.

    Scores are ``(B, N)``, lengths ``(B,)``. If there are fewer than k items, k is their number.

    Guerreiro and Martins (2021, SPECTRA) find such rationales by LP-SparseMAP of a factor graph.
    Here a state holds the number of items chosen, the number of their runs, and whether the last
    item was chosen. So the best members, sums and samples are exact, in O(n · k · runs). SparseMAP
    is exact, too, by the active-set method.

    Args:
        k: number of chosen items.
        runs: largest number of runs. 1 for a single stretch of words.
        exactly: exactly k; else any number up to k.
    """

    family: ClassVar[str] = "spacy_latent.kernels.choices.runs:FAMILY"
    tractable = CompiledStructure.tractable | {"smoothed"}

    def __init__(self, k: int = 3, runs: int = 2, exactly: bool = True) -> None:
        check_whole(self.name, error=InvalidScores, k=k, runs=runs)
        check_flags(self.name, error=InvalidScores, exactly=exactly)
        self.k = k
        self.runs = runs
        self.exactly = self.incomparable = exactly

    def _options(self, scores: Tensor) -> list[int]:
        return [self.k, self.runs, int(self.exactly)]

    @property
    def _same_size(self) -> bool:
        return self.exactly

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, Runs):
            return super().covers(other)
        if self.exactly and not (other.exactly and self.k == other.k):
            return False
        return self.k >= other.k and min(self.runs, other.k) >= min(other.runs, other.k)

    def smoothed_maximum(
        self, scores: Tensor, lengths: Tensor, maximum: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run the recursion over items with a smoothed maximum.

        See :func:`spacy_latent.structures.smoothed.smoothed_value`.
        """
        batch = scores.shape[0]
        lengths = lengths.to(scores.device)
        # [b, chosen items, runs], after an item that was left out and after one that was chosen.
        chosen = scores.new_full((batch, self.k + 1, self.runs + 1), -torch.inf)
        left_out = chosen.clone()
        left_out[:, 0, 0] = 0.0
        nothing = chosen[:, :1]
        for position, score in enumerate(scores.unbind(1)):
            begin = torch.cat(
                [nothing[:, :, :1].expand_as(left_out[..., :1]), left_out[..., :-1]], 2
            )
            extended = maximum(torch.stack([chosen, begin], -1))[:, :-1] + score[:, None, None]
            skipped = maximum(torch.stack([chosen, left_out], -1))
            inside = (position < lengths)[:, None, None]
            chosen = torch.where(inside, torch.cat([nothing, extended], 1), chosen)
            left_out = torch.where(inside, skipped, left_out)
        count = torch.arange(self.k + 1, device=scores.device)
        wanted = lengths.clamp_max(self.k)[:, None]
        right = (count == wanted) if self.exactly else (count <= wanted)
        final = torch.stack([chosen, left_out], -1)
        return maximum(final.masked_fill(~right[..., None, None], -torch.inf).flatten(1))

    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        chosen, plain, sizes = chosen_parts(self, z, lengths)
        count = chosen.sum(1)
        begins = chosen.clone()
        begins[:, 1:] &= ~chosen[:, :-1]
        wanted = sizes.clamp_max(self.k)
        right = count == wanted if self.exactly else count <= wanted
        return plain & right & (begins.sum(1) <= self.runs)
