"""Binary Tree-LSTM (Tai et al. 2015, section 3.2, with N = 2) on hard constituency trees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width


class BinaryTreeLstm(Composer):
    """Each token gets the state of its leaf, plus the mean of the states of the spans of two and
    more tokens that contain it: the root's, and so the whole sentence's, among them.

    States are made from the leaves up, all spans of one height of all sentences at once. Each
    enters what is above it as a product with its z, so the gradient at z of a surrogate estimator
    exists for the spans of the tree; it is 0 for other spans, which have no state. It makes no
    difference whether z holds the spans of one token.
    """

    parts = "spans"
    requires_hard = True

    def __init__(self, width: int, output_width: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        size = self.output_width
        self.leaf = nn.Linear(width, 3 * size)
        self.gates = nn.Linear(2 * size, 5 * size)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        batch, longest, _ = vectors.shape
        spans = read_spans(z, lengths)
        i, o, u = self.leaf(vectors).chunk(3, -1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        leaves = torch.sigmoid(o) * torch.tanh(cell)
        # Nodes of an item: its leaves, then its spans, each in the place of its split.
        blank = torch.zeros_like(leaves)
        hidden = torch.cat([leaves, blank], 1).flatten(0, 1)
        cell = torch.cat([cell, blank], 1).flatten(0, 1)
        weight = z[spans.item, spans.first, spans.last].to(vectors.dtype).unsqueeze(-1)
        for height in range(1, spans.levels + 1):
            here = (spans.height == height).nonzero().squeeze(1)
            left, right = spans.left[here], spans.right[here]
            i, o, u, f, g = self.gates(torch.cat([hidden[left], hidden[right]], -1)).chunk(5, -1)
            new_cell = (
                torch.sigmoid(i) * torch.tanh(u)
                + torch.sigmoid(f) * cell[left]
                + torch.sigmoid(g) * cell[right]
            )
            new = torch.sigmoid(o) * torch.tanh(new_cell)
            node = spans.node[here]
            hidden = hidden.index_copy(0, node, (weight[here] * new).to(hidden.dtype))
            cell = cell.index_copy(0, node, (weight[here] * new_cell).to(cell.dtype))
        above = hidden.unflatten(0, (batch, 2 * longest))[:, longest:]
        token = torch.arange(longest, device=z.device)
        contains = vectors.new_zeros(batch * 2 * longest, longest)
        contains[spans.node] = (
            (spans.first[:, None] <= token) & (token <= spans.last[:, None])
        ).to(contains.dtype)
        contains = contains.unflatten(0, (batch, 2 * longest))[:, longest:].transpose(1, 2)
        return leaves + contains @ above / contains.sum(2, keepdim=True).clamp_min(1)


@dataclass
class Spans:
    """The S spans of two and more tokens of a batch of trees; tensors ``(S,)`` int64.

    item, first, last: where z has them. node, left, right: places of the span and of its halves in
    ``(B, 2n)`` nodes, flattened. height: 1 where both halves are leaves. levels: the greatest.
    """

    item: Tensor
    first: Tensor
    last: Tensor
    node: Tensor
    left: Tensor
    right: Tensor
    height: Tensor
    levels: int


def read_spans(z: Tensor, lengths: Tensor) -> Spans:
    """The spans of hard trees ``(B, n, n)``.

    A span's place is that of its split, the last token of its left half, which is another for each
    span of a tree. Raises LatentError for an item whose spans do not make a binary tree.
    """
    longest = z.shape[-1]
    token = torch.arange(longest, device=z.device)
    inside = token < lengths.to(z.device)[:, None, None]
    chosen = (z.detach() > 0.5) & (token[:, None] < token) & inside
    # [i, j]: the end of the longest span from i that ends at j or before; i if it is a leaf.
    ends = torch.where(chosen, token, token[:, None].expand_as(chosen))
    ends = ends.cummax(2).values if longest else ends
    item, first, last = chosen.nonzero(as_tuple=True)
    split = ends[item, first, last - 1]
    whole = chosen[item, split + 1, last] | (split + 1 == last)
    # What the root splits into, down to the leaves, is n − 1 spans: there must be no others.
    size = lengths.to(z.device)
    tree = chosen.flatten(1).sum(1) == (size - 1).clamp_min(0)
    if longest:
        root = chosen[:, 0].gather(1, (size - 1).clamp_min(0)[:, None]).squeeze(1)
        tree &= root | (size < 2)
    if not bool(whole.all()) or not bool(tree.all()):
        bad = {*item[~whole].tolist(), *(~tree).nonzero().flatten().tolist()}
        raise LatentError(
            f"BinaryTreeLstm: the spans of item(s) {sorted(bad)[:10]} of the batch are no binary "
            "tree: each span of two and more tokens must be two shorter ones. Use SpanAttention, "
            "which takes any spans."
        )
    base = item * 2 * longest

    def place(begin: Tensor, end: Tensor) -> Tensor:
        inner = longest + ends[item, begin, (end - 1).clamp_min(0)]
        return base + torch.where(begin == end, begin, inner)

    node, left, right = base + longest + split, place(first, split), place(split + 1, last)
    height = torch.zeros(len(z) * 2 * longest, dtype=torch.int64, device=z.device)
    levels = 0
    while True:
        higher = 1 + torch.maximum(height[left], height[right])
        if not len(node) or torch.equal(higher, height[node]):
            return Spans(item, first, last, node, left, right, height[node], levels)
        height[node] = higher
        levels += 1


def build_binary_tree_lstm_v1(output_width: int | None = None) -> ComposerBuilder:
    """output_width: None keeps the input's width."""
    check_output_width("BinaryTreeLstm", output_width)
    return partial(BinaryTreeLstm, output_width=output_width)
