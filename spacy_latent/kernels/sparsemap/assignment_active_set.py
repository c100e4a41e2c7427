"""The oracle of one-to-one alignments (see kernels.sparsemap.active_set).

Parts are cells, row · columns + column, in an array with no more rows than columns. Scores with
more rows than columns are transposed. Consecutive searches have similar scores, so a search starts
from the prices of the one before, if prices are unrestricted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.alignments.assignment import (
    assign,
    empty_matching,
    free_all,
    keep_cheapest,
    read_costs,
)
from spacy_latent.kernels.core.compilation import implements
from spacy_latent.kernels.sparsemap.active_set import (
    find_best,
    padded_part,
    prepare,
    read_scores,
    sizes_of,
)


class AssignmentOracle(NamedTuple):
    """An oracle of one-to-one alignments.

    Attributes:
        unaligned: whether words may stay unmatched.
        by_slot: the negation of ``unaligned`` (see kernels.sparsemap.support.let_in).
    """

    unaligned: bool
    by_slot: bool


@implements(sizes_of, AssignmentOracle)
def _sizes_of(oracle, lengths, b):
    return lengths[b, 0] * lengths[b, 1], min(lengths[b, 0], lengths[b, 1])


@implements(prepare, AssignmentOracle)
def _prepare(oracle, start, stop, lengths):
    longest, cells = 1, 1
    for b in range(start, stop):
        longest = max(longest, lengths[b, 0], lengths[b, 1])
        cells = max(cells, lengths[b, 0] * lengths[b, 1])
    return 1, (np.empty(cells), empty_matching(longest))


@implements(read_scores, AssignmentOracle)
def _read_scores(oracle, scores, lengths, b, result):
    rows, columns = min(lengths[b, 0], lengths[b, 1]), max(lengths[b, 0], lengths[b, 1])
    flat = result[: rows * columns]
    status = read_costs(scores, lengths[b, 0], lengths[b, 1], flat.reshape((rows, columns)))
    for part in range(rows * columns):
        flat[part] = -flat[part]
    return status


@implements(find_best, AssignmentOracle)
def _find_best(oracle, lengths, items, calls, gradients, workspace, candidates, solved):
    memory, matching = workspace
    b, matched = items[0], matching.matched
    rows, columns = min(lengths[b, 0], lengths[b, 1]), max(lengths[b, 0], lengths[b, 1])
    flat = memory[: rows * columns]
    for part in range(rows * columns):
        flat[part] = -gradients[0, part]
    costs = flat.reshape((rows, columns))
    if calls[0] > 0 and rows == columns and not oracle.unaligned:
        keep_cheapest(costs, matching)
    else:
        free_all(costs, matching)
    solved[0] = assign(costs, oracle.unaligned, matching)
    candidates[0] = -1
    parts = 0
    for i in range(rows):
        if matched[i] >= 0:
            candidates[0, parts] = i * columns + matched[i]
            parts += 1


@implements(padded_part, AssignmentOracle)
def _padded_part(oracle, lengths, b, stride, part):
    columns = max(lengths[b, 0], lengths[b, 1])
    row, column = part // columns, part % columns
    if lengths[b, 0] > lengths[b, 1]:
        row, column = column, row
    return row * stride + column
