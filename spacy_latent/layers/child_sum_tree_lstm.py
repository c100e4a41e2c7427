"""Child-sum Tree-LSTM (Tai et al. 2015, section 3.1) on hard trees."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.recursive_message_passing import most_probable_heads


class ChildSumTreeLstm(Composer):
    """Their equations 2 to 8, level by level from the deepest, all sentences at once.

    Sums over children are products with z, so the gradient of a surrogate estimator at z exists.
    Memory is O(n·output_width) for each level.
    """

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
        arcs = z[:, 1:, 1:].to(vectors.dtype)
        level = levels(z)
        gates = self.gates(vectors)
        forget = arcs.transpose(1, 2) @ self.forget(vectors)
        hidden = vectors.new_zeros(*vectors.shape[:2], self.output_width)
        cell = hidden
        for current in range(int(level.max()) if level.numel() else 0, -1, -1):
            summed = arcs @ hidden
            kept = arcs @ (torch.sigmoid(forget + self.forget_from_child(hidden)) * cell)
            i, o, u = (gates + self.from_children(summed)).chunk(3, -1)
            new_cell = torch.sigmoid(i) * torch.tanh(u) + kept
            here = (level == current).unsqueeze(-1)
            cell = torch.where(here, new_cell, cell)
            hidden = torch.where(here, torch.sigmoid(o) * torch.tanh(new_cell), hidden)
        return hidden


def levels(z: Tensor) -> Tensor:
    """Number of tokens above each token, ``(B, n)``; −1 at padding."""
    heads = most_probable_heads(z)
    present = z.detach().sum(1)[:, 1:] > 0.5
    node = heads
    level = torch.zeros_like(heads)
    for _ in range(heads.shape[1]):
        if not bool((node > 0).any()):
            break
        level += (node > 0).to(level.dtype)
        node = heads.gather(1, node)
    return torch.where(present, level[:, 1:], -1)


def build_child_sum_tree_lstm_v1(output_width: int | None = None) -> ComposerBuilder:
    """output_width: None keeps the input's width."""
    check_output_width("ChildSumTreeLstm", output_width)
    return partial(ChildSumTreeLstm, output_width=output_width)
