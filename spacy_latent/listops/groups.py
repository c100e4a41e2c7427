"""Groups of ListOps expressions that are scored together: by depth and by operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spacy_latent.listops.expressions import OPERATORS, depth

# A sum passes on every mistake of its arguments, and its table is the largest to learn. The
# groups distinguish errors in sums from errors in trees.
SUM = "SM"


def groups_by_depth(expressions: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Group expressions by the depth of their nested lists.

    Returns:
        For each depth, ascending, a bool mask ``(number of expressions,)``.
    """
    levels = np.array([depth(tokens) for tokens in expressions], dtype=int)
    return {str(level): levels == level for level in np.unique(levels)}


def groups_by_operator(expressions: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Group expressions by the outermost operator, and by the presence of a sum.

    The latter groups are "with SM" and "without SM". A single digit is without. Groups without
    expressions are left out.
    """
    outermost = np.array([tokens[0].lstrip("[") if tokens else "" for tokens in expressions])
    sums = np.array([f"[{SUM}" in tokens for tokens in expressions], dtype=bool)
    groups = {name: outermost == name for name in OPERATORS}
    groups |= {f"with {SUM}": sums, f"without {SUM}": ~sums}
    return {name: chosen for name, chosen in groups.items() if chosen.any()}
