"""Non-projective dependency trees: spanning arborescences rooted in node 0.

PROVISIONAL: slow and float64; the kernels replace it behind the same contract.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.base import Structure

Direction = Literal["any", "earlier", "later"]


class SpanningTree(Structure):
    """Trees over n tokens and a root. Scores ``(B, n+1, n+1)``, ``[b, head, modifier]``.

    single_root: exactly one token is attached to the root.
    direction: where the head of a token may stand: "any", "earlier" or "later"; the root always.
    max_arc_length: bound on |head − modifier| of arcs between tokens; None for no bound.
    """

    part_axes: ClassVar[int] = 2
    exclusive_axes: ClassVar[tuple[int, ...]] = (0,)
    annotation: ClassVar[str] = "heads"
    tractable = frozenset({"log_partition", "marginals", "sample", "entropy", "log_prob"})

    def __init__(
        self,
        single_root: bool = False,
        direction: Direction = "any",
        max_arc_length: int | None = None,
    ) -> None:
        if direction not in ("any", "earlier", "later"):
            raise InvalidScores(
                f"{self.name}: direction is {direction!r}; expected 'any', 'earlier' or 'later'."
            )
        self.single_root = single_root
        self.direction = direction
        self.max_arc_length = max_arc_length

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        size = scores.shape[-1]
        node = torch.arange(size, device=scores.device)
        head, modifier = node[:, None], node[None, :]
        mask = (head != modifier) & (modifier > 0)
        if self.direction == "earlier":
            mask = mask & (head < modifier)
        elif self.direction == "later":
            mask = mask & ((head > modifier) | (head == 0))
        if self.max_arc_length is not None:
            mask = mask & (((head - modifier).abs() <= self.max_arc_length) | (head == 0))
        inside = node[None, :] <= lengths[:, None]
        return mask[None] & inside[:, :, None] & inside[:, None, :]

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        size = scores.shape[-1]
        top = scores.detach().amax(1).clamp_min(-1e30)[:, 1:]
        inside = torch.arange(1, size, device=scores.device)[None] <= lengths[:, None]
        top = torch.where(inside, top, 0.0)
        weights = (scores[:, :, 1:] - top[:, None]).double().exp()
        root, arcs = weights[:, 0], weights[:, 1:]
        degree = arcs.sum(1) + (0 if self.single_root else root) + (~inside).double()
        laplacian = torch.diag_embed(degree) - arcs
        if self.single_root:
            laplacian = torch.cat([torch.where(inside, root, 0)[:, None], laplacian[:, 1:]], 1)
        return (torch.linalg.slogdet(laplacian)[1] + top.sum(1)).to(scores.dtype)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        z = torch.zeros_like(scores)
        for b, n in enumerate(lengths.tolist()):
            if n == 0:
                continue
            matrix = scores[b, : n + 1, : n + 1].double().cpu().numpy()
            heads = _best(matrix, self.single_root)
            if heads is None or not np.isfinite(matrix[heads[1:], range(1, n + 1)]).all():
                raise InfeasibleError(self.name, [b])
            z[b, torch.as_tensor(heads[1:]), torch.arange(1, n + 1)] = 1
        return z

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Heads of the tokens, ``(n,)`` int32: 0 is the root, i the i-th token."""
        return z[: length + 1, 1 : length + 1].argmax(0).astype("int32")

    def encode(self, gold: np.ndarray, length: int) -> np.ndarray:
        """Arcs ``(n+1, n+1)`` from heads as in :meth:`decode`."""
        z = np.zeros((length + 1, length + 1), dtype="float32")
        z[np.asarray(gold, dtype="int64"), np.arange(1, length + 1)] = 1
        return z


def _best(scores: np.ndarray, single_root: bool) -> np.ndarray | None:
    if not single_root:
        return _chu_liu_edmonds(scores)
    best: np.ndarray | None = None
    value = -np.inf
    for r in range(1, len(scores)):
        forced = scores.copy()
        forced[0, 1:] = -np.inf
        forced[0, r] = scores[0, r]
        if not np.isfinite(scores[0, r]):
            continue
        heads = _chu_liu_edmonds(forced)
        total = forced[heads[1:], np.arange(1, len(scores))].sum()
        if total > value:
            best, value = heads, total
    return best


def _chu_liu_edmonds(scores: np.ndarray) -> np.ndarray:
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    heads = scores.argmax(0)
    heads[0] = -1
    cycle = _find_cycle(heads)
    if cycle is None:
        return heads
    n = len(scores)
    rest = [i for i in range(n) if i not in cycle]
    small = np.full((len(rest) + 1, len(rest) + 1), -np.inf)
    small[:-1, :-1] = scores[np.ix_(rest, rest)]
    within = scores[heads[cycle], cycle]
    entering = scores[np.ix_(rest, cycle)] - within
    leaving = scores[np.ix_(cycle, rest)]
    small[:-1, -1] = entering.max(1)
    small[-1, :-1] = leaving.max(0)
    solved = _chu_liu_edmonds(small)
    result = heads.copy()
    for i, node in enumerate(rest):
        if i == 0:
            continue
        h = solved[i]
        result[node] = rest[h] if h < len(rest) else cycle[leaving[:, i].argmax()]
    outside = solved[-1]
    result[cycle[entering[outside].argmax()]] = rest[outside]
    return result


def _find_cycle(heads: np.ndarray) -> list[int] | None:
    state = [0] * len(heads)
    for start in range(1, len(heads)):
        path, node = [], start
        while node > 0 and state[node] == 0:
            state[node] = 1
            path.append(node)
            node = int(heads[node])
        if node > 0 and state[node] == 1:
            return path[path.index(node) :]
        for visited in path:
            state[visited] = 2
    return None
