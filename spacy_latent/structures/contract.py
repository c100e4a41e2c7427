"""Contract of a structure: methods that its author writes, with their defaults and checks.

:class:`spacy_latent.structures.base.Structure` adds the operations that follow. Authors subclass
that class. They have to define only :meth:`StructureContract._map`; every other method here has a
default, or says that the set has no such operation.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentError, NotTractable
from spacy_latent.kernels.autograd.derivatives import refuse_tangents
from spacy_latent.kernels.autograd.tracing import NOT_FINITE, refuse, refuse_jit_trace, within_sizes
from spacy_latent.kernels.core.gpu_transfers import bring, fetch
from spacy_latent.stages import Staged
from spacy_latent.structures.derivatives import recordable, recording
from spacy_latent.structures.results import Reparameterized, ReparameterizedTrace, Traces

ADVICE_MAP_ONLY = (
    "an operation that needs only a MAP oracle (map, top_k, sparsemap), or an estimator built on "
    "one (StraightThrough with backward='identity', Spigot, SparseMAP, PerturbAndMap)"
)

Self = TypeVar("Self", bound="StructureContract")


class StructureContract(Staged, ABC):
    """Contract of a set of structures over parts.

    Subclasses are stateless and may be pickled. ``stages`` are the sets with which training begins,
    see :mod:`spacy_latent.structures.released`.

    Attributes:
        part_axes: number of trailing axes of ``scores`` that index parts.
        parts: kind of the parts; a config with a scorer or composer of another kind is refused.
            "arcs" are (n+1, n+1) [head, modifier], "items" (n,), "cells" (n, m), "transitions" (n,
            k, k) [position, previous tag, tag], at position 0 row 0 alone, "tags" (n, k), "spans"
            (n, n) [first, last]. Other names may be used for other kinds. Empty: not checked.
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
    # What to use in place of operations that are not tractable, for errors.
    advice: ClassVar[str] = ADVICE_MAP_ONLY

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
        derived = ("stages", "tractable", "exclusive_axes", "incomparable", "smoothed_family")
        return {name: value for name, value in vars(self).items() if name not in derived}

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

    def _check_best(self, best: object, scores: Tensor) -> None:
        """Refuse the result of a subclass's :meth:`_map` if it has another shape."""
        if not isinstance(best, Tensor) or best.shape != scores.shape:
            shape = f" of shape {tuple(best.shape)}" if isinstance(best, Tensor) else ""
            raise LatentError(
                f"{self.name}: _map gives {type(best).__name__}{shape}; expected a tensor of the "
                f"shape of the scores, {tuple(scores.shape)}."
            )

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
            # Not in place, for vmap over lengths alone.
            mask = mask & (index < limit)
        return mask

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        raise NotTractable(self.name, "log_partition", self.advice)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the derivative of :meth:`_log_partition`, differentiable."""
        if type(self)._log_partition is StructureContract._log_partition:
            raise NotTractable(self.name, "marginals", self.advice)
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
            "batch. torch.logaddexp of two -inf and the logarithm of 0 have such gradients, even "
            "if torch.where leaves them out of the result: put other numbers in their place. "
            "(An item of length 0 has the empty structure, whose score is 0.) "
            "spacy_latent.testing.check_structure finds a short item with such a gradient."
        )

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        raise NotTractable(self.name, "sample", "PerturbAndMap, which samples with noise and map")

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        raise NotTractable(
            self.name, "reparameterize", "ScoreFunction, whose samples need no such noise"
        )

    def _sample_trace(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Traces:
        raise NotTractable(
            self.name, "sample_trace", "ScoreFunction, which needs sample and log_prob"
        )

    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        raise NotTractable(
            self.name, "reparameterize_trace", "TraceScoreFunction, which needs sample_trace alone"
        )

    def decode(self, z: np.ndarray, length: Any) -> np.ndarray:
        """Return the annotation of one 0/1 structure ``(*parts)``: here, the chosen parts."""
        return np.argwhere(z[tuple(slice(0, int(n)) for n in np.atleast_1d(length))] > 0.5)

    def encode(self, gold: np.ndarray, length: Any) -> np.ndarray:
        """Return the 0/1 array of one annotation, float32: the inverse of :meth:`decode`.

        With one length, all axes of the parts have this size. A structure with another size, such
        as ``(n, 2)``, overrides this method.

        Membership of the result in the set is not checked: see
        :meth:`~spacy_latent.structures.base.Structure.contains`.
        """
        sizes = [int(n) for n in np.atleast_1d(length)]
        z = np.zeros(sizes * (1 if np.ndim(length) else self.part_axes), dtype="float32")
        z[tuple(np.asarray(gold, dtype="int64").reshape(-1, self.part_axes).T)] = 1.0
        return z

    def encode_for(
        self, gold: np.ndarray, length: int | Sequence[int], parts: Sequence[int]
    ) -> np.ndarray:
        """Return :meth:`encode` of an annotation for scores of a given shape.

        A structure whose annotations do not determine the shape, such as the number of tags,
        overrides this method.

        Args:
            parts: shape of the scores of an item.
        """
        return self.encode(gold, length)

    # ---------------------------------------------------------------- checks

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and lengths after a check of dtypes and shapes.

        Half precision becomes float32, and lengths become int64. Values are not checked.

        A subclass adds its own requirements on shapes and lengths.
        """
        self.check_tensors(scores, lengths)
        if scores.dim() != 1 + self.part_axes or lengths.shape[:1] != scores.shape[:1]:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)} and lengths "
                f"{tuple(lengths.shape)}; expected (B, parts) with {self.part_axes} axes of parts, "
                "and one length (or one per axis) for each of the B items."
            )
        if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
            mask = " For a mask, give mask.sum(1)." if lengths.dtype == torch.bool else ""
            raise InvalidScores(
                f"{self.name}: lengths have dtype {lengths.dtype}; expected int64.{mask}"
            )
        # Converted first, since torch has no operations for unsigned types of NumPy.
        lengths = lengths.to(torch.int64)
        if type(self).part_mask is StructureContract.part_mask:
            lengths = self.check_lengths(lengths, *scores.shape[1:])
        # Half precision or less.
        if scores.element_size() < 4:
            scores = scores.float()
        return scores, lengths

    def check_tensors(self, scores: object, lengths: object) -> None:
        """Refuse arguments that are no tensors, scores of integers, and torch.jit.trace."""
        if not (isinstance(scores, Tensor) and isinstance(lengths, Tensor)):
            raise InvalidScores(
                f"{self.name}: scores are {type(scores).__name__} and lengths "
                f"{type(lengths).__name__}; expected tensors. Convert them with torch.as_tensor()."
            )
        if not scores.is_floating_point():
            raise InvalidScores(
                f"{self.name}: scores have dtype {scores.dtype}; expected a floating-point tensor. "
                "Convert them with scores.float()."
            )
        if scores.layout != torch.strided or lengths.layout != torch.strided:
            raise InvalidScores(
                f"{self.name}: scores have the layout {scores.layout} and lengths "
                f"{lengths.layout}; expected torch.strided. Convert them with to_dense()."
            )
        refuse_jit_trace(self.name)

    def check_lengths(self, lengths: Tensor, *sizes: int, advice: str = "") -> Tensor:
        """Refuse lengths that are below 0, or above the size of their axis.

        Args:
            sizes: of the axes: one for lengths ``(B,)``, or one for each axis for ``(B,
                axes)``. One length of an item then stands for all axes.
            advice: a sentence for the error if a length is too large.

        Returns:
            The lengths to use afterwards. When torch traces the code, only operations on these are
            ordered after the check.
        """
        if lengths.dim() != 1 and (len(sizes) == 1 or lengths.shape[1:] != (len(sizes),)):
            more = f", or (B, {len(sizes)}) with one for each axis" if len(sizes) > 1 else ""
            raise InvalidScores(
                f"{self.name}: lengths have shape {tuple(lengths.shape)}; expected (B,){more}."
            )
        return within_sizes(lengths, sizes, self.name, advice)

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

    def raise_infeasible(self, items: list[int]) -> None:
        """Raise the error for items of a batch without a structure."""
        raise InfeasibleError(self.name, items)


def _on_cpu(value: Any) -> Any:
    """Return a value with its tensors on the CPU, for values that scorers bind."""
    if isinstance(value, Tensor):
        return bring(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_on_cpu, value))
    return value
