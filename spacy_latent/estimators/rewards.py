"""Rewards, values of a structure in itself, in addition to the loss of the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kinds import find_kind
from spacy_latent.structures.base import Structure


class Reward(ABC):
    """Base class of rewards, scores of single structures that need not be differentiable.

    A user's own class defines :meth:`__call__` and is registered, see docs/estimators.md.

    Attributes:
        parts: required parts of the structures, as in ``Structure.parts``; empty for any.
        needs_gold: whether it reads gold structures; without it, ``gold`` has None alone.
    """

    parts: ClassVar[str] = ""
    needs_gold: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the class, for messages."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in sorted(vars(self).items()))})"

    @abstractmethod
    def __call__(
        self, structure: Structure, z: Tensor, lengths: Tensor, gold: Sequence[np.ndarray | None]
    ) -> Tensor:
        """Return the reward of each structure, ``(K, B)``; more is better.

        Args:
            z: ``(K, B, *parts)``, 0/1, members of ``structure``, without gradient.
            lengths: as for the structure.
            gold: the reference's structure of each item, in the form of ``Structure.decode``, or
                None if the reference has none.
        """


class ShortArcs(Reward):
    """The negative mean length of the arcs between tokens, in tokens; −1 for a chain.

    Arcs from the root do not count. Without ``single_root``, the best tree thus has all tokens on
    the root.
    """

    parts = "arcs"

    def __call__(
        self, structure: Structure, z: Tensor, lengths: Tensor, gold: Sequence[np.ndarray | None]
    ) -> Tensor:
        node = torch.arange(z.shape[-1], device=z.device, dtype=z.dtype)
        between = z[..., 1:, 1:].sum((-2, -1))
        total = (z * (node[:, None] - node).abs())[..., 1:, 1:].sum((-2, -1))
        return -total / between.clamp_min(1)


class GoldAgreement(Reward):
    """Agreement of a structure with the reference's, from 0 to 1.

    It is twice the number of common parts over the number of parts of both. For trees this is the
    share of tokens with the right head. If a reference has only some heads, it is the share among
    these. It is 0 without a gold structure, and if the set has no such structure.

    The gold structure of a dependency tree is made of the heads of the reference. Other gold
    structures are annotations under the component's name.
    """

    needs_gold = True

    def __call__(
        self, structure: Structure, z: Tensor, lengths: Tensor, gold: Sequence[np.ndarray | None]
    ) -> Tensor:
        rewards = z.new_zeros(z.shape[:2])
        for b, (one, length) in enumerate(zip(gold, lengths.tolist(), strict=True)):
            if one is not None:
                rewards[:, b] = _agreement(structure, z[:, b], length, one)
        return rewards


def _agreement(structure: Structure, z: Tensor, length: int, gold: np.ndarray) -> Tensor:
    """Return the agreement ``(K,)`` of the structures ``z``, ``(K, *parts)``."""
    axes = tuple(range(1, z.dim()))
    partly = find_kind(structure.kind).partly
    known = partly(gold, length, tuple(z.shape[1:]))
    if known is not None:
        tokens, allowed = known
        wrong = torch.where(torch.as_tensor(allowed, device=z.device), 0.0, z).sum(axes)
        return 1 - wrong / tokens
    try:
        made = structure.encode_for(gold, length, z.shape[1:])
        encoded = torch.as_tensor(made, device="cpu")
    except ValueError:
        return z.new_zeros(len(z))
    whole = z.new_zeros(z.shape[1:])
    whole[tuple(slice(0, size) for size in encoded.shape)] = encoded.to(z)
    return 2 * (z * whole).sum(axes) / (z.sum(axes) + whole.sum()).clamp_min(1)
