"""The contract of a structure: a finite set of 0/1 arrays over parts, and inference on it.

Scores are a float tensor ``(B, *parts)``, batched and padded; ``lengths`` is an integer tensor,
``(B,)`` or ``(B, axes)``, of the true sizes. Padding is never read and gets no gradient. A score of
``-inf`` forbids a part. A subclass has to give only :meth:`Structure._map`; everything that follows
from a MAP oracle alone then works.
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
from spacy_latent.kernels.derivatives import refuse_tangents
from spacy_latent.kernels.tracing import (
    NOT_FINITE,
    has_numbers,
    not_traced,
    refuse,
    refuse_jit_trace,
    within_room,
)
from spacy_latent.kernels.transfers import bring, fetch, send_together
from spacy_latent.stages import Staged
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.derivatives import recordable, recording
from spacy_latent.structures.far_scores import NearScores, looks_far, near_scores
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
    """A set of structures over parts. Subclasses are stateless and may be pickled. ``stages`` are
    the sets that training begins with, see :mod:`spacy_latent.structures.released`.

    part_axes: number of trailing axes of ``scores`` that index parts.
    parts: what the parts are, so that a config with a scorer or composer of other parts is refused:
        "arcs" (n+1, n+1) [head, modifier], "items" (n,), "cells" (n, m), "transitions" (n, k, k)
        [position, previous tag, tag], "tags" (n, k), "spans" (n, n) [first, last], or a name of
        one's own. Empty: not checked.
    tractable: names of the operations that have an exact polynomial algorithm, beyond those that
        follow from ``map``. Estimators ask it when a config is loaded, by :meth:`lacks`.
    has_map: whether ``map``, and what follows from it, has one; False for factor graphs, which
        have only ``sparsemap``.
    exclusive_axes: axes of the parts (0 the first) along which every structure has exactly one part
        for each index of the other axes, where there is any part at all: ``(0,)`` for trees, whose
        modifiers have one head each. Empty where there are no such axes.
    incomparable: whether no structure of an item holds all parts of another one and more, as where
        all have equally many. The k best are then found without a search among those that do.
    linear: whether p(z) ∝ exp(z·s) and :meth:`map` maximises z·s; False where scores are those of
        decisions that lead to z.
    acyclic: whether no part leads round in a circle; False for graphs that need not be trees.
    masks_itself: whether the methods that begin with an underscore mask what is no part, and check
        the values, themselves. They then get scores as :meth:`check` leaves them, else as
        :meth:`masked` does.
    keeps_digits: whether sums are right however far some scores are from others, without
        :meth:`_near`.
    annotation: how to read what :meth:`decode` gives: "heads" for one head per token, "tags" for
        one tag per position, or "parts".
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
        """That of its annotations, see :class:`spacy_latent.annotations.SpanStructure`."""
        return self.parts if self.annotation == "parts" and self.parts else self.annotation

    def lacks(self, operations: frozenset[str]) -> list[str]:
        """Those of ``operations``, which may name "map", that are not tractable, sorted."""
        return sorted(operations - self.tractable - ({"map"} if self.has_map else set()))

    def __repr__(self) -> str:
        settings = sorted(self._settings().items())
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in settings)})"

    def _settings(self) -> dict[str, Any]:
        # Without what follows from the settings.
        derived = ("stages", "tractable", "exclusive_axes", "incomparable")
        return {name: value for name, value in vars(self).items() if name not in derived}

    def covers(self, other: Structure) -> bool | None:
        """Whether this set holds every structure of ``other``; None where that is not known. Only
        sets that say so are known to hold more than themselves."""
        same = type(self) is type(other) and self._settings() == other._settings()
        return True if same else None

    # ---------------------------------------------------------------- to be given by a subclass

    @abstractmethod
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """The best structure of each item, 0/1 in the dtype of ``scores``. Ties may be broken
        freely but always the same way. For ``scores`` see ``masks_itself``."""

    def _best_parts(self, scores: Tensor, lengths: Tensor) -> list[np.ndarray]:
        """Where the parts of the best structure of each item stand in its scores, int32 each, from
        the first on: what SparseMAP asks for again and again. Does not write to the scores."""
        # Those given are still needed.
        best = self._map(scores.clone(), lengths)
        self._check_best(best, scores)
        rows = best.flatten(1).cpu().numpy()
        return [np.flatnonzero(row).astype(np.int32) for row in rows]

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Which entries of ``scores`` are parts, as a bool tensor that broadcasts to its shape.

        The default: entry i of an axis is a part when i is smaller than the item's length.
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
        """The default differentiates :meth:`_log_partition`, keeping the graph."""
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
        """Raise LatentError for a value without a gradient, unless there is no part that it could
        be of."""
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
        """The highest-scoring structure of each item. Totals are in float64: beside a score of 1e30
        it cannot tell apart what differs by 1, and gives one of those.

        RETURNS: ``(B, *parts)``, 0/1, in the dtype and on the device of ``scores``; no gradient.
        """
        prepared, lengths = self._read(scores, lengths)
        with torch.no_grad():
            best = self._map(prepared.detach(), lengths)
        self._check_best(best, prepared)
        return best.to(scores.dtype)

    def _check_best(self, best: object, scores: Tensor) -> None:
        """Refuse what a :meth:`_map` of one's own gives in another shape."""
        if not isinstance(best, Tensor) or best.shape != scores.shape:
            shape = f" of shape {tuple(best.shape)}" if isinstance(best, Tensor) else ""
            raise LatentError(
                f"{self.name}: _map gives {type(best).__name__}{shape}; expected a tensor of the "
                f"shape of the scores, {tuple(scores.shape)}."
            )

    def log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """log Σ_z exp(z·s) of each item, ``(B,)``. Its gradient is :meth:`marginals`."""
        prepared, lengths = self._read(scores, lengths)
        near = None if self.keeps_digits else self._near(prepared, lengths)
        if near is None:
            return self._watched_log_partition(prepared, lengths).to(scores.dtype)
        total = near.structure._watched_log_partition(near.scores, lengths)
        return (total + near.common(lengths)).to(scores.dtype)

    def _watched_log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """:meth:`_log_partition`, of which a NaN gradient is refused."""
        if type(self)._marginals is Structure._marginals:
            self._watch_gradient(scores, lengths)
        return self._log_partition(scores, lengths)

    def _watch_gradient(self, scores: Tensor, lengths: Tensor) -> None:
        """Let a backward through :meth:`_log_partition` fail where its gradient is NaN. The scores
        are its own: nothing is left behind at those of a caller."""
        if not has_numbers(scores) or scores.grad_fn is None:
            return
        known, sizes = scores.detach(), lengths.to(scores.device)

        def look(gradient: Tensor | None) -> None:
            if gradient is None:
                return
            wrong = gradient.isnan()
            if bool(wrong.any()) and bool((wrong & self.part_mask(known, sizes)).any()):
                # If it is not that of what comes after, it raises the error.
                self._marginals(known, lengths)

        scores.register_hook(look)

    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """E[z] under p(z) ∝ exp(z·s), ``(B, *parts)``; differentiable."""
        prepared, lengths = self._read(scores, lengths)
        own, near = self._to_sum_over(prepared, lengths)
        return own._marginals(near, lengths).to(scores.dtype)

    def entropy(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Entropy of p(z) ∝ exp(z·s) in nats, ``(B,)``; differentiable. Computed in float64, as are
        the next three: they are small differences of large numbers."""
        exact = _in_float64(scores)
        return self._cross_entropy(exact, exact, lengths).clamp_min(0.0).to(scores.dtype)

    def cross_entropy(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        """−Σ_z p(z) log q(z) in nats, ``(B,)``, p from ``scores`` and q from ``other``. Where it is
        infinite, because q forbids what p does not, it has no gradient."""
        self._check_pair(scores, other)
        exact = self._cross_entropy(_in_float64(scores), _in_float64(other), lengths)
        return exact.to(other.dtype)

    def kl(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        """KL(p‖q) in nats, ``(B,)``, p from ``scores`` and q from ``other``; without gradient where
        it is infinite."""
        self._check_pair(scores, other)
        p, q = _in_float64(scores), _in_float64(other)
        crossed = self._cross_entropy(p, q, lengths)
        difference = crossed - self._cross_entropy(p, p, lengths)
        # What rounding leaves below 0 has a gradient all the same.
        difference = difference + (-difference).detach().clamp_min(0.0)
        return torch.where(crossed.isposinf(), torch.inf, difference).to(other.dtype)

    def _cross_entropy(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        prepared, sizes = self._read(scores, lengths)
        own, given = self._to_sum_over(prepared, sizes)
        uses = own._expected_uses(given, sizes)
        if other is not scores:
            prepared, sizes = self._read(other, lengths)
        near = self._near(prepared, sizes)
        if near is None:
            level, _ = self._read(self._levelled(other, sizes), sizes)
            expected, finite = self._expected(uses, self._given(level), sizes)
            found = self._log_partition(level, sizes) - expected
        else:
            expected, finite = self._expected(uses, near.given, sizes)
            total = near.structure._log_partition(near.scores, sizes)
            found = near.known(total - expected) - near.apart(uses, sizes)
        if other is not scores:
            finite = finite & ~self._forbids_more(scores, other, lengths)
        return torch.where(finite, found, torch.inf)

    @torch.no_grad()
    def _forbids_more(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        """Whether ``other`` forbids a structure that ``scores`` do not, ``(B,)`` bool, however
        small its probability: a marginal may be below the smallest number that there is."""
        own, sizes = self._read(scores, lengths)
        given, forbidden = self._given(own), self._given(self._read(other, lengths)[0])
        more = forbidden.isneginf() & ~given.isneginf() & self._given_parts(own, sizes)
        if not bool(more.any()):
            return more.flatten(1).any(1)
        structure, level = self._with_given(torch.where(given.isneginf(), given, 0.0), own)
        return (more & (structure._expected_uses(level, sizes) > 0)).flatten(1).any(1)

    # ---------------------------------------------------------------- scores that are far

    def _given(self, scores: Tensor) -> Tensor:
        """All that totals are sums of, ``(B, ...)``, the scores first."""
        return scores

    def _given_parts(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Which of what :meth:`_given` gives count, bool."""
        return self.part_mask(scores, lengths.to(scores.device)).expand_as(scores)

    def _given_levelled(self, given: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """:meth:`_levelled` of all that totals are sums of."""
        return self._levelled(given, lengths)

    def _with_given(self: Self, given: Tensor, scores: Tensor) -> tuple[Self, Tensor]:
        """The structure, and scores in the shape of these, of which :meth:`_given` makes this."""
        return self, given

    def _looks_far(self, scores: Tensor) -> bool:
        # Not asked on a GPU, which would have to be waited for.
        return not scores.is_cuda and looks_far(scores)

    def _expected_uses(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """How often each of what :meth:`_given` gives is expected to be used."""
        return self._marginals(scores, lengths)

    def _uses(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """How often structures use each of what :meth:`_given` gives."""
        return z

    def _near(self, scores: Tensor, lengths: Tensor) -> NearScores[Structure] | None:
        """Scores of the same distribution whose sums keep their digits; None where these do. Where
        there are none, and what is likely cannot be told, it raises InvalidScores."""
        if not (self.linear and scores.numel() and self._looks_far(scores)):
            return None
        return near_scores(self, scores, lengths)

    def _to_sum_over(self, scores: Tensor, lengths: Tensor) -> tuple[Structure, Tensor]:
        """The structure and the scores of the same distribution to take sums of: these, unless what
        :meth:`_near` gives keeps digits that these lose."""
        near = None if self.keeps_digits else self._near(scores, lengths)
        return (self, scores) if near is None else (near.structure, near.scores)

    def _levelled(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """The scores less what all structures of an item have in common: differences of their
        totals would be lost beside it. For sums where nothing else but these counts; the gradient
        is not changed. The default does what ``exclusive_axes`` allow."""
        if not self.exclusive_axes:
            return scores
        parts = self.part_mask(scores, lengths.to(scores.device))
        return less_highest(scores, parts, self.exclusive_axes)

    def _expected(self, mean: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """mean·s of each item, and whether it is finite, where 0·(−inf) counts as 0. What is not
        finite comes as 0, and its gradient is none: that of the product would be NaN."""
        axes = tuple(range(1, scores.dim()))
        counted = mean.detach() != 0
        finite = ~(counted & scores.isneginf()).any(axes)
        counted &= finite.view(-1, *[1] * len(axes))
        return (mean * torch.where(counted, scores, 0.0)).sum(axes), finite

    def log_count(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """log of the number of structures whose every part is above −inf, ``(B,)``."""
        masked, lengths = self.masked(scores.detach(), lengths)
        zeros = torch.where(torch.isneginf(masked), masked, torch.zeros_like(masked))
        return self.log_partition(zeros.to(scores.dtype), lengths)

    def log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """log p(z), ``(K, B)`` for ``z`` of ``(K, B, *parts)`` and ``(B,)`` for ``(B, *parts)``.
        Whether these are structures of the set is not checked: see :meth:`contains`."""
        exact = _in_float64(scores)
        prepared, sizes = self._read(exact, lengths)
        near = self._near(prepared, sizes)
        self._check_structures(z, scores)
        z = z.to(exact.dtype)
        if near is None:
            found = self._total(z, exact, sizes) - self._watched_log_partition(prepared, sizes)
            return found.to(scores.dtype)
        total = near.structure._total(z, near.scores, sizes)
        total = near.known(total - near.structure._watched_log_partition(near.scores, sizes))
        return (total + near.apart(self._uses(z, scores, sizes), sizes)).to(scores.dtype)

    def log_potential(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """log p(z) but for a constant of the item, z·s; shapes, and what is not checked, as for
        :meth:`log_prob`."""
        self._check_structures(z, scores)
        total = self._total(z, scores, lengths)
        if total.is_cuda:
            # Not asked there, which would have to be waited for.
            return total
        wrong = ~(total.detach() < torch.inf)
        return refuse(total, wrong.view(-1, scores.shape[0]).any(0), NOT_FINITE, self.name)

    def sample(
        self,
        scores: Tensor,
        lengths: Tensor,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Exact independent samples from p(z) ∝ exp(z·s), ``(num_samples, B, *parts)``, 0/1.

        generator: the source of randomness, torch's default on the CPU if None.
        """
        self._check_draws("sample", num_samples, generator)
        prepared, lengths = self._read(scores, lengths)
        with torch.no_grad():
            own, near = self._to_sum_over(prepared.detach(), lengths)
            drawn = own._sample(near, lengths, num_samples, generator)
        return drawn.to(scores.dtype)

    def reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        """One exact sample of each item as the ``map`` of noisy scores, and those drawn again from
        what they are known to be; the last two differentiable in ``scores``."""
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
        """Structures that an algorithm builds by independent choices from softmaxes of the scores,
        one after another, and the log-probability of these choices (Struminsky et al. 2021). Their
        distribution is one of its own, not p(z) ∝ exp(z·s).

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
        """One structure of each item as in :meth:`sample_trace`, with the noisy scores that the
        choices follow from, and those drawn again from what the choices say of them; these two are
        differentiable in ``scores``, twice. The best structure of the noisy scores may be another:
        what they lead to is told by the algorithm."""
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
        """The k best structures by score, exact, from the MAP oracle (Lawler 1972); of those that
        float64 cannot tell apart in any order, as for :meth:`map`."""
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
        """SparseMAP (Niculae et al. 2018a) by the active-set method; differentiable.

        The gradient of the mean is on the face that it lies in, which structures without a weight
        span, too, where they tie; at a kink it is one of those beside it. That of the weights is of
        the support alone, see :class:`~spacy_latent.structures.results.SparseSolution`.

        max_iter: bound on the number of calls of the MAP oracle per item.
        tolerance: bound on the distance of the mean from the optimum. The search goes on as long
            as it finds structures that count, whose weights may be too small to change the mean.
        """
        own, given, sizes = self.at_hand(scores, lengths)
        prepared, sizes = own._read(given, sizes)
        solution = solve_with_oracle(own, prepared, sizes, max_iter, tolerance)
        return solution.cast(scores.dtype).sent(scores.device)

    @not_traced
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        """Which of ``z`` ``(B, *parts)`` are structures of this set, ``(B,)`` bool: 0/1, and 0
        where there is no part, padding included.

        The default asks the MAP oracle: a structure is the best one where its own parts score 1 and
        all others −1. A set whose scores are of decisions, or that has no exact ``map``, overrides
        it; so may one with a cheaper test.
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
                # Of these items the set is empty.
                rows = _without(rows, error.items)
                continue
            found[rows] = (best == own).flatten(1).all(1)
            break
        return found

    def decode(self, z: np.ndarray, length: Any) -> np.ndarray:
        """What an annotation stores of one 0/1 structure ``(*parts)``: here, the chosen parts."""
        return np.argwhere(z[tuple(slice(0, int(n)) for n in np.atleast_1d(length))] > 0.5)

    def encode(self, gold: np.ndarray, length: Any) -> np.ndarray:
        """The 0/1 array of one annotation: the inverse of :meth:`decode`."""
        z = np.zeros(
            [int(n) for n in np.atleast_1d(length)] * (1 if np.ndim(length) else self.part_axes)
        )
        z[tuple(np.asarray(gold, dtype="int64").reshape(-1, self.part_axes).T)] = 1.0
        return z

    # ---------------------------------------------------------------- shared steps

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse a wrong dtype, shape or length; bring half precision to float32 and lengths to
        int64. Values are not looked at. A subclass adds what it asks of shapes and lengths."""
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
        # Before anything is done with them: torch can do nothing with unsigned ones of NumPy.
        lengths = lengths.to(torch.int64)
        if type(self).part_mask is Structure.part_mask:
            lengths = self.check_room(lengths, *scores.shape[1:])
        # Half precision and less.
        if scores.element_size() < 4:
            scores = scores.float()
        return scores, lengths

    def check_tensors(self, scores: object, lengths: object) -> None:
        """Refuse what is no tensor, and torch.jit.trace."""
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
        """As :meth:`check`, and with −inf at what is no part. NaN and +inf elsewhere are refused
        with the items."""
        scores, lengths = self.check(scores, lengths)
        return self._mask(scores, self.part_mask(scores, lengths.to(scores.device))), lengths

    def _mask(self, scores: Tensor, parts: Tensor) -> Tensor:
        """The scores where ``parts`` is true, else −inf; NaN and +inf are refused."""
        masked = torch.where(parts, scores, -torch.inf)
        bad = torch.isnan(masked) | torch.isposinf(masked)
        return refuse(masked, bad, NOT_FINITE, self.name)

    def _read(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """What the methods that begin with an underscore get."""
        if self.masks_itself:
            return self.check(scores, lengths)
        return self.masked(scores, lengths)

    def at_hand(self: Self, scores: Tensor, lengths: Tensor) -> tuple[Self, Tensor, Tensor]:
        """The same on the CPU, for what is solved there step by step: scores come down once, with
        their gradient, and the result goes up once. As they are where they are there, and where
        decisions are scored while they are taken, by modules that stay on the GPU."""
        self.check_tensors(scores, lengths)
        if scores.device.type == "cpu" or not self.linear:
            return self, scores, lengths
        own = copy.copy(self)
        for name, value in vars(self).items():
            vars(own)[name] = _on_cpu(value)
        return own, bring(scores), fetch(lengths)

    def check_room(self, lengths: Tensor, *room: int) -> Tensor:
        """Refuse lengths that are below 0, or above the room there is along their axis.

        room: for lengths ``(B,)`` one number, or for ``(B, axes)`` one for each axis; one length of
            an item then stands for all axes.
        RETURNS: the lengths to go on with: where torch traces what is done, only what uses these
            is done after the check.
        """
        if lengths.dim() != 1 and (len(room) == 1 or lengths.shape[1:] != (len(room),)):
            more = f", or (B, {len(room)}) with one for each axis" if len(room) > 1 else ""
            raise InvalidScores(
                f"{self.name}: lengths have shape {tuple(lengths.shape)}; expected (B,){more}."
            )
        return within_room(lengths, room, self.name)

    def _total(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """z·s of each item, where 0·(−inf) counts as 0; ``z`` as in :meth:`log_prob`."""
        axes = tuple(range(-self.part_axes, 0))
        taken = torch.where(z != 0, scores, scores.new_zeros(()))
        return (z * taken).sum(axes)

    def raise_infeasible(self, items: list[int]) -> None:
        raise InfeasibleError(self.name, items)


def chosen_parts(structure: Structure, z: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For tests of membership: the parts of ``z`` ``(B, *parts)``, bool, and which items ``(B,)``
    are 0/1 and have none where there is no part; and the lengths, int64, beside them."""
    check_given(structure, z, lengths)
    chosen = z.detach() == 1
    sizes = lengths.to(z.device, torch.int64)
    inside = structure.part_mask(z, sizes)
    return chosen, torch.where(inside, chosen | (z == 0), z == 0).flatten(1).all(1), sizes


def check_given(structure: Structure, z: Tensor, lengths: Tensor) -> None:
    """For tests of membership: refuse ``z`` that has not the axes of ``(B, *parts)``."""
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
    """Scores ``(B, *parts)`` less the highest of the ``parts`` along these axes (0 the first of the
    parts), without a gradient of its own; as they are where none is finite."""
    if not scores.numel():
        return scores
    known = torch.where(parts, scores.detach(), -torch.inf)
    top = known.amax([1 + axis for axis in axes], keepdim=True)
    return scores - torch.where(top.isfinite(), top, 0.0)


def _on_cpu(value: Any) -> Any:
    """With tensors that are on the CPU: what a scorer has bound to a structure, and the like."""
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
    """Others than floating-point ones are left to :meth:`Structure.check`, which refuses."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        return scores
    return scores.double()
