"""The oracle of dependency trees (see kernels.sparsemap.active_set).

Parts are arcs, head · (n + 1) + modifier. An atom has n of them, in the order of the modifiers. Up
to LANES sentences are solved at a time, so that their best projective trees can be found in SIMD
lanes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.arborescences import arborescence
from spacy_latent.kernels.arborescences.arborescence import best_arborescence
from spacy_latent.kernels.core.compilation import implements, kernel
from spacy_latent.kernels.core.status import FEASIBLE
from spacy_latent.kernels.simd.arc_scores import read_arc_scores
from spacy_latent.kernels.simd.lanes import LONGEST
from spacy_latent.kernels.simd.vector import LANES, aligned_empty
from spacy_latent.kernels.spans import eisner
from spacy_latent.kernels.spans.eisner import best_projective_tree
from spacy_latent.kernels.spans.eisner_lanes import best_trees_in_lanes, charts_of_trees, set_scores
from spacy_latent.kernels.sparsemap.active_set import (
    find_best,
    padded_part,
    prepare,
    read_scores,
    sizes_of,
)

arborescence_integers = arborescence.integer_workspace_size
arborescence_floats = arborescence.float_workspace_size
projective_integers = eisner.integer_workspace_size
projective_floats = eisner.float_workspace_size

# Minimum number of sentences at a time, out of LANES, for which SIMD lanes are faster.
LEAST_IN_LANES = 3


class TreeOracle(NamedTuple):
    """An oracle of dependency trees.

    Attributes:
        direction, max_arc_length: the allowed arcs, see kernels.simd.arc_scores.is_arc.
        by_slot: see kernels.sparsemap.support.let_in.
    """

    projective: bool
    direction: int
    max_arc_length: int
    single_root: int
    by_slot: bool = True


# Lower bound of scores after subtraction of the best, so that sums over the arcs of a tree are
# finite.
LOWEST = -1e300


@kernel
def _take_off_common(square, n):
    """Subtract the best score of each modifier's heads from all scores of the modifier.

    Each tree has exactly one head per modifier, so the solution stays the same. A common offset
    then costs no digits.
    """
    for m in range(1, n + 1):
        top = -np.inf
        for h in range(n + 1):
            top = max(top, square[h, m])
        if top > -np.inf and top < np.inf:
            for h in range(n + 1):
                if square[h, m] > -np.inf:
                    square[h, m] = max(square[h, m] - top, LOWEST)


@implements(sizes_of, TreeOracle)
def _sizes_of(oracle, lengths, b):
    return (lengths[b] + 1) * (lengths[b] + 1), lengths[b]


@implements(prepare, TreeOracle)
def _prepare(oracle, start, stop, lengths):
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    in_lanes = oracle.projective and stop - start >= LEAST_IN_LANES and 0 < longest <= LONGEST
    places = LANES if in_lanes else 1
    integers = max(arborescence_integers(longest), projective_integers(longest))
    floats = max(arborescence_floats(longest), projective_floats(longest))
    charts = charts_of_trees(longest if in_lanes else 0)
    heads = np.empty((places, longest + 2), dtype=np.int32)
    rows, sizes = np.empty((2, LANES), np.int64), np.full(places, -1)
    spaces = np.empty(integers, dtype=np.int32), aligned_empty(floats)
    return places, (*spaces, charts, heads, rows, sizes)


@implements(read_scores, TreeOracle)
def _read_scores(oracle, scores, lengths, b, result):
    n = lengths[b]
    square = result[: (n + 1) * (n + 1)].reshape((n + 1, n + 1))
    status = read_arc_scores(scores, n, oracle.direction, oracle.max_arc_length, square)
    _take_off_common(square, n)
    return status


@implements(find_best, TreeOracle)
def _find_best(oracle, lengths, items, calls, gradients, workspace, candidates, solved):
    integers, floats, charts, heads, rows, sizes = workspace
    open_items, longest = 0, 0
    for place in range(len(items)):
        sizes[place] = lengths[items[place]] if items[place] >= 0 else -1
        open_items += items[place] >= 0
        longest = max(longest, sizes[place])
    together = len(items) > 1 and open_items >= LEAST_IN_LANES and longest > 0
    if together:
        set_scores(charts, gradients, sizes, longest, rows)
        best_trees_in_lanes(sizes, longest, oracle.single_root, charts, heads, integers, solved)
    for place in range(len(items)):
        n = sizes[place]
        if n < 0:
            continue
        if not together:
            square = gradients[place, : (n + 1) * (n + 1)].reshape((n + 1, n + 1))
            if oracle.projective:
                solved[place] = best_projective_tree(
                    square, n, oracle.single_root, heads[place], integers, floats
                )
            else:
                search = best_arborescence(
                    square, n, oracle.single_root, heads[place], integers, floats
                )
                solved[place] = search == FEASIBLE
        for m in range(n):
            candidates[place, m] = heads[place, m + 1] * (n + 1) + m + 1
        candidates[place, n:] = -1


@implements(padded_part, TreeOracle)
def _padded_part(oracle, lengths, b, stride, part):
    size = lengths[b] + 1
    return part // size * stride + part % size
