"""Binary Tree-LSTM over the tree that a sequence of merges makes."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.layers.base import ComposerBuilder, check_output_width
from spacy_latent.layers.binary_tree_lstm import BinaryTreeLstm, Output, check_output
from spacy_latent.structures.merge_sequence import trees_of_merges


class MergeTreeLstm(BinaryTreeLstm):
    """:class:`BinaryTreeLstm` for MergeSequence.

    Merges get no gradient from their compositions. So use it with estimators that learn from
    weights or losses of whole structures.
    """

    parts = "merges"

    def spans_of(self, z: Tensor, lengths: Tensor, longest: int) -> Tensor:
        return trees_of_merges(z, lengths, longest)


def build_merge_tree_lstm_v1(
    output_width: int | None = None, output: Output = "constituents"
) -> ComposerBuilder:
    """Return a builder of :class:`MergeTreeLstm`; for ``output`` see :class:`BinaryTreeLstm`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("MergeTreeLstm", output_width)
    check_output("MergeTreeLstm", output)
    return partial(MergeTreeLstm, output_width=output_width, output=output)
