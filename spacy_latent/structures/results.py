"""Results of operations on structures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send, send_together


@dataclass
class TopK:
    """The k best structures of each item, best first.

    Attributes:
        z: ``(K, B, *parts)``, 0/1. If an item has fewer than K structures, the rest is zero.
        scores: ``(K, B)``, ``-inf`` for missing structures. A sum beyond the range of the dtype is
            its largest or lowest finite number.
    """

    z: Tensor
    scores: Tensor

    def to(self, dtype: torch.dtype) -> TopK:
        """Return the same in another precision."""
        # A sum of low scores, as of two masks in float16, may not become a missing structure.
        most = torch.finfo(dtype).max
        finite = self.scores.clamp(-most, most)
        scores = torch.where(self.scores.isneginf(), self.scores, finite)
        return TopK(self.z.to(dtype), scores.to(dtype))

    def sent(self, device: torch.device) -> TopK:
        """Return the same on that device, copied from the CPU; itself if it is already there."""
        if self.z.device == device:
            return self
        return TopK(*send_together([self.z, self.scores], device))


@dataclass
class Reparameterized:
    """Sample with its noisy scores.

    All attributes are ``(B, *parts)``, −inf if a part is forbidden or padding.

    Attributes:
        z: a sample, 0/1.
        noisy: perturbed scores of which z is the best structure.
        redrawn: a draw from the distribution of ``noisy`` given z.
    """

    z: Tensor
    noisy: Tensor
    redrawn: Tensor


@dataclass
class ReparameterizedTrace(Reparameterized):
    """Structure z that an algorithm builds by choices from softmaxes, its trace, and noisy scores.

    With the scores ``noisy`` the algorithm makes these choices. ``redrawn`` is a draw from the
    distribution of ``noisy`` given the choices.

    Attributes:
        log_probs: ``(B,)``, of the choices, as in :class:`Traces`; differentiable.
    """

    log_probs: Tensor


@dataclass
class Traces:
    """Structures as an algorithm builds them by random choices, one after another.

    Attributes:
        z: ``(K, B, *parts)``, 0/1, without gradient.
        log_probs: ``(K, B)``, of all the choices that led to each; differentiable once. If several
            traces lead to one structure, it is less than the structure's own.
    """

    z: Tensor
    log_probs: Tensor


@dataclass
class SparseSolution:
    """Solution of SparseMAP: argmax over the marginal polytope of μ·s − ½‖μ‖².

    Attributes:
        mean: ``(B, *parts)``, the point μ; differentiable.
        weights: ``(K, B)``, non-negative, summing to 1 over K, heaviest first, zero-padded;
            differentiable. K is the largest support in the batch. If structures tie, other weights
            have the same mean. The gradient is then for the weights of this support, as if the mean
            moved only within the affine hull of this support. It is 0 for a loss that is the same
            for all structures.
        gap: ``(B,)``, float64, the duality gap reached: μ is within √(2·gap) of the solution.
    """

    mean: Tensor
    weights: Tensor
    gap: Tensor
    _expand: Callable[..., Tensor] = field(repr=False)
    _number: Callable[[], np.ndarray] | None = field(default=None, repr=False, kw_only=True)

    @property
    def part_numbers(self) -> np.ndarray:
        """Structures of the support by their parts, ``(K, B, W)`` int32.

        Numbers are flat indices of an item's scores, for a chain in the order of positions, padded
        with −1. If a weight is padding, all its numbers are −1. A structure has one number for each
        of its parts, and in :attr:`atoms` one for each score.
        """
        if self._number is not None:
            return self._number()
        # NumPy has no bfloat16.
        atoms = (self.atoms.flatten(2) > 0).cpu().numpy()
        numbers = np.full((*atoms.shape[:2], int(atoms.sum(2).max(initial=0))), -1, dtype=np.int32)
        for place in np.ndindex(*atoms.shape[:2]):
            own = np.flatnonzero(atoms[place])
            numbers[place][: len(own)] = own
        return numbers

    @property
    def atoms(self) -> Tensor:
        """Structures of the support, ``(K, B, *parts)``, 0/1, zero if the weight is padding.

        They are made on demand, since they are K times the size of the scores.
        """
        return self._expand()

    def cast(self, dtype: torch.dtype) -> SparseSolution:
        """Return the same in another precision; the gap stays unchanged."""
        if self.mean.dtype == dtype:
            return self
        expand = self._expand
        mean, weights = self.mean.to(dtype), self.weights.to(dtype)
        return replace(self, mean=mean, weights=weights, _expand=lambda *at: expand(*at).to(dtype))

    def sent(self, device: torch.device) -> SparseSolution:
        """Return the same on that device, copied from the CPU by one transfer.

        This is for solutions whose structures can be made on any device.
        """
        if self.mean.device == device:
            return self
        names = [each.name for each in fields(self) if not each.name.startswith("_")]
        sent = send_together([getattr(self, name) for name in names], device)
        there: dict[str, Any] = dict(zip(names, sent))
        return replace(self, **there, _expand=partial(self._expand, device))


class LateMixture(SparseSolution):
    """Solution in closed form, whose structures and weights are computed only if they are read.

    They take more time and memory than the mean: the mixture of N parts takes O(N²), as much as n⁴
    for a graph over n tokens.

    Args:
        exact: the mean ``(B, *parts)`` in float64; differentiable.
        dtype: of the results.
        mix: function that returns the whole solution.
    """

    def __init__(
        self, exact: Tensor, dtype: torch.dtype, mix: Callable[[], SparseSolution]
    ) -> None:
        self.mean = exact.to(dtype)
        self.gap = torch.zeros(len(exact), dtype=torch.float64, device=exact.device)
        self._exact = exact
        self._mix = mix

    @cached_property
    def _mixture(self) -> SparseSolution:
        # The same whoever reads it first, also if that is without gradients.
        with torch.set_grad_enabled(self._exact.requires_grad):
            return self._mix().cast(self.mean.dtype)

    @property
    def weights(self) -> Tensor:  # type: ignore[override]
        """The weights of :class:`SparseSolution`, computed when they are first read."""
        return self._mixture.weights

    def _expand(self, *device: torch.device) -> Tensor:
        return self._mixture._expand(*device)

    def cast(self, dtype: torch.dtype) -> SparseSolution:
        if self.mean.dtype == dtype:
            return self
        return LateMixture(self._exact, dtype, self._mix)

    def sent(self, device: torch.device) -> SparseSolution:
        if self.mean.device == device:
            return self
        exact = send(self._exact, device)
        return LateMixture(exact, self.mean.dtype, lambda: self._mix().sent(device))
