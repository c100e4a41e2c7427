"""Which expressions of ListOps are judged together: by their depth, and by their operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spacy_latent.corpora.listops import OPERATORS, depth

# A sum passes every mistake of its arguments on, and its table is the largest to learn; so what
# fails for want of sums must be told from what fails for want of trees.
SUM = "SM"


def groups_by_depth(expressions: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """By the levels of lists within each other, ascending; bool ``(number of expressions,)`` under
    the number of levels."""
    levels = np.array([depth(tokens) for tokens in expressions], dtype=int)
    return {str(level): levels == level for level in np.unique(levels)}


def groups_by_operator(expressions: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """By the outermost operator, under its name, and by whether there is a sum anywhere in the
    expression: "with SM" and "without SM". A digit alone is without. Groups without expressions
    are left out."""
    outermost = np.array([tokens[0].lstrip("[") if tokens else "" for tokens in expressions])
    sums = np.array([f"[{SUM}" in tokens for tokens in expressions], dtype=bool)
    groups = {name: outermost == name for name in OPERATORS}
    groups |= {f"with {SUM}": sums, f"without {SUM}": ~sums}
    return {name: chosen for name, chosen in groups.items() if chosen.any()}
