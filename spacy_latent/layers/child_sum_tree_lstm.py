"""Child-sum Tree-LSTM (Tai et al. 2015, section 3.1) on hard trees."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.kernels.autograd.derivatives import is_transformed
from spacy_latent.kernels.core.gpu_transfers import fetch_together, send_together
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.child_sum_recursion import ChildSumRecursion
from spacy_latent.layers.recursive_message_passing import most_probable_heads
from spacy_latent.layers.shared_structures import SharedSubtrees, share_subtrees


class ChildSumTreeLstm(Composer):
    """Composer by their equations 2 to 8, one batched step for each level of all trees.

    Levels are composed from the deepest to the root. If z has no gradient (atoms of SparseMAP,
    samples, prediction), each step only reads the tokens of its level. Time and memory are then
    O(n·output_width) for a tree, whatever its depth. On a CPU, equal subtrees of several trees of
    an item are composed once. If z has a gradient, sums over children are products with z. So
    surrogate estimators get a gradient for all arcs. This takes O(n²·output_width) time and
    O(n·output_width) memory for each level.
    """

    parts = "arcs"
    requires_hard = True

    def __init__(self, width: int, output_width: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        size = self.output_width
        self.gates = nn.Linear(width, 3 * size)
        self.from_children = nn.Linear(size, 3 * size, bias=False)
        self.forget = nn.Linear(width, size)
        self.forget_from_child = nn.Linear(size, size, bias=False)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        shared = self._share(vectors, z, lengths, None)
        if shared is not None:
            return self._of_tokens(self._over_subtrees(vectors, shared), shared)
        if z.requires_grad:
            return self._over_arcs(vectors, z)
        return self._over_tokens(vectors, z)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        shared = None if item is None else self._share(vectors, z, lengths[item], item)
        if shared is None:
            return super().compose_range(vectors, z, lengths, item)
        return self._of_tokens(self._over_subtrees(vectors, shared), shared)

    def roots_of_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        of_each = lengths if item is None else lengths[item]
        shared = self._share(vectors, z, of_each, item)
        if shared is None:
            return super().roots_of_range(vectors, z, lengths, item)
        # Read only the states of roots.
        inside = torch.arange(z.shape[1] - 1) < of_each[:, None]
        tree, token = ((z[:, 0, 1:] > 0) & inside).nonzero().unbind(1)
        states = self._over_subtrees(vectors, shared)
        roots = states.index_select(0, shared.result[tree, token])
        return roots.new_zeros(len(z), self.output_width).index_add(0, tree, roots)

    def _share(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> SharedSubtrees | None:
        """Return the subtrees to compose, or None if they are composed level by level."""
        # Sharing is no operation of torch, so tracers, transforms and autocast would not see it.
        traced = torch.compiler.is_compiling() or is_transformed()
        if traced or torch.is_autocast_enabled(vectors.device.type):
            return None
        shared = share_subtrees(z, lengths, len(vectors), item, z.shape[1], False)
        # Do not share trees with cycles, whose tokens read each other.
        return None if shared is None or shared.own else shared

    def _over_subtrees(self, vectors: Tensor, shared: SharedSubtrees) -> Tensor:
        flat = vectors.flatten(0, 1)
        weights = self.from_children.weight, self.forget_from_child.weight
        states = ChildSumRecursion.apply(shared, self.gates(flat), self.forget(flat), *weights)
        assert isinstance(states, Tensor)
        return states

    def _of_tokens(self, states: Tensor, shared: SharedSubtrees) -> Tensor:
        chosen = states.index_select(0, shared.result.flatten())
        return chosen.view(*shared.result.shape, self.output_width)

    def _over_arcs(self, vectors: Tensor, z: Tensor) -> Tensor:
        arcs = z[:, 1:, 1:].to(vectors.dtype)
        known = levels(z)
        (level,) = send_together([known], z.device)
        gates = self.gates(vectors)
        forget = arcs.transpose(1, 2) @ self.forget(vectors)
        hidden = vectors.new_zeros(*vectors.shape[:2], self.output_width)
        cell = hidden
        for current in range(int(known.max()) if known.numel() else 0, -1, -1):
            summed = arcs @ hidden
            kept = arcs @ (torch.sigmoid(forget + self.forget_from_child(hidden)) * cell)
            i, o, u = (gates + self.from_children(summed)).chunk(3, -1)
            new_cell = torch.sigmoid(i) * torch.tanh(u) + kept
            here = (level == current).unsqueeze(-1)
            cell = torch.where(here, new_cell, cell)
            hidden = torch.where(here, torch.sigmoid(o) * torch.tanh(new_cell), hidden)
        return hidden

    def _over_tokens(self, vectors: Tensor, z: Tensor) -> Tensor:
        batch, longest, _ = vectors.shape
        heads, present = read_heads(z)
        level = _levels(heads, present).flatten()
        # Tokens level by level, roots first. All children of a level are on the next level.
        order = level.argsort(stable=True)[int((level < 0).sum()) :]
        sizes = torch.bincount(level[order]).tolist()
        place = torch.zeros_like(level)
        place[order] = torch.cat([torch.arange(size) for size in [*sizes, 0]])
        shift = longest * torch.arange(batch)[:, None] - 1
        above = (heads[:, 1:] + shift).flatten()[order].clamp_min(0)
        order, above = send_together([order, place[above]], z.device)
        parents = above.split(sizes)
        flat = vectors.flatten(0, 1)[order]
        gates, forget = self.gates(flat).split(sizes), self.forget(flat).split(sizes)
        hidden: list[Tensor] = []
        cell = flat.new_zeros(0, self.output_width)
        for current in range(len(sizes) - 1, -1, -1):
            sums, kept = gates[current], None
            if hidden:
                parent, below = parents[current + 1], hidden[-1]
                summed = below.new_zeros(sizes[current], self.output_width)
                sums = sums + self.from_children(summed.index_add(0, parent, below))
                open_gate = torch.sigmoid(forget[current][parent] + self.forget_from_child(below))
                passed = open_gate * cell
                kept = passed.new_zeros(summed.shape).index_add(0, parent, passed)
            i, o, u = sums.chunk(3, -1)
            cell = torch.sigmoid(i) * torch.tanh(u)
            if kept is not None:
                cell = cell + kept
            hidden.append(torch.sigmoid(o) * torch.tanh(cell))
        result = torch.cat([*hidden[::-1], cell.new_zeros(0, self.output_width)])
        blank = result.new_zeros(batch * longest, self.output_width)
        return blank.index_copy(0, order, result).view(batch, longest, self.output_width)


def levels(z: Tensor) -> Tensor:
    """Return the number of tokens above each token, ``(B, n)``; −1 at padding; on the CPU."""
    return _levels(*read_heads(z))


def read_heads(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable heads ``(B, n+1)``, and which tokens have one ``(B, n)``.

    Both are on the CPU, after one transfer.
    """
    heads, present = most_probable_heads(z), z.detach().sum(1)[:, 1:] > 0.5
    if z.device.type == "cpu":
        return heads, present
    small, there = fetch_together([heads.int(), present.int()])
    return small.long(), there > 0


def _levels(heads: Tensor, present: Tensor) -> Tensor:
    node = heads
    level = torch.zeros_like(heads)
    for _ in range(heads.shape[1]):
        if not bool((node > 0).any()):
            break
        level += (node > 0).to(level.dtype)
        node = heads.gather(1, node)
    return torch.where(present, level[:, 1:], -1)


def build_child_sum_tree_lstm_v1(output_width: int | None = None) -> ComposerBuilder:
    """Return a builder of :class:`ChildSumTreeLstm`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("ChildSumTreeLstm", output_width)
    return partial(ChildSumTreeLstm, output_width=output_width)
