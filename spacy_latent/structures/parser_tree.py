"""Binary trees of a parser that decides while it composes."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spacy_latent.structures.constituency_tree import ConstituencyTree


class ParserTree(ConstituencyTree):
    """Binary trees whose probability cannot be expressed by scores of spans.

    Each decision of the parser depends on the result of earlier compositions. The scores are
    replaced by the parser's tree itself, which is its MAP and SparseMAP. There are no sums.
    """

    tractable = frozenset()
    linear: ClassVar[bool] = False

    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        return ConstituencyTree().contains(z, lengths)
