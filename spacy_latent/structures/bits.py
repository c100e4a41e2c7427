"""Independent bits: every subset of the parts, or every graph, is a structure."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, NotTractable, check_one_of, check_whole
from spacy_latent.kernels.autograd.tracing import not_traced, source
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import Reparameterized, SparseSolution, Structure
from spacy_latent.structures.items import decompose
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.results import LateMixture

AXES = {"items": 1, "arcs": 2}


class Bits(Structure):
    """Subsets of the parts.

    Each part is on with probability sigmoid(s), independently of the others.

    MAP takes the parts with scores above 0 (a tie at 0 stays off). A forbidden part is off.

    Args:
        parts: "items", scores ``(B, N)``; or "arcs", any graph over the root and n tokens, scores
            ``(B, N+1, N+1)``, [head, modifier], without arcs into the root and from a token to
            itself.
        budget: largest number of parts that are on. With it, parts are not independent. None for no
            bound.
    """

    part_axes: ClassVar[int] = 1
    keeps_digits = True
    tractable: ClassVar[frozenset[str]] = frozenset(
        {"log_partition", "marginals", "sample", "entropy", "log_prob", "reparameterize"}
    )

    def __init__(
        self, parts: Literal["items", "arcs"] = "items", budget: int | None = None
    ) -> None:
        check_one_of(self.name, AXES, error=InvalidScores, parts=parts)
        check_whole(self.name, or_null=True, error=InvalidScores, budget=budget)
        self.budget = budget
        if budget is not None:
            self.tractable = self.tractable - {"reparameterize"}  # type: ignore[misc]
        self.parts = parts  # type: ignore[misc]
        self.part_axes = AXES[parts]  # type: ignore[misc]
        self.acyclic = parts != "arcs"

    def _settings(self) -> dict[str, Any]:
        return {"budget": self.budget, "parts": self.parts}

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, Bits) or self.parts != other.parts:
            return super().covers(other)
        return self.budget is None or (other.budget is not None and self.budget >= other.budget)

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        lengths = self.check_lengths(lengths, scores.shape[-1] - (self.part_axes == 2))
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if self.part_axes == 1:
            return super().part_mask(scores, lengths)
        node = torch.arange(scores.shape[-1], device=scores.device)
        inside = node[None] <= lengths.to(scores.device)[:, None]
        allowed = (node[:, None] != node) & (node > 0)
        return allowed[None] & inside[:, :, None] & inside[:, None]

    @property
    def _subsets(self) -> KOfN | None:
        """The subsets of all entries under the budget, or None without a budget."""
        return None if self.budget is None else KOfN(self.budget, exactly=False)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if self._subsets:
            return self._subsets.map(*_flat(scores)).view_as(scores)
        return (scores > 0).to(scores.dtype)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if self._subsets:
            return self._subsets.log_partition(*_flat(scores))
        return _softplus(scores).flatten(1).sum(-1)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if self._subsets:
            return self._subsets.marginals(*_flat(scores)).view_as(scores)
        return torch.sigmoid(scores)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        shape = (num_samples, *scores.shape)
        if self._subsets:
            return self._subsets.sample(*_flat(scores), num_samples, generator).view(shape)
        device = generator.device if generator is not None else torch.device("cpu")
        uniform = torch.rand(shape, dtype=scores.dtype, device=device, **source(generator))
        if uniform.device != scores.device:
            uniform = send(uniform, scores.device)
        return (uniform < torch.sigmoid(scores)).to(scores.dtype)

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        """Return a sample with logistic noise: a bit is on if its noisy score is above 0.

        See Maddison et al. 2017, and for the conditional noise Tucker et al. 2017, appendix B.
        """
        if self._subsets:
            return super()._reparameterize(scores, lengths)
        allowed = ~scores.isneginf()
        safe = scores.masked_fill(~allowed, 0.0)
        noisy = safe + _logistic(safe)
        z = ((noisy.detach() > 0) & allowed).to(scores.dtype)
        redrawn = self._redraw(z, safe, allowed)
        return Reparameterized(z, noisy.masked_fill(~allowed, -torch.inf), redrawn)

    def redraw(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return ``redrawn`` of :meth:`reparameterize` for a sample ``z`` ``(B, *parts)``."""
        if self._subsets:
            raise NotTractable(self.name, "redraw", "budget = null")
        prepared, _ = self._read(scores, lengths)
        allowed = ~prepared.isneginf()
        return self._redraw(z, prepared.masked_fill(~allowed, 0.0), allowed)

    def _redraw(self, z: Tensor, safe: Tensor, allowed: Tensor) -> Tensor:
        again = _logistic(safe)
        redrawn = torch.where(
            z > 0, _softplus(again + _softplus(safe)), -_softplus(_softplus(-safe) - again)
        )
        return redrawn.masked_fill(~allowed, -torch.inf)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Clip each score to [0, 1], or with a budget project on the capped simplex; exact.

        The last two arguments have no effect.
        """
        check_options(self.name, max_iter, tolerance)
        prepared, lengths = self._read(scores, lengths)
        if not self._subsets:
            clipped = prepared.double().clamp(0.0, 1.0)
            return LateMixture(clipped, scores.dtype, partial(_mixed, clipped))
        flat = self._subsets.sparsemap(*_flat(prepared)).cast(scores.dtype)
        mean, weights, shape = flat.mean.view_as(scores), flat.weights, scores.shape
        return SparseSolution(
            mean, weights, flat.gap, lambda: flat.atoms.view(len(weights), *shape)
        )

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the parts that are on: ``(k,)`` items or ``(k, 2)`` arcs, int32."""
        size = length + (self.part_axes == 2)
        found = np.argwhere(z[(slice(0, size),) * self.part_axes] > 0.5).astype("int32")
        return found[:, 0] if self.part_axes == 1 else found

    def encode(self, gold: np.ndarray, length: int) -> np.ndarray:
        return super().encode(gold, length + (self.part_axes == 2))


def _mixed(mean: Tensor) -> SparseSolution:
    """Return the solution with this mean, ``(B, *parts)`` float64."""
    flat = decompose(mean.flatten(1))

    def expand(*device: torch.device) -> Tensor:
        return flat._expand(*device).view(len(flat.weights), *mean.shape)

    return SparseSolution(mean, flat.weights, flat.gap, expand)


def _flat(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return prepared scores as rows of items, and their lengths."""
    rows = scores.flatten(1)
    return rows, torch.full(rows.shape[:1], rows.shape[1], device=scores.device)


def _logistic(like: Tensor) -> Tensor:
    drawn = torch.rand_like(like, device="cpu").clamp(torch.finfo(like.dtype).tiny, 1 - 2**-24)
    return send(drawn.logit(), like.device)


def _softplus(scores: Tensor) -> Tensor:
    """Return log(1 + e^s).

    torch's own softplus is s itself above 20, although the derivative there is still below 1. The
    second derivative of ``logaddexp`` is NaN at large scores.
    """
    return -torch.nn.functional.logsigmoid(-scores)
