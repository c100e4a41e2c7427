"""Structures and logic factors over the parts of one item, as LP-SparseMAP reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spacy_latent.errors import IncompatiblePair, InvalidScores, LatentError, is_whole, number_of
from spacy_latent.structures.base import Structure
from spacy_latent.structures.logic_factors import LogicFactor


@dataclass(frozen=True)
class StructureFactor:
    """Structure over some parts of a graph.

    Args:
        parts: int array, the number in the graph of each part of the structure, in the shape of its
            parts for this length. It is −1 at entries that are no part, such as the diagonal of a
            tree's arcs, or that must not be chosen.
        length: the item's length, or lengths, as the structure takes them.
    """

    structure: Structure
    parts: np.ndarray
    length: int | tuple[int, ...]

    def __post_init__(self) -> None:
        structure, parts = self.structure, np.asarray(self.parts)
        if not isinstance(structure, Structure):
            shown = structure.__name__ if isinstance(structure, type) else repr(structure)
            raise LatentError(f"StructureFactor: {shown} is no structure; expected SpanningTree().")
        if parts.size and parts.dtype.kind not in "iu":
            raise LatentError(
                f"StructureFactor: parts have dtype {parts.dtype}; expected an int array with the "
                "number of each part. For a mask, give np.where(mask, numbers, -1)."
            )
        object.__setattr__(self, "parts", parts.astype(np.int64))

    def check(self) -> None:
        """Check that ``parts`` fits the structure and the length.

        Raises:
            LatentError: ``parts`` numbers an entry that is no part of the structure, or is too
                small for its length.
        """
        structure, name, shape = self.structure, self.structure.name, self.parts.shape
        if not (structure.linear and structure.has_map):
            raise IncompatiblePair(
                "ItemGraph",
                name,
                "it has no method map for scores of parts",
                "structures with a map, such as SpanningTree or LinearChain",
            )
        if len(shape) != structure.part_axes:
            raise LatentError(
                f"StructureFactor: parts have shape {shape}; expected {structure.part_axes} axes, "
                f"as the parts of {name} have."
            )
        each = self.length if isinstance(self.length, (tuple, list)) else [self.length]
        if not all(is_whole(n, least=0) for n in each):
            raise LatentError(
                f"StructureFactor: the length is {self.length!r}; expected the number of tokens of "
                "the item, or a tuple with one for each text."
            )
        given, sizes = (
            torch.zeros(1, *shape, device="cpu"),
            torch.tensor([self.length], device="cpu"),
        )
        try:
            # A kernel would write beyond the end of an array that is too small for the length.
            structure.check(given, sizes)
        except InvalidScores as error:
            raise LatentError(
                f"StructureFactor: {name} of length {self.length} has no parts of shape {shape}. "
                f"{error}"
            ) from None
        mask = structure.part_mask(given, sizes)
        strangers = np.argwhere((self.parts >= 0) & ~mask[0].numpy())
        if len(strangers):
            raise LatentError(
                f"StructureFactor: {tuple(strangers[0].tolist())} is no part of {name} of length "
                f"{self.length}; give it the number -1."
            )


class EncodedGraph:
    """Factors over the parts of one item.

    Parts are numbered in C order of the item's scores.

    Args:
        shape: of the scores of the item.
        factors: structures and logic factors. Parts that are in no factor stay 0. To have a part
            without a constraint, put it in a Budget of its own.
    """

    def __init__(
        self, shape: Sequence[int], factors: Sequence[StructureFactor | LogicFactor]
    ) -> None:
        self.shape = tuple(int(size) for size in shape)
        self.structures = [f for f in factors if isinstance(f, StructureFactor)]
        self.logic = logic = [f.encode() for f in factors if isinstance(f, LogicFactor)]
        if len(self.structures) + len(logic) < len(factors):
            raise LatentError(
                "ItemGraph: every factor has to be a StructureFactor or a LogicFactor; got "
                f"{sorted({type(f).__name__ for f in factors})}."
            )
        for factor in self.structures:
            factor.check()
        self.slots = [np.flatnonzero(f.parts.ravel() >= 0) for f in self.structures]
        members = [f.parts.ravel()[slots] for f, slots in zip(self.structures, self.slots)]
        self.num_structure_edges = sum(len(own) for own in members)
        members += [np.asarray(f.parts, dtype=np.int64) for f in logic]
        self.kinds = np.array([f.kind for f in logic], dtype=np.int8)
        self.limits = np.array([f.limit for f in logic], dtype=np.float64)
        self.flips = np.array([flip for f in logic for flip in f.flips], dtype=np.bool_)
        self.sizes = np.array([len(own) for own in members], dtype=np.int64)
        self.edges = np.concatenate([*members, np.empty(0, dtype=np.int64)]).astype(np.int64)
        if len(self.edges) and self.edges.max() >= np.prod(self.shape):
            raise LatentError(
                f"ItemGraph: a factor names part {self.edges.max()}, but scores of shape "
                f"{self.shape} have {number_of(int(np.prod(self.shape)), 'part')}, counted from 0."
            )
        for own in members:
            if len(np.unique(own)) < len(own):
                raise LatentError(
                    "ItemGraph: a structure factor names a part of the item twice; name each once."
                )
        # Disjoint factors, whose projections together start the solver.
        claimed = np.zeros(int(np.prod(self.shape)), dtype=np.bool_)
        self.owned = np.zeros(len(self.edges), dtype=np.bool_)
        start = 0
        for own in members:
            if not claimed[own].any():
                claimed[own] = True
                self.owned[start : start + len(own)] = True
            start += len(own)


class GraphBatch:
    """Factors of a batch of graphs.

    Items, and within them factors and parts, lie one after the other. An *edge* is a part in a
    factor; the edges of structures come first.

    Attributes:
        item, degree: item of each part, and number of its edges.
        part, edge_item, owned: part and item of each edge, and whether its factor is one of the
            disjoint ones.
        border: number of edges of structures.
        factor_item, starts: item and first edge of each structure, and the end of the last.
        logic_item, logic_starts: the same for logic factors. Edges are counted from the first edge
            of a logic factor.
    """

    def __init__(self, graphs: Sequence[EncodedGraph]) -> None:
        self.size = len(graphs)
        counts = [int(np.prod(g.shape)) for g in graphs]
        self.num_parts = sum(counts)
        self.item = np.repeat(np.arange(self.size), counts)
        borders = [g.num_structure_edges for g in graphs]
        edges = [g.edges + offset for g, offset in zip(graphs, np.cumsum([0, *counts]))]
        self.part = _joined([*_halves(edges, borders)], np.int64)
        self.owned = _joined([*_halves([g.owned for g in graphs], borders)], np.bool_)
        self.edge_item = self.item[self.part]
        self.border = sum(borders)
        self.degree = np.bincount(self.part, minlength=self.num_parts)

        self.structures = [f for g in graphs for f in g.structures]
        self.slots = [own for g in graphs for own in g.slots]
        own = [len(g.structures) for g in graphs]
        self.factor_item = np.repeat(np.arange(self.size), own)
        self.logic_item = np.repeat(np.arange(self.size), [len(g.kinds) for g in graphs])
        self.kinds = _joined([g.kinds for g in graphs], np.int8)
        self.limits = _joined([g.limits for g in graphs], np.float64)
        self.flips = _joined([g.flips for g in graphs], np.bool_)
        sizes = [*_halves([g.sizes for g in graphs], own)]
        first = np.zeros(1, np.int64)
        self.starts = np.cumsum(_joined([first, *sizes[: self.size]], np.int64))
        self.logic_starts = np.cumsum(_joined([first, *sizes[self.size :]], np.int64))

    def gather(self, edges: np.ndarray) -> np.ndarray:
        """Return the sums over the edges of each part."""
        return np.bincount(self.part, edges, minlength=self.num_parts)

    def per_item(self, edges: np.ndarray) -> np.ndarray:
        """Return the sums over the edges of each item."""
        return np.bincount(self.edge_item, edges, minlength=self.size)

    def per_item_of_parts(self, parts: np.ndarray) -> np.ndarray:
        """Return the sums over the parts of each item."""
        return np.bincount(self.item, parts, minlength=self.size)


def _halves(arrays: Sequence[np.ndarray], borders: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield all arrays up to their borders, then all arrays from there on."""
    yield from (own[:k] for own, k in zip(arrays, borders))
    yield from (own[k:] for own, k in zip(arrays, borders))


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([*arrays, np.empty(0, dtype)]).astype(dtype)
