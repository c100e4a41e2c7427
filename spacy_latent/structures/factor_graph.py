"""Sets whose members satisfy several structures and constraints at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import (
    IncompatiblePair,
    InfeasibleError,
    LatentError,
    NotTractable,
    check_whole,
    number_of,
)
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import SparseSolution, Structure, check_given, without
from spacy_latent.structures.constraints import Constraint
from spacy_latent.structures.copies import repeat
from spacy_latent.structures.encoded_graph import StructureFactor as StructureFactor
from spacy_latent.structures.logic_factors import Encoded, LogicFactor
from spacy_latent.structures.loopy_marginals import Beliefs, propagate
from spacy_latent.structures.lp_sparsemap import OR_LOOSEN, subtract_common_masks
from spacy_latent.structures.lp_sparsemap import GraphSolution as GraphSolution
from spacy_latent.structures.lp_sparsemap import ItemGraph as ItemGraph
from spacy_latent.structures.lp_sparsemap import solve_graphs as solve_graphs
from spacy_latent.structures.results import TopK

# ADMM takes more and cheaper steps than an active set does.
ITERATIONS_PER_CALL = 10
# Numbers of best members of the first structure among which a member of the whole set is searched.
TRIED = (1, 16, 128, 1024)
Size = int | tuple[int, ...]


class FactorGraph(Structure):
    """Members that several structures of the same parts have in common, under constraints.

    ``sparsemap`` is LP-SparseMAP (Niculae and Martins 2020), over the intersection of the hulls of
    all of these. Its mean need not be an average of members, so it has no atoms. To find the best
    member is NP-hard in general. ``map``, meant for annotation, takes the first member of the set
    among the 1,024 best of the first structure. This is exact. If no member is among them, an error
    is raised. Estimators that need ``map`` are refused. Sums are not tractable. With
    ``loopy_iterations`` there are ``marginals``, which are approximate.

    Args:
        structures: each with a ``map``. Annotations come from the first structure.
        constraints: see :mod:`spacy_latent.structures.constraints`.
        loopy_iterations: largest number of rounds of belief propagation for ``marginals``; 0 for no
            marginals. See :mod:`spacy_latent.structures.loopy_marginals`.
    """

    has_map: ClassVar[bool] = False
    advice = "sparsemap (the SparseMAP estimator with its defaults), or one of the structures alone"

    def __init__(
        self,
        structures: Mapping[str, Structure],
        constraints: Mapping[str, Constraint] | None = None,
        loopy_iterations: int = 0,
    ) -> None:
        check_whole(self.name, least=0, loopy_iterations=loopy_iterations)
        if not structures:
            raise LatentError(f"{self.name}: there are no structures; give at least one.")
        for given, kind in ((structures, Structure), (constraints or {}, Constraint)):
            if not isinstance(given, Mapping):
                raise LatentError(
                    f"{self.name}: {kind.__name__.lower()}s are {type(given).__name__}; expected a "
                    "dict, each under a name of its own."
                )
            for name, value in given.items():
                if not isinstance(value, kind):
                    raise LatentError(
                        f"{self.name}: {name!r} is of type {type(value).__name__}; expected a "
                        f"registered {kind.__name__.lower()}."
                    )
        self.structures = dict(structures)
        self.constraints = dict(constraints or {})
        self.first = next(iter(self.structures.values()))
        for constraint in self.constraints.values():
            constraint.check(self.first.part_axes)
        for structure in self.structures.values():
            able = structure.linear and structure.has_map
            if not able or structure.part_axes != self.first.part_axes:
                raise IncompatiblePair(
                    self.name,
                    structure.name,
                    f"its structures need a map and parts with {self.first.part_axes} axes",
                    "structures of the same parts with a best member",
                )
            if structure.stages:
                raise IncompatiblePair(
                    self.name,
                    f"{structure.shown} after {structure.stages[0][1].shown}",
                    "its structures do not change during training",
                    f"{structure.shown} alone",
                )
            if structure.parts != self.first.parts:
                raise IncompatiblePair(
                    f"{self.name} of {self.first.parts}",
                    structure.name,
                    f"it is made of {structure.parts}",
                    f"structures of {self.first.parts}",
                )
        self.part_axes = self.first.part_axes  # type: ignore[misc]
        self.parts = self.first.parts  # type: ignore[misc]
        self.annotation = self.first.annotation  # type: ignore[misc]
        self.acyclic = any(structure.acyclic for structure in self.structures.values())
        exclusive = [s.exclusive_axes for s in self.structures.values() if s.exclusive_axes]
        self.exclusive_axes = exclusive[0] if exclusive else ()  # type: ignore[misc]
        self.loopy_iterations = loopy_iterations
        if loopy_iterations:
            self._check_sums()
            self.tractable = self.tractable | {"marginals"}  # type: ignore[misc]

    def _check_sums(self) -> None:
        for structure in self.structures.values():
            missing = {"marginals", "log_partition"} - structure.tractable
            if missing:
                raise IncompatiblePair(
                    f"{self.name} with loopy_iterations",
                    structure.name,
                    f"belief propagation needs its {' and '.join(sorted(missing))}",
                    "loopy_iterations = 0, and the SparseMAP estimator",
                )

    def _settings(self) -> dict[str, Any]:
        constraints = sorted(self.constraints)
        plain: dict[str, Any] = {"structures": self.structures, "constraints": constraints}
        if self.loopy_iterations:
            plain["loopy_iterations"] = self.loopy_iterations
        return plain

    def covers(self, other: Structure) -> bool | None:
        return True if other is self else None

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        checked, sizes = super().check(scores, lengths)
        for structure in self.structures.values():
            checked, sizes = structure.check(checked, sizes)
        return checked, sizes

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        masks = (own.part_mask(scores, lengths) for own in self.structures.values())
        return reduce(torch.logical_and, masks)

    def numbered(self, size: Size, shape: tuple[int, ...]) -> np.ndarray:
        """Return the parts of an item of this length in scores of this shape.

        They are numbered in C order, with −1 at entries that are no part.
        """
        given = torch.empty(1, *shape, device="cpu"), torch.tensor([size], device="cpu")
        mask = self.part_mask(*given)[0].expand(shape)
        return np.where(mask.numpy(), np.arange(mask.numel()).reshape(shape), -1)

    def graph(self, size: Size, shape: tuple[int, ...]) -> ItemGraph:
        """Return the graph of an item of this length."""
        parts = self.numbered(size, shape)
        factors: list[Any] = [
            StructureFactor(structure, parts, size) for structure in self.structures.values()
        ]
        return ItemGraph(shape, factors + self.logic(parts))

    def logic(self, parts: np.ndarray) -> list[LogicFactor]:
        """Return the logic factors of an item with these parts, see :meth:`numbered`."""
        factors: list[LogicFactor] = []
        for name, constraint in self.constraints.items():
            given = constraint.factors(parts)
            if not isinstance(given, Iterable):
                raise LatentError(
                    f"{self.name}: the factors of {name!r} are {type(given).__name__}; expected a "
                    "list of logic factors, which may be empty."
                )
            own = list(given)
            for factor in own:
                if not isinstance(factor, LogicFactor):
                    raise LatentError(
                        f"{self.name}: the constraint {name!r} gives a {type(factor).__name__}; "
                        "expected logic factors, such as Budget. Give a structure in structures."
                    )
                beyond = [part for part in factor.encode().parts if part >= parts.size]
                if beyond:
                    raise LatentError(
                        f"{self.name}: the constraint {name!r} names part {beyond[0]} of an item "
                        f"with {number_of(parts.size, 'part')}, counted from 0; take numbers from "
                        "the array that it is given."
                    )
            factors += own
        return factors

    def _encoded(self, size: Size, shape: tuple[int, ...]) -> list[Encoded]:
        return [factor.encode() for factor in self.logic(self.numbered(size, shape))]

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Return the solution of LP-SparseMAP.

        It is a :class:`~spacy_latent.structures.lp_sparsemap.GraphSolution`.

        Args:
            max_iter: a tenth of the bound on the iterations of ADMM.
            tolerance: bound on the residual.
        """
        check_options(self.name, max_iter, tolerance)
        own, given, known = self.at_hand(scores, lengths)
        masked, sizes = own._read(given, known)
        shape, keys = tuple(masked.shape[1:]), _keys(sizes)
        graphs = {key: self.graph(key, shape) for key in set(keys)}
        chosen, steps = [graphs[key] for key in keys], max_iter * ITERATIONS_PER_CALL
        near = subtract_common_masks(masked, self.exclusive_axes)
        solution = solve_graphs(chosen, near, steps, tolerance, self.name)
        return solution.cast(scores.dtype).sent(scores.device)

    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        self.check_tensors(scores, lengths)
        own, given, sizes = self.at_hand(scores.detach(), lengths)
        return send(super(FactorGraph, own).map(given, sizes), scores.device)

    @not_traced
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        check_given(self, z, lengths)
        if z.device.type != "cpu":
            own, given, sizes = self.at_hand(z.detach(), lengths)
            return send(own.contains(given, sizes), z.device)
        found = torch.ones(len(z), dtype=torch.bool, device=z.device)
        for structure in self.structures.values():
            found &= structure.contains(z, lengths)
        encoded, keys = cache(partial(self._encoded, shape=tuple(z.shape[1:]))), _keys(lengths)
        for b in found.nonzero().flatten().tolist():
            # NumPy has no bfloat16.
            chosen = (z[b].detach() == 1).numpy().ravel()
            found[b] &= all(factor.holds(chosen) for factor in encoded(keys[b]))
        return found

    @not_traced
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        result = torch.zeros_like(scores)
        left = torch.arange(len(scores), device=scores.device)
        impossible: list[int] = []
        for k in TRIED:
            best, left = self._best_of_first(scores, lengths, left, k, impossible)
            if best is None:
                break
            sizes = lengths[left.to(lengths.device)]
            known = ~best.scores.isneginf()
            count = len(best.z)
            inside = self.contains(best.z.flatten(0, 1), repeat(sizes, count)).view(count, -1)
            inside &= known
            some = inside.any(0)
            place = inside.int().argmax(0)
            result[left[some]] = best.z[place[some], some.nonzero().flatten()]
            # With fewer than k structures in all, and no member among them, there is no member.
            ended = ~some & ~known.all(0)
            impossible += left[ended].tolist()
            left = left[~some & ~ended]
        if impossible:
            self.raise_infeasible(sorted(impossible))
        if len(left):
            raise NotTractable(
                self.name,
                f"map of item(s) {left.tolist()[:10]}",
                f"looser constraints, since none of the {TRIED[-1]:,} best members of "
                f"{self.first.name} satisfies all; or the structure with the fewest members as the "
                "first one; or annotate = 'none' in the component, since only annotations need the "
                "best structure",
            )
        return result

    def _best_of_first(
        self, scores: Tensor, lengths: Tensor, left: Tensor, k: int, impossible: list[int]
    ) -> tuple[TopK | None, Tensor]:
        """Return the k best of the first structure, for all items of ``left`` that have any.

        The result also names these items. The other items are added to ``impossible``.
        """
        while len(left):
            try:
                return self.first.top_k(scores[left], lengths[left.to(lengths.device)], k), left
            except InfeasibleError as error:
                # A user's structure may name one item after the other.
                if not error.items:
                    raise
                impossible += left[error.items].tolist()
                left = without(left, error.items)
        return None, left

    def raise_infeasible(self, items: list[int]) -> None:
        raise InfeasibleError(self.name, items, OR_LOOSEN)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        raise NotTractable(self.name, "sample", self.advice)

    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return approximate marginals by loopy belief propagation, ``(B, *parts)``."""
        return self.beliefs(scores, lengths).marginals

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return self.marginals(scores, lengths)

    @not_traced
    def beliefs(self, scores: Tensor, lengths: Tensor) -> Beliefs:
        """Return marginals and the log-partition by loopy belief propagation; differentiable.

        A residual far above 0 means that the messages have not converged: more rounds may help, or
        smaller scores.

        Raises:
            NotTractable: ``loopy_iterations`` is 0.
            InfeasibleError: the parts that are certain, such as forbidden ones, contradict a
                constraint or a structure. Other contradictions are not found.
        """
        if not self.loopy_iterations:
            raise NotTractable(
                self.name,
                "marginals",
                f"loopy_iterations above 0, for approximate ones, or {self.advice}",
            )
        own, given, known = self.at_hand(scores, lengths)
        masked, sizes = own._read(given, known)
        shape, keys = tuple(masked.shape[1:]), _keys(sizes)
        logic = {key: self._encoded(key, shape) for key in set(keys)}
        found = propagate(
            list(own.structures.values()),
            [logic[key] for key in keys],
            masked.double(),
            sizes,
            self.loopy_iterations,
            self.name,
        )
        parts = (found.marginals, found.log_partition, found.residual)
        return Beliefs(*(send(part.to(scores.dtype), scores.device) for part in parts))

    def decode(self, z: np.ndarray, length: int | Sequence[int] | np.ndarray) -> np.ndarray:
        return self.first.decode(z, length)

    def encode(self, gold: np.ndarray, length: int | Sequence[int] | np.ndarray) -> np.ndarray:
        return self.first.encode(gold, length)

    def encode_for(
        self, gold: np.ndarray, length: int | Sequence[int], parts: Sequence[int]
    ) -> np.ndarray:
        return self.first.encode_for(gold, length, parts)


def _keys(sizes: Tensor) -> list[Size]:
    """Return the size of each item in a form that can be the key of a dict."""
    return [tuple(size) if isinstance(size, list) else size for size in sizes.tolist()]


# Arguments are Any: a config is filled in before its blocks are made, and blocks in a dict are then
# still dicts.
def build_factor_graph_v1(
    structures: dict[str, Any], constraints: dict[str, Any] | None = None, loopy_iterations: int = 0
) -> FactorGraph:
    """Build the set of members that several structures have in common, under constraints.

    The structures have the same parts. The set trains with SparseMAP, by LP-SparseMAP, which is
    much slower than SparseMAP of one of them; or with approximate marginals. Annotations take the
    best member.

    Args:
        structures: by names of your own, each with a best member and scores that are added up.
            Annotations are stored in the format of the first.
        constraints: by names of your own, such as ``spacy-latent.LineBudget.v1``; null for no
            constraints.
        loopy_iterations: largest number of rounds of loopy belief propagation, for estimators that
            need marginals alone, such as Marginals; 0 for no marginals. They are exact only if no
            two structures or constraints share more than one part, and none form a cycle.
    """
    return FactorGraph(structures, constraints, loopy_iterations)
