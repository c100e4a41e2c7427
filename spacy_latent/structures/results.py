"""What operations on structures return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.transfers import send_together


@dataclass
class TopK:
    """The k best structures of each item, best first.

    z: ``(K, B, *parts)``, 0/1. Where an item has fewer than K structures, the rest is zero.
    scores: ``(K, B)``, and ``-inf`` where there is no such structure.
    """

    z: Tensor
    scores: Tensor

    def to(self, dtype: torch.dtype) -> TopK:
        """The same in another precision."""
        return TopK(self.z.to(dtype), self.scores.to(dtype))

    def sent(self, device: torch.device) -> TopK:
        """The same on that device, from the CPU; itself where it is there."""
        if self.z.device == device:
            return self
        return TopK(*send_together([self.z, self.scores], device))


@dataclass
class Reparameterized:
    """All ``(B, *parts)``; −inf where a part is forbidden or padding.

    z: a sample, 0/1. noisy: perturbed scores of which z is the best structure. redrawn: a draw from
    the law of ``noisy`` given z.
    """

    z: Tensor
    noisy: Tensor
    redrawn: Tensor


@dataclass
class ReparameterizedTrace(Reparameterized):
    """The same where an algorithm builds z by choices from softmaxes, its trace: ``noisy`` are
    scores by which it would take these choices, and ``redrawn`` a draw from their law given the
    choices.

    log_probs: ``(B,)``, of the choices, as of :class:`Traces`; differentiable.
    """

    log_probs: Tensor


@dataclass
class Traces:
    """Structures as an algorithm builds them by random choices, one after another.

    z: ``(K, B, *parts)``, 0/1, without gradient.
    log_probs: ``(K, B)``, of all the choices that led to each; differentiable once. Where several
        traces lead to one structure, it is less than the structure's own.
    """

    z: Tensor
    log_probs: Tensor


@dataclass
class SparseSolution:
    """The solution of SparseMAP: argmax over the marginal polytope of μ·s − ½‖μ‖².

    mean: ``(B, *parts)``, the point μ; differentiable.
    weights: ``(K, B)``, non-negative, summing to 1 over K, heaviest first, zero-padded;
        differentiable. K is the largest support in the batch. Where structures tie, other weights
        have the same mean, and the gradient is that of the weights of this support: as if the mean
        moved only as far as these can follow. A loss that is the same for all structures has none.
    gap: ``(B,)``, float64, the duality gap reached: μ is within √(2·gap) of the solution.
    """

    mean: Tensor
    weights: Tensor
    gap: Tensor
    _expand: Callable[..., Tensor] = field(repr=False)
    _number: Callable[[], np.ndarray] | None = field(default=None, repr=False, kw_only=True)

    @property
    def part_numbers(self) -> np.ndarray:
        """The structures of the support by their parts, ``(K, B, W)`` int32: places in an item's
        scores, of a chain from its first position on, then −1; −1 alone where the weight is
        padding. As many as a structure has parts, where :attr:`atoms` are as many as there are
        scores."""
        if self._number is not None:
            return self._number()
        atoms = self.atoms.flatten(2).cpu().numpy() > 0
        numbers = np.full((*atoms.shape[:2], int(atoms.sum(2).max(initial=0))), -1, dtype=np.int32)
        for place in np.ndindex(*atoms.shape[:2]):
            own = np.flatnonzero(atoms[place])
            numbers[place][: len(own)] = own
        return numbers

    @property
    def atoms(self) -> Tensor:
        """The structures of the support, ``(K, B, *parts)``, 0/1, zero where the weight is padding.

        Made on demand: it is K times the size of the scores.
        """
        return self._expand()

    def cast(self, dtype: torch.dtype) -> SparseSolution:
        """The same in another precision; the gap stays as it is."""
        if self.mean.dtype == dtype:
            return self
        expand = self._expand
        mean, weights = self.mean.to(dtype), self.weights.to(dtype)
        return replace(self, mean=mean, weights=weights, _expand=lambda *at: expand(*at).to(dtype))

    def sent(self, device: torch.device) -> SparseSolution:
        """The same on that device, from the CPU, by one transfer; for solutions whose structures
        can be made on any device."""
        if self.mean.device == device:
            return self
        names = [each.name for each in fields(self) if not each.name.startswith("_")]
        sent = send_together([getattr(self, name) for name in names], device)
        there: dict[str, Any] = dict(zip(names, sent))
        return replace(self, **there, _expand=partial(self._expand, device))
