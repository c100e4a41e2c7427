"""Choice of one of n items: attention."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_whole
from spacy_latent.kernels.autograd.derivatives import differentiable_once
from spacy_latent.kernels.autograd.tracing import (
    INFEASIBLE,
    has_numbers,
    not_traced,
    refuse,
    source,
)
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import Reparameterized, SparseSolution
from spacy_latent.structures.items import ItemSet
from spacy_latent.structures.results import ReparameterizedTrace, TopK, Traces

ENTMAX_LOSS_ONCE = "entmax_loss can be differentiated once"


class OneOfN(ItemSet):
    """Choices of one item.

    Scores are ``(B, N)``, lengths ``(B,)``. Marginals are the softmax, and SparseMAP is sparsemax
    (Martins and Astudillo 2016). An empty item has one choice, the empty one.
    """

    masks_itself = True
    keeps_digits = True
    tractable = ItemSet.tractable | {"reparameterize", "sample_trace", "reparameterize_trace"}
    # Axis along which parts exclude each other, as in RowChoices.
    choice_axis: ClassVar[int] = 0
    _same_size = True

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        inside, masked = self._allowed(scores, lengths)
        z = torch.zeros_like(masked)
        if z.shape[1]:
            z.scatter_(1, masked.argmax(1, keepdim=True), 1.0)
        return torch.where(inside, z, 0.0)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        _, masked = self._allowed(scores, lengths)
        empty = lengths.to(scores.device) == 0
        # An empty row has no finite score, and its log-sum-exp no gradient.
        safe = torch.where(empty[:, None], torch.zeros_like(masked), masked)
        if not safe.shape[1]:
            # A sum of no numbers, which has both derivatives, as other values do.
            return safe.exp().sum(1)
        # Less the highest score, since torch's gradient of logsumexp is exp(s - result), which is
        # wrong if a large result has lost digits.
        top = safe.detach().amax(1, keepdim=True)
        return torch.where(empty, 0.0, (safe - top).logsumexp(1) + top.squeeze(1))

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        inside, masked = self._allowed(scores, lengths)
        empty = (lengths.to(scores.device) == 0)[:, None]
        safe = torch.where(empty, torch.zeros_like(masked), masked)
        return torch.where(inside, safe.softmax(1), 0.0)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        probabilities = self._marginals(scores, lengths)
        z = probabilities.new_zeros((num_samples, *scores.shape))
        if not scores.shape[1]:
            return z
        some = lengths.to(scores.device) > 0
        if not has_numbers(probabilities):
            # Sample for all items together, as if each had a part. Items without parts come last,
            # so that the others get the same random numbers as below.
            order = some.int().argsort(descending=True, stable=True)
            first = torch.arange(scores.shape[1], device=scores.device) == 0
            safe = torch.where(some[:, None], probabilities, first.to(scores.dtype))
            drawn = _draw(safe[order], num_samples, generator)[order.argsort()]
            z.scatter_(2, drawn.t()[:, :, None], 1.0)
            return torch.where(some[:, None], z, 0.0)
        if bool(some.any()):
            drawn = _draw(probabilities[some], num_samples, generator)
            own = torch.zeros_like(z[:, some]).scatter_(2, drawn.t()[:, :, None], 1.0)
            z[:, some] = own
        return z

    def _sample_trace(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Traces:
        """Return the choice, with its probability in :meth:`sample`."""
        with torch.no_grad():
            z = self._sample(scores.detach(), lengths, num_samples, generator)
        return Traces(z, self._log_prob(z, scores, lengths))

    def _log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return :meth:`log_prob`, computed in float64, as a small difference of large numbers."""
        exact = self._without_common_offset(scores.double(), lengths)
        return self._total(z.double(), exact, lengths) - self._log_partition(exact, lengths)

    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        """Return the k best choices; see :meth:`Structure.top_k`.

        It takes O(N log N) per item for any k.
        """
        check_whole(f"{self.name}.top_k", error=InvalidScores, k=k)
        self.check_tensors(scores, lengths)
        prepared, sizes = self._read(scores.detach(), lengths)
        _, masked = self._allowed(prepared, sizes)
        count = min(k, masked.shape[1])
        values = masked.new_full((k, len(masked)), -torch.inf)
        z = masked.new_zeros((k, *masked.shape))
        best = masked.sort(dim=1, descending=True, stable=True)
        values[:count] = best.values[:, :count].t()
        known = (~values[:count].isneginf()).to(z)[:, :, None]
        z[:count].scatter_(2, best.indices[:, :count].t()[:, :, None], known)
        # An empty item has one choice, the empty one.
        values[0] = torch.where(sizes.to(values.device) == 0, 0.0, values[0])
        return TopK(z, values).to(scores.dtype)

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        """Return a sample with Gumbel noise.

        See Gumbel 1954, and for the conditional noise Tucker et al. 2017, appendix B.
        """
        log_p, allowed = self._log_probabilities(scores, lengths)
        noisy = (log_p + _gumbel(log_p)).masked_fill(~allowed, -torch.inf)
        z = self._map(noisy.detach(), lengths)
        return Reparameterized(z, noisy, self._redraw(z, log_p, allowed))

    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        """Return :meth:`reparameterize`, in which the choice is the trace."""
        found = self._reparameterize(scores, lengths)
        log_probs = self._log_prob(found.z, scores, lengths)
        return ReparameterizedTrace(found.z, found.noisy, found.redrawn, log_probs)

    def redraw(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return ``redrawn`` of :meth:`reparameterize` for a sample ``z`` ``(B, N)``."""
        return self._redraw(z, *self._log_probabilities(*self._read(scores, lengths)))

    def _log_probabilities(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the items, 0 unless allowed, and a mask of these."""
        inside, masked = self._allowed(scores, lengths)
        allowed = inside & ~masked.isneginf()
        safe = masked.masked_fill(~allowed, -1e30)
        return torch.where(allowed, safe.log_softmax(1), 0.0), allowed

    def _redraw(self, z: Tensor, log_p: Tensor, allowed: Tensor) -> Tensor:
        # The largest noisy score is itself Gumbel, since the scores are normalised.
        gumbel = _gumbel(log_p)
        largest = (gumbel * z).sum(1, keepdim=True)
        others = -torch.logaddexp(-gumbel - log_p, -largest.expand_as(log_p))
        return torch.where(z > 0, largest, others).masked_fill(~allowed, -torch.inf)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Return sparsemax, exact; the last two arguments have no effect.

        The weights are the mean.
        """
        from spacy_latent.kernels.choices.simplex import sparsemax

        check_options(self.name, max_iter, tolerance)
        prepared, lengths = self._read(scores, lengths)
        mean = sparsemax(prepared, lengths, self.name).to(scores.dtype)
        with torch.no_grad():
            count = max(int((mean > 0).sum(1).max()), 1) if mean.numel() else 1
            order = mean.argsort(dim=1, descending=True, stable=True)[:, :count]
        if not mean.shape[1]:
            # The empty structure, with weight 1.
            weights = 1.0 + mean.sum(1)[None]
            gap = torch.zeros(mean.shape[0], dtype=torch.float64, device=mean.device)
            return SparseSolution(mean, weights, gap, lambda: mean.detach()[None])
        weights = mean.gather(1, order).t()
        empty = (lengths.to(scores.device) == 0)[None]
        first = torch.arange(len(weights), device=scores.device)[:, None] == 0
        weights = torch.where(empty & first, 1.0, weights)

        def expand() -> Tensor:
            atoms = torch.zeros((count, *mean.shape), dtype=mean.dtype, device=mean.device)
            atoms.scatter_(
                2, order.t()[:, :, None], (mean.gather(1, order) > 0).t()[:, :, None].to(mean)
            )
            return atoms

        gap = torch.zeros(mean.shape[0], dtype=torch.float64, device=mean.device)
        return SparseSolution(mean, weights, gap, expand)

    def entmax(self, scores: Tensor, lengths: Tensor, alpha: float | Tensor) -> Tensor:
        """Return α-entmax with α > 1, ``(B, N)``; differentiable, in α as well.

        Args:
            alpha: a number, or a tensor with one element, or with one for each item, ``(B,)``.
        """
        from spacy_latent.kernels.choices.attention import entmax

        prepared, lengths = self._read(scores, lengths)
        alphas = self._alphas(alpha, prepared)
        return entmax(prepared, lengths, alphas, self.name).to(scores.dtype)

    def entmax_loss(
        self, scores: Tensor, gold: Tensor, lengths: Tensor, alpha: float | Tensor = 1.5
    ) -> Tensor:
        """Return the loss of α-entmax, ``(B,)``; differentiable once, in α as well.

        See Peters et al. 2019 and Blondel et al. 2020. At α = 2 it is the loss of sparsemax. It is
        the maximum over the simplex of p·s − Ω(p), less z·s − Ω(z), with Ω(p) = (Σ p^α − 1) / (α(α
        − 1)) and z the gold choice. Its gradient is the entmax of the scores less z. It is 0 if the
        gold item leads all others by 1/(α − 1).

        Args:
            gold: ``(B, N)``, 0/1, or probabilities, which sum to 1 for an item with any parts.
            alpha: as for :meth:`entmax`.
        """
        self._check_pair(scores, gold)
        exact, sizes = self._read(scores.double(), lengths)
        alphas = self._alphas(alpha, exact)
        parts = self.part_mask(exact, sizes.to(exact.device))
        wanted = torch.where(parts, gold.to(exact), 0.0)
        # At the maximum the value does not change with p: no gradient has to go through it.
        p = self.entmax(exact.detach(), sizes, alphas.detach())
        exact, alphas = (differentiable_once(given, ENTMAX_LOSS_ONCE) for given in (exact, alphas))

        def worth(choice: Tensor) -> Tensor:
            taken = torch.where(choice > 0, exact, 0.0)
            power = alphas[:, None] if alphas.dim() else alphas
            regularizer = choice.pow(power).sum(1) / (alphas * (alphas - 1))
            return (choice * taken).sum(1) - regularizer

        return (worth(p) - worth(wanted)).to(scores.dtype)

    def _alphas(self, alpha: float | Tensor, scores: Tensor) -> Tensor:
        """Return one alpha for each of the scores' items, or one for all ``()``; float64."""
        given = torch.as_tensor(alpha, dtype=torch.float64)
        if given.numel() == 1:
            return given.reshape(())
        if given.shape != scores.shape[:1]:
            raise InvalidScores(
                f"{self.name}.entmax: alpha has shape {tuple(given.shape)}; expected a number, or "
                f"one for each of the {len(scores)} items."
            )
        return given.to(scores.device)

    def fusedmax(self, scores: Tensor, lengths: Tensor, penalty: float) -> Tensor:
        """Return sparsemax after the proximal step of penalty · total variation, ``(B, N)``.

        It is differentiable. Forbidden items are skipped, so the items on both sides of them are
        neighbours.
        """
        from spacy_latent.kernels.choices.attention import TOTAL_VARIATION

        return self._sparsemax_of(scores, lengths, TOTAL_VARIATION, penalty)

    def oscarmax(self, scores: Tensor, lengths: Tensor, penalty: float) -> Tensor:
        """Return sparsemax ``(B, N)`` after a proximal step, differentiable in the scores.

        The penalty of the step is penalty · Σ_{i<j} max(p[i], p[j]).
        """
        from spacy_latent.kernels.choices.attention import ORDERED

        return self._sparsemax_of(scores, lengths, ORDERED, penalty)

    def constrained_sparsemax(
        self, scores: Tensor, lengths: Tensor, upper: float | Tensor
    ) -> Tensor:
        """Return sparsemax with upper bounds on the probabilities, ``(B, N)``; differentiable.

        See Malaviya et al. 2018. It is differentiable in the bounds, too.

        Args:
            upper: bound of all items, or of each one, ``(B, N)``, at least 0. If the bounds of an
                item sum to less than 1, they are all increased by the factor that makes it 1.
        """
        from spacy_latent.structures.bounded_simplex import bounded_sparsemax

        prepared, lengths = self._read(scores, lengths)
        inside, masked = self._allowed(prepared, lengths)
        bounds = torch.as_tensor(upper, dtype=torch.float64, device=scores.device)
        if bounds.dim() and bounds.shape != scores.shape:
            raise InvalidScores(
                f"{self.name}.constrained_sparsemax: upper has shape {tuple(bounds.shape)}; "
                f"expected a number, or a bound for each score, {tuple(scores.shape)}."
            )
        allowed = inside & ~masked.isneginf()
        bounds = torch.where(allowed, bounds, 0.0)
        bad = allowed & ~(bounds >= 0)
        if has_numbers(bounds) and bool(bad.any()):
            raise InvalidScores(
                f"{self.name}.constrained_sparsemax: upper has numbers below 0, or NaN; expected "
                "bounds of at least 0."
            )
        total = bounds.sum(1, keepdim=True)
        equal = allowed.double() / allowed.sum(1, keepdim=True).clamp_min(1)
        bounds = torch.where(total > 0, bounds / total.clamp(1e-300, 1.0), equal)
        return bounded_sparsemax(masked.double(), bounds).to(scores.dtype)

    def _sparsemax_of(self, scores: Tensor, lengths: Tensor, kind: int, penalty: float) -> Tensor:
        from spacy_latent.kernels.choices.attention import proximal
        from spacy_latent.kernels.choices.simplex import sparsemax

        if not 0 <= penalty < math.inf:
            raise InvalidScores(f"{self.name}: penalty is {penalty}; expected a number >= 0.")
        smooth, lengths = self._read(scores, lengths)
        # Skip the step at penalty 0: it would put equal scores in one block and average their
        # gradients.
        if penalty != 0.0:
            smooth, _ = proximal(smooth, lengths, kind, penalty, self.name)
        return sparsemax(smooth, lengths, self.name).to(scores.dtype)

    def _allowed(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return a mask of the items, and the checked scores with −inf elsewhere."""
        inside = self.part_mask(scores, lengths.to(scores.device))
        masked = self._mask(scores, inside)
        none = masked.isneginf().all(1) & (lengths.to(scores.device) > 0)
        return inside, refuse(masked, none, INFEASIBLE, self.name)


def _draw(probabilities: Tensor, num_samples: int, generator: torch.Generator | None) -> Tensor:
    """Return sampled items of each row, ``(R, num_samples)``."""
    device = generator.device if generator is not None else torch.device("cpu")
    rows = probabilities.to(device)
    drawn = torch.multinomial(rows, num_samples, replacement=True, **source(generator))
    return drawn.to(probabilities.device)


def _gumbel(like: Tensor) -> Tensor:
    own = torch.empty_like(like, device="cpu", memory_format=torch.contiguous_format)
    drawn = own.exponential_().clamp_min(torch.finfo(like.dtype).tiny)
    return send(-drawn.log(), like.device)
