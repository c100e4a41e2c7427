"""Contract of a structure: a finite set of 0/1 arrays over parts, and inference on it.

Scores are a float tensor ``(B, *parts)``, batched and padded. ``lengths`` is an integer tensor,
``(B,)`` or ``(B, axes)``, of the true sizes. Padding is never read and gets no gradient. A score of
``-inf`` forbids a part. A subclass has to define only :meth:`Structure._map`. Everything that
follows from a MAP oracle alone then works.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    LatentError,
    NotTractable,
    check_whole,
)
from spacy_latent.kernels.autograd.derivatives import refuse_tangents
from spacy_latent.kernels.autograd.tracing import (
    NOT_FINITE,
    has_numbers,
    not_traced,
    refuse,
    refuse_jit_trace,
    within_room,
)
from spacy_latent.kernels.core.gpu_transfers import bring, fetch, send_together
from spacy_latent.stages import Staged
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.derivatives import recordable, recording
from spacy_latent.structures.extreme_scores import ReducedScores, has_extreme_scores, reduce_scores
from spacy_latent.structures.k_best import lawler
from spacy_latent.structures.results import (
    Reparameterized,
    ReparameterizedTrace,
    SparseSolution,
    TopK,
    Traces,
)

ADVICE_MAP_ONLY = (
    "an operation that needs only a MAP oracle (map, top_k, sparsemap), or an estimator built on "
    "one (StraightThrough with backward='identity', Spigot, SparseMAP, PerturbAndMap)"
)


Self = TypeVar("Self", bound="Structure")


class Structure(Staged, ABC):
    """Set of structures over parts.

    Subclasses are stateless and may be pickled. ``stages`` are the sets with which training begins,
    see :mod:`spacy_latent.structures.released`.

    Attributes:
        part_axes: number of trailing axes of ``scores`` that index parts.
        parts: kind of the parts; a config with a scorer or composer of another kind is refused.
            "arcs" are (n+1, n+1) [head, modifier], "items" (n,), "cells" (n, m), "transitions" (n,
            k, k) [position, previous tag, tag], "tags" (n, k), "spans" (n, n) [first, last]. Other
            names may be used for other kinds. Empty: not checked.
        tractable: names of the operations that have an exact polynomial algorithm, beyond those
            that follow from ``map``. Estimators query it by :meth:`lacks` when a config is loaded.
        has_map: whether ``map``, and everything that follows from it, has an exact polynomial
            algorithm. False for factor graphs, which have only ``sparsemap``.
        exclusive_axes: axes of the parts (0 the first) along which every structure has exactly one
            part for each index of the other axes that has any part: ``(0,)`` for trees, whose
            modifiers have one head each. Empty if there are no such axes.
        incomparable: whether no structure of an item is a proper subset of another one, for example
            because all have equally many parts. The k best are then found without a search for
            supersets.
        linear: whether p(z) ∝ exp(z·s) and :meth:`map` maximises z·s. False if scores belong to
            decisions that lead to z.
        acyclic: whether parts never form a cycle. False for graphs that need not be trees.
        masks_itself: whether the methods that begin with an underscore mask entries that are no
            part, and check the values, themselves. They then get scores as :meth:`check` returns
            them, otherwise as :meth:`masked` does.
        keeps_digits: whether sums are precise without :meth:`_reduced`, however much the scores
            differ in size.
        annotation: format of the result of :meth:`decode`: "heads" for one head per token, "tags"
            for one tag per position, or "parts".
    """

    part_axes: ClassVar[int]
    parts: ClassVar[str] = ""
    exclusive_axes: ClassVar[tuple[int, ...]] = ()
    incomparable: bool = False
    tractable: ClassVar[frozenset[str]] = frozenset()
    linear: ClassVar[bool] = True
    has_map: ClassVar[bool] = True
    masks_itself: ClassVar[bool] = False
    keeps_digits: ClassVar[bool] = False
    annotation: ClassVar[str] = "parts"
    acyclic: bool = True

    @property
    def shown(self) -> str:
        return repr(self)

    @property
    def kind(self) -> str:
        """Kind of the annotations, see :class:`spacy_latent.annotations.SpanStructure`."""
        return self.parts if self.annotation == "parts" and self.parts else self.annotation

    def lacks(self, operations: frozenset[str]) -> list[str]:
        """Return the sorted names in ``operations`` that are not tractable; "map" may be one."""
        return sorted(operations - self.tractable - ({"map"} if self.has_map else set()))

    def __repr__(self) -> str:
        settings = sorted(self._settings().items())
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in settings)})"

    def _settings(self) -> dict[str, Any]:
        # Derived attributes are no settings.
        derived = ("stages", "tractable", "exclusive_axes", "incomparable")
        return {name: value for name, value in vars(self).items() if name not in derived}

    def covers(self, other: Structure) -> bool | None:
        """Return whether this set holds every structure of ``other``, or None if that is not known.

        A set is assumed to cover only itself unless its class says otherwise.
        """
        same = type(self) is type(other) and self._settings() == other._settings()
        return True if same else None

    # ---------------------------------------------------------------- to be given by a subclass

    @abstractmethod
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the best structure of each item, 0/1 in the dtype of ``scores``.

        Ties may be broken freely, but always in the same way. For ``scores`` see ``masks_itself``.
        """

    def _best_parts(self, scores: Tensor, lengths: Tensor) -> list[np.ndarray]:
        """Return the flat indices of the parts of the best structure of each item, int32 each.

        SparseMAP calls this repeatedly. It does not write to the scores.
        """
        # A copy, since :meth:`_map` may write to the scores, which are still needed.
        best = self._map(scores.clone(), lengths)
        self._check_best(best, scores)
        rows = best.flatten(1).cpu().numpy()
        return [np.flatnonzero(row).astype(np.int32) for row in rows]

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return a mask of the entries of ``scores`` that are parts.

        It is a bool tensor that broadcasts to the shape of ``scores``. By default, entry i of an
        axis is a part if i is smaller than the item's length.
        """
        per_axis = lengths if lengths.dim() == 2 else lengths[:, None].expand(-1, self.part_axes)
        mask = torch.ones_like(scores, dtype=torch.bool)
        for axis in range(self.part_axes):
            size = scores.shape[1 + axis]
            shape = [1] * scores.dim()
            shape[1 + axis] = size
            index = torch.arange(size, device=scores.device).view(shape)
            limit = per_axis[:, axis].view(-1, *[1] * self.part_axes)
            mask &= index < limit
        return mask

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        raise NotTractable(self.name, "log_partition", ADVICE_MAP_ONLY)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the marginals; by default the derivative of :meth:`_log_partition`.

        The graph is kept.
        """
        if not scores.numel():
            return scores
        refuse_tangents(f"{self.name}.marginals", scores)
        keep = scores.requires_grad and torch.is_grad_enabled()
        result = None
        with recording():
            leaf = scores if keep else recordable(scores).detach().requires_grad_()
            total = recordable(self)._log_partition(leaf, recordable(lengths))
            if total.requires_grad:
                (result,) = torch.autograd.grad(
                    total.sum(), leaf, create_graph=keep, allow_unused=True
                )
        if result is None:
            self.refuse_unrecorded("_log_partition", scores, lengths)
            result = torch.zeros_like(scores)
        self._refuse_nan(result, total, lengths)
        if keep and not result.requires_grad:
            # They are constant, as in a set of one. Their gradient is 0, and not missing.
            result = torch.where(torch.ones_like(result, dtype=torch.bool), result, scores)
        return result

    def refuse_unrecorded(self, operation: str, scores: Tensor, lengths: Tensor) -> None:
        """Refuse a value without a gradient.

        Raises:
            LatentError: the value has no gradient, although there are parts that could get one.
        """
        if scores.numel() and bool(self.part_mask(scores, lengths.to(scores.device)).any()):
            raise LatentError(
                f"{self.name}: {operation} gave a value that does not depend on the scores, by "
                "what torch has recorded, so it has no derivative. Compute it by operations of "
                "torch, without detach(), .data, NumPy or torch.no_grad()."
            )

    def _refuse_nan(self, marginals: Tensor, total: Tensor, lengths: Tensor) -> None:
        wrong = marginals.isnan().flatten(1).any(1)
        if not bool(wrong.any()):
            return
        some = (lengths > 0).view(len(lengths), -1).all(1).to(wrong.device)
        empty = wrong & total.detach().isneginf() & some
        if bool(empty.any()):
            self.raise_infeasible(empty.nonzero().flatten().tolist())
        items = wrong.nonzero().flatten().tolist()
        raise LatentError(
            f"{self.name}: _log_partition has a NaN gradient for item(s) {items[:10]} of the "
            "batch. So have torch.logaddexp of two numbers of -inf and a logarithm of 0, even if "
            "torch.where leaves them out of the result: put other numbers in their place before. "
            "(An item of length 0 has the empty structure, whose score is 0.) "
            "spacy_latent.testing.check_structure finds a short item where it is so."
        )

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        raise NotTractable(self.name, "sample", "PerturbAndMap, which samples with noise and map")

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

    def _check_best(self, best: object, scores: Tensor) -> None:
        """Refuse the result of a subclass's :meth:`_map` if it has another shape."""
        if not isinstance(best, Tensor) or best.shape != scores.shape:
            shape = f" of shape {tuple(best.shape)}" if isinstance(best, Tensor) else ""
            raise LatentError(
                f"{self.name}: _map gives {type(best).__name__}{shape}; expected a tensor of the "
                f"shape of the scores, {tuple(scores.shape)}."
            )

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

        def look(gradient: Tensor | None) -> None:
            if gradient is None:
                return
            wrong = gradient.isnan()
            if bool(wrong.any()) and bool((wrong & self.part_mask(known, sizes)).any()):
                # Raises the error unless the NaN comes from a later operation.
                self._marginals(known, lengths)

        scores.register_hook(look)

    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the marginals E[z] under p(z) ∝ exp(z·s), ``(B, *parts)``; differentiable."""
        prepared, lengths = self._read(scores, lengths)
        own, reduced = self._to_sum_over(prepared, lengths)
        return own._marginals(reduced, lengths).to(scores.dtype)

    def entropy(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the entropy of p(z) ∝ exp(z·s) in nats, ``(B,)``; differentiable.

        It is computed in float64, as are the next three: they are small differences of large
        numbers.
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
            level, _ = self._read(self._levelled(other, sizes), sizes)
            expected, finite = self._expected(uses, self._given(level), sizes)
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
        given, forbidden = self._given(own), self._given(self._read(other, lengths)[0])
        more = forbidden.isneginf() & ~given.isneginf() & self._given_parts(own, sizes)
        if has_numbers(more) and not bool(more.any()):
            return more.flatten(1).any(1)
        structure, level = self._with_given(torch.where(given.isneginf(), given, 0.0), own)
        return (more & (structure._expected_uses(level, sizes) > 0)).flatten(1).any(1)

    # ---------------------------------------------------------------- scores of very different size

    def _given(self, scores: Tensor) -> Tensor:
        """Return the values ``(B, ...)`` whose sums are the scores of structures.

        The scores come first.
        """
        return scores

    def _given_parts(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return a bool mask of the values of :meth:`_given` that count."""
        return self.part_mask(scores, lengths.to(scores.device)).expand_as(scores)

    def _given_levelled(self, given: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return :meth:`_levelled` of all values of :meth:`_given`."""
        return self._levelled(given, lengths)

    def _with_given(self: Self, given: Tensor, scores: Tensor) -> tuple[Self, Tensor]:
        """Return the structure and scores for which :meth:`_given` is ``given``.

        The scores have the shape of ``scores``.
        """
        return self, given

    def _has_extreme_scores(self, scores: Tensor) -> bool:
        # Not checked on a GPU, since this would wait for it.
        return not scores.is_cuda and has_extreme_scores(scores)

    def _expected_uses(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the expected number of uses of each value of :meth:`_given`."""
        return self._marginals(scores, lengths)

    def _uses(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return how often structures use each value of :meth:`_given`."""
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

    def _levelled(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores less an offset that all structures of an item share.

        Such an offset would absorb the differences between structures. The result is for sums that
        depend on these differences alone. The gradient is not changed. The default uses
        ``exclusive_axes``.
        """
        if not self.exclusive_axes:
            return scores
        parts = self.part_mask(scores, lengths.to(scores.device))
        return less_highest(scores, parts, self.exclusive_axes)

    def _expected(self, mean: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean·s of each item, with 0·(−inf) = 0, and whether it is finite.

        A value that is not finite is returned as 0, without a gradient. The gradient of the product
        would be NaN.
        """
        axes = tuple(range(1, scores.dim()))
        counted = mean.detach() != 0
        finite = ~(counted & scores.isneginf()).any(axes)
        counted &= finite.view(-1, *[1] * len(axes))
        return (mean * torch.where(counted, scores, 0.0)).sum(axes), finite

    def log_count(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the log of the number of structures whose every part is above −inf, ``(B,)``."""
        masked, lengths = self.masked(scores.detach(), lengths)
        zeros = torch.where(torch.isneginf(masked), masked, torch.zeros_like(masked))
        return self.log_partition(zeros.to(scores.dtype), lengths)

    def log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the log-probability of structures.

        Membership of ``z`` in the set is not checked: see :meth:`contains`.

        Args:
            z: ``(K, B, *parts)`` or ``(B, *parts)``, 0/1.
            scores: ``(B, *parts)``.
            lengths: ``(B,)`` int64, or one column for each axis of the item.

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

        The result also has a conditional redraw.

        The noisy scores and those drawn again given the sample are differentiable in ``scores``.
        """
        prepared, lengths = self._read(scores, lengths)
        return self._reparameterize(prepared, lengths)

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        raise NotTractable(
            self.name, "reparameterize", "ScoreFunction, whose samples need no such noise"
        )

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

    def _sample_trace(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Traces:
        raise NotTractable(
            self.name, "sample_trace", "ScoreFunction, which needs sample and log_prob"
        )

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

    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        raise NotTractable(
            self.name, "reparameterize_trace", "TraceScoreFunction, which needs sample_trace alone"
        )

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
            raise NotTractable(self.name, "contains", "a method contains() of the set's own")
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
                rows = _without(rows, error.items)
                continue
            found[rows] = (best == own).flatten(1).all(1)
            break
        return found

    def decode(self, z: np.ndarray, length: Any) -> np.ndarray:
        """Return the annotation of one 0/1 structure ``(*parts)``: here, the chosen parts."""
        return np.argwhere(z[tuple(slice(0, int(n)) for n in np.atleast_1d(length))] > 0.5)

    def encode(self, gold: np.ndarray, length: Any) -> np.ndarray:
        """Return the 0/1 array of one annotation: the inverse of :meth:`decode`."""
        z = np.zeros(
            [int(n) for n in np.atleast_1d(length)] * (1 if np.ndim(length) else self.part_axes)
        )
        z[tuple(np.asarray(gold, dtype="int64").reshape(-1, self.part_axes).T)] = 1.0
        return z

    # ---------------------------------------------------------------- shared steps

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and lengths after a check of dtypes and shapes.

        Half precision becomes float32, and lengths become int64.

        Values are not checked. A subclass adds its own requirements on shapes and lengths.
        """
        self.check_tensors(scores, lengths)
        if not scores.is_floating_point():
            raise InvalidScores(
                f"{self.name}: scores have dtype {scores.dtype}; expected a floating-point tensor. "
                "Convert them with scores.float()."
            )
        if scores.dim() != 1 + self.part_axes or lengths.shape[:1] != scores.shape[:1]:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)} and lengths "
                f"{tuple(lengths.shape)}; expected (B, parts) with {self.part_axes} axes of parts, "
                "and one length (or one per axis) for each of the B items."
            )
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            mask = " Those of a mask are mask.sum(1)." if lengths.dtype == torch.bool else ""
            raise InvalidScores(
                f"{self.name}: lengths have dtype {lengths.dtype}; expected int64.{mask}"
            )
        # Converted first, since torch has no operations for unsigned types of NumPy.
        lengths = lengths.to(torch.int64)
        if type(self).part_mask is Structure.part_mask:
            lengths = self.check_lengths(lengths, *scores.shape[1:])
        # Half precision or less.
        if scores.element_size() < 4:
            scores = scores.float()
        return scores, lengths

    def check_tensors(self, scores: object, lengths: object) -> None:
        """Refuse arguments that are no tensors, and torch.jit.trace."""
        if not (isinstance(scores, Tensor) and isinstance(lengths, Tensor)):
            raise InvalidScores(
                f"{self.name}: scores are {type(scores).__name__} and lengths "
                f"{type(lengths).__name__}; expected tensors. Convert them with torch.as_tensor()."
            )
        refuse_jit_trace(self.name)

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

    def masked(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the checked scores and lengths, with −inf at entries that are no part.

        NaN and +inf at parts are refused with the numbers of the items.
        """
        scores, lengths = self.check(scores, lengths)
        return self._mask(scores, self.part_mask(scores, lengths.to(scores.device))), lengths

    def _mask(self, scores: Tensor, parts: Tensor) -> Tensor:
        """Return the scores in the mask ``parts``, −inf elsewhere; refuse NaN and +inf."""
        masked = torch.where(parts, scores, -torch.inf)
        bad = torch.isnan(masked) | torch.isposinf(masked)
        return refuse(masked, bad, NOT_FINITE, self.name)

    def _read(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores and lengths that the methods beginning with an underscore get."""
        if self.masks_itself:
            return self.check(scores, lengths)
        return self.masked(scores, lengths)

    def at_hand(self: Self, scores: Tensor, lengths: Tensor) -> tuple[Self, Tensor, Tensor]:
        """Return the structure, scores and lengths on the CPU, for step-by-step solvers.

        Scores are copied to the CPU once, with their gradient, and the result is copied back once.
        Nothing changes if they are on the CPU already, or if decisions are scored while they are
        taken, by modules that stay on the GPU.
        """
        self.check_tensors(scores, lengths)
        if scores.device.type == "cpu" or not self.linear:
            return self, scores, lengths
        own = copy.copy(self)
        for name, value in vars(self).items():
            vars(own)[name] = _on_cpu(value)
        return own, bring(scores), fetch(lengths)

    def check_lengths(self, lengths: Tensor, *sizes: int) -> Tensor:
        """Refuse lengths that are below 0, or above the size of their axis.

        Args:
            sizes: of the axes: one for lengths ``(B,)``, or one for each axis for ``(B,
                axes)``. One length of an item then stands for all axes.

        Returns:
            The lengths to use afterwards. When torch traces the code, only operations on these are
            ordered after the check.
        """
        if lengths.dim() != 1 and (len(sizes) == 1 or lengths.shape[1:] != (len(sizes),)):
            more = f", or (B, {len(sizes)}) with one for each axis" if len(sizes) > 1 else ""
            raise InvalidScores(
                f"{self.name}: lengths have shape {tuple(lengths.shape)}; expected (B,){more}."
            )
        return within_room(lengths, sizes, self.name)

    def _total(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return z·s of each item, with 0·(−inf) = 0; ``z`` as in :meth:`log_prob`."""
        axes = tuple(range(-self.part_axes, 0))
        taken = torch.where(z != 0, scores, scores.new_zeros(()))
        return (z * taken).sum(axes)

    def raise_infeasible(self, items: list[int]) -> None:
        raise InfeasibleError(self.name, items)


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


def less_highest(scores: Tensor, parts: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return scores ``(B, *parts)`` less the highest of the ``parts`` along these axes.

    Axis 0 is the first of the parts. The subtracted value has no gradient. Scores stay unchanged if
    none of them is finite.
    """
    if not scores.numel():
        return scores
    known = torch.where(parts, scores.detach(), -torch.inf)
    top = known.amax([1 + axis for axis in axes], keepdim=True)
    return scores - torch.where(top.isfinite(), top, 0.0)


def _on_cpu(value: Any) -> Any:
    """Return a value with its tensors on the CPU, for values that scorers bind."""
    if isinstance(value, Tensor):
        return bring(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_on_cpu, value))
    return value


def _without(rows: Tensor, places: list[int]) -> Tensor:
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
