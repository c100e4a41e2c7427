"""Subsets of k of n items, or at most k: rationales, budgets."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_flags, check_whole
from spacy_latent.kernels.autograd.tracing import has_numbers, not_traced, source
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import SparseSolution, Structure
from spacy_latent.structures.clocks import free_draw, log_exponential, with_rest
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.items import ItemSet, decompose
from spacy_latent.structures.results import ReparameterizedTrace, Traces

# If scores differ by this, the lower item has the probability 0 in float64.
FAR = 800.0


class KOfN(ItemSet, CompiledStructure):
    """Subsets of k items.

    Scores are ``(B, N)``, lengths ``(B,)``. If there are fewer than k items, k is their number.

    Sums are elementary symmetric polynomials, O(n·k) on logarithms. SparseMAP is the projection on
    the capped simplex, O(n log n), with subsets from systematic sampling as its support.

    Args:
        k: number of chosen items.
        exactly: exactly k; else any number up to k, of which MAP takes those with scores above 0.
    """

    family: ClassVar[str] = "spacy_latent.kernels.choices.subsets:FAMILY"
    keeps_digits = True

    def __init__(self, k: int = 5, exactly: bool = True) -> None:
        check_whole(self.name, error=InvalidScores, k=k)
        check_flags(self.name, error=InvalidScores, exactly=exactly)
        self.k = k
        self.exactly = self.incomparable = exactly
        if exactly:
            self.tractable = self.tractable | {  # type: ignore[misc]
                "sample_trace",
                "reparameterize_trace",
            }

    @property
    def _same_size(self) -> bool:
        return self.exactly

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, KOfN):
            return super().covers(other)
        if self.exactly:
            # For a text of fewer words than either k, both choose all. The sets differ for other
            # texts.
            return other.exactly and self.k == other.k
        return self.k >= other.k

    def _options(self, scores: Tensor) -> list[int]:
        return [self.k, int(self.exactly)]

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        near, removed = self._reduce_magnitudes(scores, lengths)
        return super()._log_partition(near, lengths) + removed

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._marginals(self._reduce_magnitudes(scores, lengths)[0], lengths)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        near, _ = self._reduce_magnitudes(scores, lengths)
        return super()._sample(near, lengths, num_samples, generator)

    def _sample_trace(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Traces:
        """Choose the k highest of noisy scores in their order.

        This draws one item after another, each from the softmax of those that are left (Plackett
        1975).
        """
        if not self.exactly:
            return super()._sample_trace(scores, lengths, num_samples, generator)
        masked = self._mask(scores, self.part_mask(scores, lengths)).double()
        # Clocks of the items, before division by their rates.
        clocks = torch.empty((num_samples, *masked.shape), dtype=torch.float64, device="cpu")
        clocks.exponential_(**source(generator)).clamp_min_(torch.finfo(torch.float64).tiny)
        z, _, taken, gains, _ = self._in_order(masked, lengths, -clocks.log())
        return Traces(z, torch.where(taken, gains, 0.0).sum(2))

    def _in_order(
        self, masked: Tensor, lengths: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the k highest of ``masked`` ``(B, N)`` with each ``noise`` ``(K, B, N)``.

        Returns:
            z ``(K, B, N)``; the item of each step ``(K, B, steps)``; a mask of the steps that are
            taken, ``(B, steps)``; the log-probability of each choice, and the log of the summed
            rates of all items that were left before it, both ``(K, B, steps)``.
        """
        count, longest = len(noise), masked.shape[1]
        k = lengths.clamp(max=self.k)
        allowed = ~masked.detach().isneginf()
        lacking = (allowed.sum(1) < k).nonzero().flatten().tolist()
        if lacking:
            self.raise_infeasible(lacking)
        steps = min(self.k, longest)
        place = torch.arange(steps, device=masked.device)
        best = (masked.detach() + noise).topk(steps, 2).indices
        taken = place < k[:, None]
        own = masked.masked_fill(~allowed, 0.0).expand(count, *masked.shape).gather(2, best)
        z = torch.zeros_like(noise)
        z.scatter_(2, best, taken.to(z).expand_as(best))
        # Items left before each step: all that have not been taken by then.
        order = torch.full(z.shape, steps, device=masked.device).scatter_(
            2, best, place.expand(best.shape).contiguous()
        )
        left = (order[:, :, None] >= place[:, None]) & allowed[:, None]
        rest = masked[:, None].masked_fill(~left, -torch.inf)
        # After the last step no item may be left. The logarithm of 0 has no gradient.
        known = torch.where(left.any(3, keepdim=True), rest, 0.0).logsumexp(3)
        return z, best, taken, own - known, known

    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        if not self.exactly:
            return super()._reparameterize_trace(scores, lengths)
        sizes = lengths.to(scores.device)
        masked = self._mask(scores, self.part_mask(scores, sizes)).double()
        allowed = ~masked.detach().isneginf()
        finite = masked.masked_fill(~allowed, 0.0)
        z, best, taken, gains, log_rates = (
            part.squeeze(0) if part.dim() == 3 else part
            for part in self._in_order(masked, sizes, -log_exponential(masked)[None])
        )
        log_probs = torch.where(taken, gains, 0.0).sum(1)

        def log_clocks() -> Tensor:
            """Draw clocks given the order.

            A chosen item waits until its own choice, and the other items until the last one.
            """
            times = log_exponential(log_rates.detach()) - log_rates
            elapsed, running = torch.zeros_like(finite), torch.zeros_like(allowed)
            for step, present in enumerate(taken.T):
                since = times[:, step : step + 1]
                after = torch.where(running, torch.logaddexp(elapsed, since), since)
                earlier = torch.zeros_like(allowed).scatter(1, best[:, :step], True)
                waited = allowed & ~earlier & present[:, None]
                elapsed = torch.where(waited, after, elapsed)
                running = running | waited
            return with_rest(elapsed, running, z > 0, finite)

        with torch.no_grad():
            first = log_clocks()
        noisy, redrawn = (
            each.masked_fill(~allowed, -torch.inf).to(scores.dtype)
            for each in (free_draw(first, finite), -log_clocks())
        )
        return ReparameterizedTrace(z.to(scores.dtype), noisy, redrawn, log_probs.to(scores.dtype))

    def entropy(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the entropy, see :meth:`Structure.entropy`."""
        given, sizes = self._read(scores, lengths)
        return super().entropy(self._reduce_magnitudes(given, sizes)[0], sizes).to(scores.dtype)

    def _reduce_magnitudes(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of the same distribution, and the amount to add to their log-partition.

        If a mask of −1e30 leaves fewer than k words of a text, some masked words have to be chosen.
        Rounding of such sums hides the number of ways to choose them.

        Returns:
            The scores, float64, which differ from the k-th by at most FAR, and amounts ``(B,)``.
        """
        exact = scores.double()
        values = exact.detach()
        if not values.numel():
            return exact, values.new_zeros(len(values))
        sizes = lengths.to(values.device)
        inside = torch.arange(values.shape[1], device=values.device) < sizes[:, None]
        largest = torch.where(inside, values, 0.0).abs().amax()
        # No two scores differ by more than FAR, so nothing would change. This is not checked on a
        # GPU, since it would wait for the GPU.
        if not values.is_cuda and has_numbers(largest) and bool(largest <= FAR / 2):
            return exact, values.new_zeros(len(values))
        finite = inside & values.isfinite()
        k = sizes.clamp(1, self.k)
        ordered = torch.where(finite, values, -torch.inf).sort(1, descending=True).values
        kth = ordered.gather(1, k[:, None] - 1)
        # An item without k finite scores has no subset, or only smaller ones with the level 0.
        level = torch.where(kth.isfinite(), kth, 0.0)
        if self.exactly:
            kept = torch.zeros_like(level)
        else:
            # Smaller subsets count, too, unless the k-th score is so high that they are negligible.
            level = level.clamp_min(0.0)
            kept = level.clamp_max(FAR)
        moved = torch.where(finite, exact - level + kept, 0.0)
        near = torch.minimum(torch.maximum(moved, kept - FAR), kept + FAR)
        above = (moved - near).clamp_min(0.0).sum(1)
        removed = torch.minimum(sizes, k) * (level - kept)[:, 0]
        return torch.where(finite, near, exact), above + removed

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Return the exact solution; the last two arguments have no effect."""
        from spacy_latent.kernels.choices.simplex import capped_simplex

        check_options(self.name, max_iter, tolerance)
        own, given, sizes = self.at_hand(scores, lengths)
        prepared, sizes = own._read(given, sizes)
        # Items whose scores differ much from the k-th have a share of 1 or 0, whatever the
        # difference.
        near, _ = self._reduce_magnitudes(prepared, sizes)
        mean = capped_simplex(near, sizes, self.k, self.exactly, self.name)
        return decompose(mean).cast(scores.dtype).sent(scores.device)
