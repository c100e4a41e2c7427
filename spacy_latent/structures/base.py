"""Structures: finite sets of 0/1 arrays over parts, and inference on them.

Scores are a float tensor ``(B, *parts)``, batched and padded. ``lengths`` is an integer tensor,
``(B,)`` or ``(B, axes)``, of the true sizes. Padding is never read and gets no gradient. A score of
``-inf`` forbids a part. A subclass has to define only :meth:`Structure._map`. Everything that
follows from a MAP oracle alone then works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, NotTractable, check_whole
from spacy_latent.kernels.autograd.tracing import NOT_FINITE, has_numbers, not_traced, refuse
from spacy_latent.kernels.core.gpu_transfers import send_together
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.contract import StructureContract
from spacy_latent.structures.extreme_scores import ReducedScores, has_extreme_scores, reduce_scores
from spacy_latent.structures.k_best import lawler
from spacy_latent.structures.results import (
    Reparameterized,
    ReparameterizedTrace,
    SparseSolution,
    TopK,
    Traces,
)

Self = TypeVar("Self", bound="Structure")

# Names of torch-struct and SynJax, see docs/structured_attention.md.
ELSEWHERE = {
    "partition": "log_partition(scores, lengths)",
    "argmax": "map(scores, lengths)",
    "kmax": "top_k(scores, lengths, k)",
    "topk": "top_k(scores, lengths, k)",
    "count": "log_count(scores, lengths)",
    "kl_divergence": "kl(scores, other, lengths)",
    "unnormalized_log_prob": "log_potential(z, scores, lengths)",
}


class Structure(StructureContract):
    """Set of structures over parts, with all operations on it.

    Subclasses define methods of :class:`~spacy_latent.structures.contract.StructureContract`. An
    operation that needs a missing one is not tractable.
    """

    # Type checkers would take any attribute for one that exists.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ELSEWHERE:
                raise AttributeError(
                    f"{self.name} has no {name!r}; expected {ELSEWHERE[name]}. A structure has "
                    "only settings: pass the scores to each method."
                )
            if name.startswith("__"):
                # Hooks of Python that copy() looks for. torch.compile cannot trace what follows.
                raise AttributeError(f"{self.name} has no {name!r}.")
            # Another base may find attributes of its own, as torch's modules find parameters.
            find = getattr(super(), "__getattr__", None)
            if find is not None:
                return find(name)
            # Python's own error, or an error from within a property.
            return super().__getattribute__(name)

    def covers(self, other: Structure) -> bool | None:
        """Return whether this set holds every structure of ``other``, or None if that is not known.

        By default it is True for a set with the same class and settings, and None for others.
        """
        same = type(self) is type(other) and _are_same(self._settings(), other._settings())
        return True if same else None

    # ---------------------------------------------------------------- operations

    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the highest-scoring structure of each item.

        Scores are summed in float64. If a sum contains a score of 1e30, structures that differ by 1
        cannot be distinguished, and the result is one of them.

        Returns:
            ``(B, *parts)``, 0/1, in the dtype and on the device of ``scores``, without a gradient.
        """
        prepared, lengths = self._read(scores, lengths)
        with torch.no_grad():
            best = self._map(prepared.detach(), lengths)
        self._check_best(best, prepared)
        return best.to(scores.dtype)

    def log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the log-partition log Σ_z exp(z·s) of each item, ``(B,)``.

        Its gradient is :meth:`marginals`.
        """
        prepared, lengths = self._read(scores, lengths)
        reduced = None if self.keeps_digits else self._reduced(prepared, lengths)
        if reduced is None:
            return self._watched_log_partition(prepared, lengths).to(scores.dtype)
        total = reduced.structure._watched_log_partition(reduced.scores, lengths)
        return (total + reduced.common(lengths)).to(scores.dtype)

    def _watched_log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return :meth:`_log_partition`, and refuse a gradient that is NaN."""
        if type(self)._marginals is Structure._marginals:
            self._watch_gradient(scores, lengths)
        return self._log_partition(scores, lengths)

    def _watch_gradient(self, scores: Tensor, lengths: Tensor) -> None:
        """Make a backward through :meth:`_log_partition` fail if its gradient is NaN.

        The scores must belong to this call alone, so that no hook is left on a caller's tensor.
        """
        if not has_numbers(scores) or scores.grad_fn is None:
            return
        known, sizes = scores.detach(), lengths.to(scores.device)

        def check_gradient(gradient: Tensor | None) -> None:
            if gradient is None:
                return
            wrong = gradient.isnan()
            if bool(wrong.any()) and bool((wrong & self.part_mask(known, sizes)).any()):
                # Raises the error unless the NaN comes from a later operation.
                self._marginals(known, lengths)

        scores.register_hook(check_gradient)

    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the marginals E[z] under p(z) ∝ exp(z·s), ``(B, *parts)``; differentiable."""
        prepared, lengths = self._read(scores, lengths)
        own, reduced = self._to_sum_over(prepared, lengths)
        return own._marginals(reduced, lengths).to(scores.dtype)

    def entropy(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the entropy of p(z) ∝ exp(z·s) in nats, ``(B,)``; differentiable.

        Like :meth:`cross_entropy` and :meth:`kl`, it is computed in float64, since it is a small
        difference of large numbers.
        """
        exact = _in_float64(scores)
        return self._cross_entropy(exact, exact, lengths).clamp_min(0.0).to(scores.dtype)

    def cross_entropy(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        """Return −Σ_z p(z) log q(z) in nats, ``(B,)``, p from ``scores`` and q from ``other``.

        It is infinite, and has no gradient, if q forbids a structure that p does not.
        """
        self._check_pair(scores, other)
        exact = self._cross_entropy(_in_float64(scores), _in_float64(other), lengths)
        return exact.to(other.dtype)

    def kl(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        """Return KL(p‖q) in nats, ``(B,)``, p from ``scores`` and q from ``other``.

        It has no gradient if it is infinite.
        """
        self._check_pair(scores, other)
        p, q = _in_float64(scores), _in_float64(other)
        crossed = self._cross_entropy(p, q, lengths)
        difference = crossed - self._cross_entropy(p, p, lengths)
        # Values below 0 by rounding become 0, but keep their gradient.
        difference = difference + (-difference).detach().clamp_min(0.0)
        return torch.where(crossed.isposinf(), torch.inf, difference).to(other.dtype)

    def _cross_entropy(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        prepared, sizes = self._read(scores, lengths)
        own, given = self._to_sum_over(prepared, sizes)
        uses = own._expected_uses(given, sizes)
        if other is not scores:
            prepared, sizes = self._read(other, lengths)
        reduced = self._reduced(prepared, sizes)
        if reduced is None:
            level, _ = self._read(self._without_common_offset(other, sizes), sizes)
            expected, finite = self._expected(uses, self._kernel_input(level), sizes)
            found = self._log_partition(level, sizes) - expected
        else:
            expected, finite = self._expected(uses, reduced.given, sizes)
            total = reduced.structure._log_partition(reduced.scores, sizes)
            found = reduced.known(total - expected) - reduced.apart(uses, sizes)
        if other is not scores:
            finite = finite & ~self._forbids_more(scores, other, lengths)
        return torch.where(finite, found, torch.inf)

    @torch.no_grad()
    def _forbids_more(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        """Return whether ``other`` forbids a structure that ``scores`` do not, ``(B,)`` bool.

        The probability of this structure may be arbitrarily small; its marginals may underflow.
        """
        own, sizes = self._read(scores, lengths)
        given = self._kernel_input(own)
        forbidden = self._kernel_input(self._read(other, lengths)[0])
        more = forbidden.isneginf() & ~given.isneginf() & self._kernel_input_mask(own, sizes)
        if has_numbers(more) and not bool(more.any()):
            return more.flatten(1).any(1)
        structure, level = self._with_kernel_input(torch.where(given.isneginf(), given, 0.0), own)
        return (more & (structure._expected_uses(level, sizes) > 0)).flatten(1).any(1)

    # ---------------------------------------------------------------- scores of very different size

    def _kernel_input(self, scores: Tensor) -> Tensor:
        """Return the scores as the kernels read them, ``(B, ...)``.

        The scores of the parts come first, then other terms such as bound transitions. The score of
        a structure is the sum of the values that it uses.
        """
        return scores

    def _kernel_input_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return a bool mask of the values of :meth:`_kernel_input` that count."""
        return self.part_mask(scores, lengths.to(scores.device)).expand_as(scores)

    def _kernel_input_without_offset(
        self, given: Tensor, scores: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return :meth:`_without_common_offset` of all values of :meth:`_kernel_input`."""
        return self._without_common_offset(given, lengths)

    def _with_kernel_input(self: Self, given: Tensor, scores: Tensor) -> tuple[Self, Tensor]:
        """Return the structure and scores for which :meth:`_kernel_input` is ``given``.

        The scores have the shape of ``scores``.
        """
        return self, given

    def _has_extreme_scores(self, scores: Tensor) -> bool:
        # Not checked on a GPU, since this would wait for it.
        return not scores.is_cuda and has_extreme_scores(scores)

    def _expected_uses(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the expected number of uses of each value of :meth:`_kernel_input`."""
        return self._marginals(scores, lengths)

    def _uses(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return how often structures use each value of :meth:`_kernel_input`."""
        return z

    def _reduced(self, scores: Tensor, lengths: Tensor) -> ReducedScores[Structure] | None:
        """Return scores of the same distribution with precise sums, or None.

        None means that the sums of the given scores are precise already.

        Raises:
            InvalidScores: no scores give precise sums, so that the likely structures are unknown.
        """
        if not (self.linear and scores.numel() and self._has_extreme_scores(scores)):
            return None
        return reduce_scores(self, scores, lengths)

    def _to_sum_over(self, scores: Tensor, lengths: Tensor) -> tuple[Structure, Tensor]:
        """Return the structure and the scores over which to sum, with the same distribution.

        These are the given ones, unless :meth:`_reduced` returns scores with more precise sums.
        """
        reduced = None if self.keeps_digits else self._reduced(scores, lengths)
        return (self, scores) if reduced is None else (reduced.structure, reduced.scores)

    def _without_common_offset(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores less an offset that all structures of an item share.

        Such an offset would absorb the differences between structures. The result is for sums that
        depend on these differences alone. The gradient is not changed. The default uses
        ``exclusive_axes``.
        """
        if not self.exclusive_axes:
            return scores
        parts = self.part_mask(scores, lengths.to(scores.device))
        return subtract_highest(scores, parts, self.exclusive_axes)

    def _expected(self, mean: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean·s of each item, with 0·(−inf) = 0, and whether it is finite.

        A value that is not finite is returned as 0, without a gradient. The gradient of the product
        would be NaN.
        """
        axes = tuple(range(1, scores.dim()))
        counted = mean.detach() != 0
        finite = ~(counted & scores.isneginf()).any(axes)
        # Not in place, for vmap over either argument alone.
        counted = counted & finite.view(-1, *[1] * len(axes))
        return (mean * torch.where(counted, scores, 0.0)).sum(axes), finite

    def log_count(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the log of the number of structures whose every part is above −inf, ``(B,)``."""
        masked, lengths = self.masked(scores.detach(), lengths)
        zeros = torch.where(torch.isneginf(masked), masked, torch.zeros_like(masked))
        return self.log_partition(zeros.to(scores.dtype), lengths)

    def log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the log-probability of structures.

        Membership of ``z`` in the set is not checked, since the check may take longer than the
        log-partition. If ``z`` is no member, for example if it has fractions or parts at padding,
        the result is z·s − log Z, and no log-probability. See :meth:`contains`.

        Args:
            z: ``(K, B, *parts)`` or ``(B, *parts)``, 0/1, members of this set.

        Returns:
            ``(K, B)`` or ``(B,)``, as ``z`` has it.
        """
        exact = _in_float64(scores)
        prepared, sizes = self._read(exact, lengths)
        reduced = self._reduced(prepared, sizes)
        self._check_structures(z, scores)
        z = z.to(exact.dtype)
        if reduced is None:
            found = self._total(z, exact, sizes) - self._watched_log_partition(prepared, sizes)
            return found.to(scores.dtype)
        total = reduced.structure._total(z, reduced.scores, sizes)
        total = reduced.known(
            total - reduced.structure._watched_log_partition(reduced.scores, sizes)
        )
        return (total + reduced.apart(self._uses(z, scores, sizes), sizes)).to(scores.dtype)

    def log_potential(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return log p(z) up to a constant of the item, z·s.

        For shapes and missing checks, see :meth:`log_prob`.
        """
        self._check_structures(z, scores)
        total = self._total(z, scores, lengths)
        if total.is_cuda:
            # Not checked on a GPU, since this would wait for it.
            return total
        wrong = ~(total.detach() < torch.inf)
        return refuse(
            total, wrong.flatten(0, -2).any(0) if wrong.dim() > 1 else wrong, NOT_FINITE, self.name
        )

    def sample(
        self,
        scores: Tensor,
        lengths: Tensor,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return exact independent samples from p(z) ∝ exp(z·s), ``(num_samples, B, *parts)``, 0/1.

        Args:
            generator: source of randomness, torch's default on the CPU if None.
        """
        self._check_draws("sample", num_samples, generator)
        prepared, lengths = self._read(scores, lengths)
        with torch.no_grad():
            own, reduced = self._to_sum_over(prepared.detach(), lengths)
            drawn = own._sample(reduced, lengths, num_samples, generator)
        return drawn.to(scores.dtype)

    def reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        """Return one exact sample of each item, as the ``map`` of noisy scores.

        The noisy scores, and those drawn again given the sample, are differentiable in ``scores``.
        """
        prepared, lengths = self._read(scores, lengths)
        return self._reparameterize(prepared, lengths)

    @not_traced
    def sample_trace(
        self,
        scores: Tensor,
        lengths: Tensor,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Traces:
        """Return structures built by independent choices, and the log-probability of these choices.

        An algorithm makes the choices one after another, from softmaxes of the scores (Struminsky
        et al. 2021). The structures have a distribution of their own, not p(z) ∝ exp(z·s).

        Args:
            generator: as for :meth:`sample`.
        """
        self._check_draws("sample_trace", num_samples, generator)
        own, given, sizes = self.at_hand(scores, lengths)
        prepared, sizes = own._read(given, sizes)
        found = own._sample_trace(prepared, sizes, num_samples, generator)
        sent = send_together([found.z, found.log_probs.to(scores.dtype)], scores.device)
        return Traces(sent[0].to(scores.dtype), sent[1])

    @not_traced
    def reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        """Return one structure of each item as in :meth:`sample_trace`, with its noisy scores.

        The choices follow from the noisy scores. These are also drawn again given the choices. Both
        are differentiable in ``scores``, twice. The best structure under the noisy scores may be
        another one: the algorithm determines the structure to which they lead.
        """
        prepared, lengths = self._read(scores, lengths)
        found = self._reparameterize_trace(prepared, lengths)
        dtype = scores.dtype
        return replace(found, z=found.z.to(dtype), log_probs=found.log_probs.to(dtype))

    @not_traced
    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        """Return the k best structures by score, exact, from the MAP oracle (Lawler 1972).

        Structures that float64 cannot distinguish come in any order, as for :meth:`map`.
        """
        self.check_tensors(scores, lengths)
        own, given, sizes = self.at_hand(scores.detach(), lengths)
        prepared, sizes = own._read(given, sizes)
        with torch.no_grad():
            best = lawler(own, prepared, sizes, k).to(scores.dtype)
        return best.sent(scores.device)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Solve SparseMAP (Niculae et al. 2018a) by the active-set method; differentiable.

        The gradient of the mean is taken on the face in which the mean lies. Structures without a
        weight also span this face if they tie. At a kink it is one of the adjacent gradients. The
        gradient of the weights is taken on the support alone, see
        :class:`~spacy_latent.structures.results.SparseSolution`.

        Args:
            max_iter: bound on the number of calls of the MAP oracle per item.
            tolerance: bound on the distance of the mean from the optimum. The search goes on as
                long as it finds structures that improve the solution, even if their weights are too
                small to change the mean.
        """
        own, given, sizes = self.at_hand(scores, lengths)
        prepared, sizes = own._read(given, sizes)
        solution = solve_with_oracle(own, prepared, sizes, max_iter, tolerance)
        return solution.cast(scores.dtype).sent(scores.device)

    @not_traced
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        """Return a mask ``(B,)`` bool of the ``z`` ``(B, *parts)`` in this set.

        A structure is 0/1, and 0 at entries that are no part, padding included.

        The default calls the MAP oracle: a structure is the best one if its own parts score 1 and
        all others −1. A subclass overrides it if its scores belong to decisions, or if it has no
        exact ``map``. It may also do so if it has a cheaper test.
        """
        if not (self.linear and self.has_map):
            raise NotTractable(self.name, "contains", "define contains() in the class")
        check_given(self, z, lengths)
        given, sizes = z.detach(), lengths.to(torch.int64)
        found = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        rows = ((given == 0) | (given == 1)).flatten(1).all(1).nonzero().flatten()
        while len(rows):
            own, own_sizes = given[rows].float(), sizes[rows.to(sizes.device)]
            try:
                best = self.map(2 * own - 1, own_sizes)
            except InfeasibleError as error:
                if not error.items:
                    raise
                # The set of these items is empty.
                rows = without(rows, error.items)
                continue
            found[rows] = (best == own).flatten(1).all(1)
            break
        return found

    def _check_draws(self, operation: str, num_samples: object, generator: object) -> None:
        name = f"{self.name}.{operation}"
        check_whole(name, error=InvalidScores, num_samples=num_samples)
        if not (generator is None or isinstance(generator, torch.Generator)):
            raise InvalidScores(
                f"{name}: generator is {generator!r}; expected a torch.Generator or None. One with "
                "a seed is torch.Generator().manual_seed(seed)."
            )

    def _check_structures(self, z: object, scores: Tensor) -> None:
        if not isinstance(z, Tensor):
            raise InvalidScores(
                f"{self.name}: structures are {type(z).__name__}; expected a tensor. Convert them "
                "with torch.as_tensor()."
            )
        if z.shape != scores.shape and z.shape[1:] != scores.shape:
            raise InvalidScores(
                f"{self.name}: structures have shape {tuple(z.shape)}; expected that of the "
                f"scores, {tuple(scores.shape)}, or K of these, (K, B, parts)."
            )

    def _check_pair(self, scores: object, other: object) -> None:
        if not (isinstance(scores, Tensor) and isinstance(other, Tensor)):
            raise InvalidScores(
                f"{self.name}: the scores of p are {type(scores).__name__} and those of q "
                f"{type(other).__name__}; expected tensors. Convert them with torch.as_tensor()."
            )
        if scores.shape != other.shape:
            raise InvalidScores(
                f"{self.name}: the scores of p and q have shapes {tuple(scores.shape)} and "
                f"{tuple(other.shape)}; expected the same one."
            )

    def _total(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return z·s of each item, with 0·(−inf) = 0; ``z`` as in :meth:`log_prob`."""
        axes = tuple(range(-self.part_axes, 0))
        taken = torch.where(z != 0, scores, scores.new_zeros(()))
        return (z * taken).sum(axes)


def chosen_parts(structure: Structure, z: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the chosen parts of ``z`` ``(B, *parts)``, bool, for tests of membership.

    Returns:
        The chosen parts; a mask ``(B,)`` of the items that are 0/1, with 0 at entries that are no
        part; and the lengths, int64.
    """
    check_given(structure, z, lengths)
    chosen = z.detach() == 1
    sizes = lengths.to(z.device, torch.int64)
    inside = structure.part_mask(z, sizes)
    return chosen, torch.where(inside, chosen | (z == 0), z == 0).flatten(1).all(1), sizes


def check_given(structure: Structure, z: Tensor, lengths: Tensor) -> None:
    """Refuse ``z`` without the axes of ``(B, *parts)``, for tests of membership."""
    if not (isinstance(z, Tensor) and isinstance(lengths, Tensor)):
        raise InvalidScores(
            f"{structure.name}.contains: structures are {type(z).__name__} and lengths "
            f"{type(lengths).__name__}; expected tensors. Convert them with torch.as_tensor()."
        )
    if z.dim() != 1 + structure.part_axes or len(z) != len(lengths):
        raise InvalidScores(
            f"{structure.name}.contains: structures have shape {tuple(z.shape)} and lengths "
            f"{tuple(lengths.shape)}; expected (B, parts) with {structure.part_axes} axes of "
            "parts, and a length for each of the B items."
        )


def subtract_highest(scores: Tensor, parts: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return scores ``(B, *parts)`` less the highest of the ``parts`` along these axes.

    Axis 0 is the first of the parts. The subtracted value has no gradient. Scores stay unchanged if
    none of them is finite.
    """
    if not scores.numel():
        return scores
    known = torch.where(parts, scores.detach(), -torch.inf)
    top = known.amax([1 + axis for axis in axes], keepdim=True)
    return scores - torch.where(top.isfinite(), top, 0.0)


def without(rows: Tensor, places: list[int]) -> Tensor:
    """Return all rows except those at the given places."""
    kept = torch.ones_like(rows, dtype=torch.bool)
    kept[places] = False
    return rows[kept]


def _in_float64(scores: Tensor) -> Tensor:
    """Return floating-point scores in float64.

    Others are returned unchanged, and :meth:`Structure.check` refuses them.
    """
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        return scores
    return scores.double()


def _are_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether settings are the same; the values of arrays among them are compared."""
    return ours.keys() == theirs.keys() and all(
        _is_same(value, theirs[name]) for name, value in ours.items()
    )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)
