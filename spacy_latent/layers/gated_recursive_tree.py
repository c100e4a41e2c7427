"""Hard constituency trees composed by a gated recursive cell.

The cell comes from ordered memory (Shen et al. 2019, section 3.3), with a product of the halves as
in recursive tensor networks (Socher et al. 2013).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from spacy_latent.errors import check_whole
from spacy_latent.layers.base import ComposerBuilder, check_output_width
from spacy_latent.layers.binary_tree_lstm import BinaryTreeComposer, Output, State, check_output
from spacy_latent.structures.merge_sequence import trees_of_merges


class GatedRecursiveTree(BinaryTreeComposer):
    """Composition h = LayerNorm(σ(a) ⊙ l + σ(b) ⊙ r + σ(c) ⊙ u) of the halves' states l and r.

    Here [a; b; c; u] = W₂ [gelu(W₁ [l; r]); L l ⊙ R r]. A leaf is LayerNorm(W x).

    It differs from a Tree-LSTM by the hidden layer and by the product of both halves. Some
    functions of both halves, such as addition modulo ten, are no sum of functions of each half.
    With the hidden layer they are learned in some thousands of updates, and with the product in
    hundreds. A state is normalized at each node, so that it does not grow with depth.

    Args:
        hidden_width: width of the hidden layer; None for four times the output's width.
    """

    def __init__(
        self,
        width: int,
        output_width: int | None,
        hidden_width: int | None = None,
        output: Output = "constituents",
    ) -> None:
        super().__init__(width, output_width, output)
        size = self.output_width
        hidden = hidden_width or 4 * size
        self.leaf = nn.Sequential(nn.Linear(width, size), nn.LayerNorm(size))
        self.hidden = nn.Linear(2 * size, hidden)
        self.left = nn.Linear(size, size)
        self.right = nn.Linear(size, size)
        self.gates = nn.Linear(hidden + size, 4 * size)
        self.norm = nn.LayerNorm(size)

    def leaves(self, vectors: Tensor) -> State:
        state = self.leaf(vectors)
        return state, state[..., :0]

    def merge(self, left: State, right: State) -> State:
        seen = gelu(self.hidden(torch.cat([left[0], right[0]], -1)))
        product = self.left(left[0]) * self.right(right[0])
        a, b, c, new = self.gates(torch.cat([seen, product], -1)).chunk(4, -1)
        mixed = torch.sigmoid(a) * left[0] + torch.sigmoid(b) * right[0] + torch.sigmoid(c) * new
        return self.norm(mixed), left[1]


class MergeGatedRecursiveTree(GatedRecursiveTree):
    """:class:`GatedRecursiveTree` for MergeSequence.

    Merges get no gradient from their compositions. So use it with estimators that learn from
    weights or losses of whole structures.
    """

    parts = "merges"

    def spans_of(self, z: Tensor, lengths: Tensor, longest: int) -> Tensor:
        return trees_of_merges(z, lengths, longest)


def build_gated_recursive_tree_v1(
    output_width: int | None = None,
    hidden_width: int | None = None,
    output: Output = "constituents",
) -> ComposerBuilder:
    """Return a builder of :class:`GatedRecursiveTree`.

    For ``hidden_width`` see that class, for ``output`` see :class:`BinaryTreeComposer`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    return _builder(GatedRecursiveTree, output_width, hidden_width, output)


def build_merge_gated_recursive_tree_v1(
    output_width: int | None = None,
    hidden_width: int | None = None,
    output: Output = "constituents",
) -> ComposerBuilder:
    """Return a builder of :class:`MergeGatedRecursiveTree`.

    For ``hidden_width`` see :class:`GatedRecursiveTree`, for ``output``
    :class:`BinaryTreeComposer`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    return _builder(MergeGatedRecursiveTree, output_width, hidden_width, output)


def _builder(
    kind: type[GatedRecursiveTree],
    output_width: int | None,
    hidden_width: int | None,
    output: Output,
) -> ComposerBuilder:
    check_output_width(kind.__name__, output_width)
    check_output(kind.__name__, output)
    check_whole(kind.__name__, or_null=True, hidden_width=hidden_width)
    return partial(kind, output_width=output_width, hidden_width=hidden_width, output=output)
