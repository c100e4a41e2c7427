"""Constituency trees, hard or soft, composed over the chart of all spans.

The method is after Maillard et al. 2019 and Drozdov et al. 2019.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spacy_latent.layers.base import ComposerBuilder, check_output_width
from spacy_latent.layers.binary_tree_lstm import BinaryTreeLstm, Output, State, check_output

# If the sum over its splits is below this, a span has no halves, and is in no result.
LEAST = 1e-9


class ChartTreeLstm(BinaryTreeLstm):
    """BinaryTreeLstm for soft z: marginals, or a mean of few trees.

    Every span of the chart has a state, composed of its expected halves,

        h_ij = cell(Σ_k w_ijk h_ik, Σ_k w_ijk h_{k+1,j}),   w_ijk ∝ z_ik z_{k+1,j},

    with the same weights for memories, and z = 1 for single tokens. For a hard tree the result is
    the same as BinaryTreeLstm's with the same weights. The cited methods mix the compositions of
    all splits, and compute a cell for each. Here the halves are mixed first, so that each span has
    one cell. For soft z, both halves of a split count as independent, since marginals do not
    determine their dependence.

    The gradient at z reaches all spans, also spans that are in no tree. There are n steps. Time is
    O(n³·output_width) for additions and O(n²·output_width²) for products, memory
    O(n²·output_width).

    Args:
        output: "constituents" for the state of the token's leaf, plus the mean, weighted by z, of
            the states of the spans of two and more tokens that contain it. The divisor of this mean
            is at least 1. "root" for the state of the whole sentence.
    """

    requires_hard = False

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        batch, longest, _ = vectors.shape
        z = z.to(vectors.dtype)
        leaf_hidden, leaf_cell = self.leaves(vectors)
        if not longest:
            return leaf_hidden
        # States, memories and z of the spans of each length, by first token.
        states = [torch.cat([leaf_hidden, leaf_cell], -1)]
        weights = [z.new_ones(batch, longest)]
        above, total = torch.zeros_like(leaf_hidden), z.new_zeros(batch, longest)
        for size in range(2, longest + 1):
            count = longest - size + 1
            left = right = states[0].new_zeros(batch, count, states[0].shape[-1])
            mass = z.new_zeros(batch, count)
            for first in range(1, size):
                last = size - first
                share = weights[first - 1][:, :count] * weights[last - 1][:, first:]
                left = left + share[..., None] * states[first - 1][:, :count]
                right = right + share[..., None] * states[last - 1][:, first:]
                mass = mass + share
            scale = 1.0 / mass.clamp_min(LEAST)[..., None]
            made = self.merge(_state(scale * left), _state(scale * right))
            states.append(torch.cat(made, -1))
            weights.append(z.diagonal(size - 1, 1, 2))
            if self.output == "constituents":
                seen = weights[-1][..., None] * made[0]
                # Added to all tokens of each span.
                above = above + _spread(seen, size)
                total = total + _spread(weights[-1][..., None], size)[..., 0]
        if self.output == "root":
            place = (lengths.to(z.device) - 1).clamp_min(0)
            roots = torch.stack([state[:, 0] for state in states], 1)
            root = roots[torch.arange(batch, device=z.device), place]
            return root[:, None, : self.output_width].expand(-1, longest, -1)
        return leaf_hidden + above / total.clamp_min(1)[..., None]


def _state(joined: Tensor) -> State:
    hidden, memory = joined.chunk(2, -1)
    return hidden, memory


def _spread(values: Tensor, size: int) -> Tensor:
    """Return sums over the spans of ``size`` tokens that contain each token.

    ``values`` are ``(B, m, d)`` by the first token of the span, for ``m + size − 1`` tokens.
    """
    sums = values.cumsum(1)
    ended = torch.nn.functional.pad(sums, (0, 0, size, 0))[:, : values.shape[1] + size - 1]
    begun = torch.cat([sums, sums[:, -1:].expand(-1, size - 1, -1)], 1)
    return begun - ended


def build_chart_tree_lstm_v1(
    output_width: int | None = None, output: Output = "constituents"
) -> ComposerBuilder:
    """Return a builder of :class:`ChartTreeLstm`, which describes ``output``.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("ChartTreeLstm", output_width)
    check_output("ChartTreeLstm", output)
    return partial(ChartTreeLstm, output_width=output_width, output=output)
