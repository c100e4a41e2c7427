"""Hard dependency trees composed by a gated recursive cell: heads take modifiers one by one."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.errors import check_whole
from spacy_latent.kernels.autograd.tracing import refuse_transforms
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.gated_recursive_tree import GatedRecursiveTree
from spacy_latent.layers.recursion import Recursion
from spacy_latent.layers.shared_structures import share_merges


class GatedRecursiveHeads(Composer):
    """Vector of each token over its whole subtree, by the cell of :class:`GatedRecursiveTree`.

    The state of a token is first composed with the modifiers on its right, the nearest first, by
    the cell of (own state, modifier's state). Then it is composed with those on its left, by the
    cell of (modifier's state, own state). A modifier's state covers its whole subtree. So the cell
    only needs to learn how one more modifier changes a result. A function of all modifiers at once
    is not always learned.

    If z needs a gradient, only the arcs of the tree get one. Otherwise, equal subtrees of several
    trees of an item are composed once.

    Args:
        hidden_width: width of the cell's hidden layer; None for four times the output's width.
    """

    parts = "arcs"
    requires_hard = True

    def __init__(
        self, width: int, output_width: int | None, hidden_width: int | None = None
    ) -> None:
        super().__init__()
        self.cell = GatedRecursiveTree(width, output_width, hidden_width)
        self.output_width = self.cell.output_width

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        return self.compose_range(vectors, z, lengths, None)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        shared = share_merges(z, lengths if item is None else lengths[item], len(vectors), item)
        leaves = self.cell.leaves(vectors)[0].flatten(0, 1)
        weights = z[shared.arcs.unbind(1)].to(leaves)[:, None] if z.requires_grad else None
        leaf = set(self.cell.leaf.parameters())
        parameters = [parameter for parameter in self.cell.parameters() if parameter not in leaf]
        refuse_transforms(type(self).__name__, leaves)
        states = Recursion.apply(self._merged, shared, leaves, weights, *parameters)
        return states.index_select(0, shared.result.flatten()).unflatten(0, shared.result.shape)

    def _merged(self, left: Tensor, right: Tensor) -> Tensor:
        return self.cell.merge((left, left[:, :0]), (right, right[:, :0]))[0]

    def _cost(self, vectors: Tensor, z: Tensor) -> float:
        weights = sum(parameter.numel() for parameter in self.cell.parameters())
        return len(z) * vectors.shape[1] * weights / 20 if vectors.device.type == "cpu" else 0.0


def build_gated_recursive_heads_v1(
    output_width: int | None = None, hidden_width: int | None = None
) -> ComposerBuilder:
    """Return a builder of :class:`GatedRecursiveHeads`, which describes ``hidden_width``.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("GatedRecursiveHeads", output_width)
    check_whole("GatedRecursiveHeads", or_null=True, hidden_width=hidden_width)
    return partial(GatedRecursiveHeads, output_width=output_width, hidden_width=hidden_width)
