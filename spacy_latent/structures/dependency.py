"""Arcs, constraints and heads, common to dependency trees of every kind."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_flags, check_one_of, check_whole
from spacy_latent.kernels.autograd.tracing import is_traced
from spacy_latent.structures.base import Structure
from spacy_latent.structures.compiled import CompiledStructure

Direction = Literal["any", "earlier", "later"]
DIRECTIONS = {"any": 0, "earlier": -1, "later": 1}
# Other libraries put the scores of roots on the diagonal, so that scores have no row for the root.
ROOT_IS_NODE_0 = (
    "Row and column 0 are the root, so n words need scores (B, n+1, n+1). If the scores of roots "
    "are on the diagonal, move them to row 0, as from_diagonal of the page 'If you know structured "
    "attention' does."
)


class DependencyTree(CompiledStructure):
    """Trees over n tokens and a root.

    Scores are ``(B, N+1, N+1)``, ``[b, head, modifier]``, where node 0 is the root and i the i-th
    token. Lengths are ``(B,)``, each at most N. An item of length 0 has one tree, the empty one.

    Args:
        single_root: exactly one token is attached to the root; else at least one.
        direction: allowed places of the head of a token: "any", "earlier" or "later" in the text.
            It does not apply to arcs from the root.
        max_arc_length: bound on |head − modifier|; None for no bound. It does not apply to arcs
            from the root.

    Attributes:
        crosses: whether arcs drawn above the sentence may cross.
        most_modifiers: bound on the number of modifiers of a token.
    """

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "arcs"
    exclusive_axes: ClassVar[tuple[int, ...]] = (0,)
    annotation: ClassVar[str] = "heads"
    crosses: bool = True
    most_modifiers: float = math.inf

    def __init__(
        self,
        single_root: bool = False,
        direction: Direction = "any",
        max_arc_length: int | None = None,
    ) -> None:
        check_one_of(self.name, DIRECTIONS, error=InvalidScores, direction=direction)
        check_whole(self.name, or_null=True, error=InvalidScores, max_arc_length=max_arc_length)
        check_flags(self.name, error=InvalidScores, single_root=single_root)
        self.single_root = single_root
        self.direction = direction
        self.max_arc_length = max_arc_length

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, DependencyTree):
            return super().covers(other)
        return (
            (other.acyclic or not self.acyclic)
            and (self.crosses or not other.crosses)
            and self.most_modifiers >= other.most_modifiers
            and (other.single_root or not self.single_root)
            and self.direction in ("any", other.direction)
            and _length(self.max_arc_length) >= _length(other.max_arc_length)
        )

    def _options(self, scores: Tensor) -> list[int]:
        longest = -1 if self.max_arc_length is None else self.max_arc_length
        return [DIRECTIONS[self.direction], longest, int(self.single_root)]

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        if scores.shape[1] != scores.shape[2] or scores.shape[1] < 1:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)}; expected (B, N+1, N+1), "
                "with the root as node 0."
            )
        lengths = self.check_lengths(lengths, scores.shape[1] - 1, advice=ROOT_IS_NODE_0)
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        # The same arcs as by arc_scores.is_arc of the kernels.
        node = torch.arange(scores.shape[-1], device=scores.device)
        head, modifier = node[:, None], node
        allowed = (head != modifier) & (modifier > 0)
        if self.direction == "earlier":
            allowed &= head < modifier
        elif self.direction == "later":
            allowed &= (head > modifier) | (head == 0)
        if self.max_arc_length is not None:
            allowed &= ((head - modifier).abs() <= self.max_arc_length) | (head == 0)
        inside = node <= lengths.to(scores.device)[:, None]
        return allowed & inside[:, :, None] & inside[:, None, :]

    def best_heads(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the heads of the best trees, ``(B, N+1)`` int32, −1 for the root and padding.

        This is the result of ``map`` as heads instead of arcs.
        """
        return self._best(*self._read(scores.detach(), lengths))

    def _indicate(self, found: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return 0/1 arcs ``(R, N+1, N+1)`` from heads ``(R, N+1)``."""
        if found.is_cuda or is_traced(found):
            head = torch.arange(scores.shape[1], device=found.device)
            return (found[:, None, :] == head[:, None]).to(scores.dtype)
        from spacy_latent.kernels.arborescences.arborescence import mark_arcs

        # Not by torch: its threads would keep the core busy that the next kernel needs.
        z = torch.zeros(0, dtype=scores.dtype, device="cpu").numpy()
        z = np.zeros((found.shape[0], *scores.shape[1:]), dtype=z.dtype)
        mark_arcs(found.cpu().numpy(), z)
        return torch.from_numpy(z).to(scores.device)

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the heads of the tokens, ``(n,)`` int32: 0 is the root, i the i-th token."""
        return z[: length + 1, 1 : length + 1].argmax(0).astype("int32")

    def encode(self, gold: np.ndarray, length: int) -> np.ndarray:
        """Return arcs ``(n+1, n+1)`` from heads as in :meth:`decode`.

        Membership of the result in the set is not checked: see :meth:`contains`.

        Raises:
            InvalidScores: there is not one head, from 0 to n, for each token.
        """
        heads = np.asarray(gold)
        if heads.shape != (length,) or (length and not 0 <= heads.min() <= heads.max() <= length):
            raise InvalidScores(
                f"{self.name}.encode: heads are {heads.tolist()[:10]}; expected {length} of them, "
                f"each from 0 (the root) to {length}."
            )
        z = np.zeros((length + 1, length + 1), dtype="float32")
        z[heads.astype("int64"), np.arange(1, length + 1)] = 1
        return z


def _length(bound: int | None) -> float:
    return math.inf if bound is None else bound
