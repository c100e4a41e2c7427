"""Tokens of hard trees level by level, so that each is composed once, after its children."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class TreeLevels:
    """The tokens of all trees of a batch of ``B`` by their level, which is the number of tokens
    above them: all children of a level are on the next.

    order: rows of ``(B·n, ...)``, those of the roots first; padding is left out. sizes: number of
    tokens of each level. parents: for each level where in the one before the head of each token is.
    """

    order: Tensor
    sizes: list[int]
    parents: list[Tensor]

    def children_sum(self, level: int, messages: Tensor) -> Tensor:
        """Sum of the messages ``(children, d)`` that each token of a level gets from the next."""
        total = messages.new_zeros(self.sizes[level], messages.shape[1])
        return total.index_add(0, self.parents[level + 1], messages)

    def restore(self, levels: list[Tensor], batch: int, longest: int) -> Tensor:
        """Rows ``(tokens, d)`` of each level, the first that of the roots, as ``(B, n, d)``; 0 at
        padding."""
        flat = torch.cat(levels)
        blank = flat.new_zeros(batch * longest, flat.shape[1])
        return blank.index_copy(0, self.order, flat).view(batch, longest, flat.shape[1])


def most_probable_heads(z: Tensor) -> Tensor:
    """``(B, n+1)`` nodes, the root its own head. They may form cycles where z is soft."""
    heads = z.detach().argmax(1)
    heads[:, 0] = 0
    return heads


def token_levels(z: Tensor, heads: Tensor) -> tuple[Tensor, bool]:
    """Number of tokens above each token, ``(B, n)`` int64, −1 at padding; and whether every token
    hangs on the root in the end."""
    present = z.detach().sum(1)[:, 1:] > 0.5
    node = heads
    level = torch.zeros_like(heads)
    for _ in range(heads.shape[1]):
        if not bool((node > 0).any()):
            break
        level += (node > 0).to(level.dtype)
        node = heads.gather(1, node)
    return torch.where(present, level[:, 1:], -1), not bool((node > 0).any())


def tree_levels(z: Tensor) -> TreeLevels | None:
    """Levels of arcs ``(B, n+1, n+1)``; None where they are not trees: a token has several heads,
    or is above itself."""
    heads = most_probable_heads(z)
    level, rooted = token_levels(z, heads)
    if not rooted or bool((z.detach().sum(1) > 1.5).any()):
        return None
    batch, longest = level.shape
    level = level.flatten()
    order = level.argsort(stable=True)[int((level < 0).sum()) :]
    sizes = torch.bincount(level[order]).tolist()
    place = torch.zeros_like(level)
    place[order] = torch.cat([torch.arange(size, device=z.device) for size in [*sizes, 0]])
    shift = longest * torch.arange(batch, device=z.device)[:, None] - 1
    above = (heads[:, 1:] + shift).flatten()[order].clamp_min(0)
    return TreeLevels(order, sizes, list(place[above].split(sizes)))
