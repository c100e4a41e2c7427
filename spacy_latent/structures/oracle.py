"""Interface of a structure for algorithms that need only its best members."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor


class Oracle(Protocol):
    """Structure that has best members.

    Every oracle in this package is a :class:`spacy_latent.structures.base.Structure`.
    """

    @property
    def name(self) -> str: ...

    @property
    def exclusive_axes(self) -> tuple[int, ...]: ...

    @property
    def incomparable(self) -> bool: ...

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor: ...

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor: ...

    def _best_parts(self, scores: Tensor, lengths: Tensor) -> list[np.ndarray]: ...

    def raise_infeasible(self, items: list[int]) -> None: ...
