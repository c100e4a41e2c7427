"""Binary trees of a parser that decides while it composes."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spacy_latent.structures.constituency_tree import ConstituencyTree


class ParserTree(ConstituencyTree):
    """Binary trees whose probability no scores of spans give, since each decision of the parser
    depends on what it composed before. In the place of scores stands the parser's tree itself,
    whose MAP and SparseMAP it is; there are no sums.
    """

    tractable = frozenset()
    linear: ClassVar[bool] = False

    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        return ConstituencyTree().contains(z, lengths)
