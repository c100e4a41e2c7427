"""Sums, maxima and samples of monotone alignments, O(n·m) for an item; sums are logarithms.

Alignments are paths of dynamic time warping, or sets of matches with two states (see the README).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import choose, uniform_of_splitmix
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE

WARPING, MATCHING = 0, 1


class Grid(NamedTuple):
    """Workspaces of the largest item; of smaller ones, the first rows and columns are used.

    Attributes:
        s: (rows, columns), the scores of the cells.
        sums: (2, rows + 2, columns + 2), log-sums over the ways to a point of the grid, in either
            state. Warping only uses the first state, with the log-sums over paths up to and
            including cell (i − 1, j − 1).
        shares: (5, rows + 2, columns + 2), the probabilities of the steps to a point, given the
            point and its state. Warping uses three: from the row before, from the column before,
            diagonally. Matching uses five, three into the first state (past a row, by a match from
            either state) and two into the second, past a column (from either state).
        flow: like sums, the probability of each point and state.
        ds, dsums, dflow: tangents, for a Hessian product only.
    """

    s: np.ndarray
    sums: np.ndarray
    shares: np.ndarray
    flow: np.ndarray
    ds: np.ndarray
    dsums: np.ndarray
    dflow: np.ndarray


@kernel
def in_window(i, j, rows, columns, window):
    """Return whether cell (i, j) is within ``window`` steps of the diagonal; true if window < 0."""
    if window < 0:
        return True
    longest = max(rows - 1, columns - 1, 1)
    return abs(i * (columns - 1) - j * (rows - 1)) <= window * longest


@kernel
def read_cells(scores, rows, columns, window, s):
    """Copy the cells of an item, −inf outside the window, and return the status of the item."""
    wrong = 0
    for i in range(rows):
        for j in range(columns):
            if in_window(i, j, rows, columns, window):
                value = float(scores[i, j])
                wrong += 0 if value < np.inf else 1
                s[i, j] = value
            else:
                s[i, j] = -np.inf
    return FEASIBLE if wrong == 0 else NOT_FINITE


@kernel
def read_changes(along, s, rows, columns, ds):
    """Copy the tangents ``along`` of the cells of an item to ``ds``, 0 if a cell is forbidden."""
    for i in range(rows):
        for j in range(columns):
            ds[i, j] = along[i, j] if s[i, j] > -np.inf else 0.0


@kernel
def _sum(a, b, c):
    """Return log(e^a + e^b + e^c), and the share of each term in the sum; all 0 if all are −inf."""
    top = max(a, max(b, c))
    if top == -np.inf:
        return -np.inf, 0.0, 0.0, 0.0
    a, b, c = math.exp(a - top), math.exp(b - top), math.exp(c - top)
    total = a + b + c
    return top + math.log(total), a / total, b / total, c / total


@kernel
def _forward(grid, rows, columns, moves, operation):
    """Run the forward pass, and return log Z."""
    s, sums, shares = grid.s, grid.sums, grid.shares
    ds, dsums = grid.ds, grid.dsums
    sums[:, : rows + 1, : columns + 1] = -np.inf
    slopes = operation == HESSIAN_PRODUCT
    if slopes:
        dsums[:, : rows + 1, : columns + 1] = 0.0
    first, dfirst = sums[0], dsums[0]
    if moves == WARPING:
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                if i == 1 and j == 1:
                    value, up, left, both = 0.0, 0.0, 0.0, 0.0
                else:
                    value, up, left, both = _sum(
                        first[i - 1, j], first[i, j - 1], first[i - 1, j - 1]
                    )
                value += s[i - 1, j - 1]
                first[i, j] = value
                shares[0, i, j], shares[1, i, j], shares[2, i, j] = up, left, both
                if slopes and value > -np.inf:
                    change = up * dfirst[i - 1, j] + left * dfirst[i, j - 1]
                    dfirst[i, j] = change + both * dfirst[i - 1, j - 1] + ds[i - 1, j - 1]
        return first[rows, columns]
    second, dsecond = sums[1], dsums[1]
    first[0, 0] = 0.0
    for i in range(rows + 1):
        for j in range(columns + 1):
            if i > 0:
                matched, other = -np.inf, -np.inf
                if j > 0 and s[i - 1, j - 1] > -np.inf:
                    matched = first[i - 1, j - 1] + s[i - 1, j - 1]
                    other = second[i - 1, j - 1] + s[i - 1, j - 1]
                value, passed, a, b = _sum(first[i - 1, j], matched, other)
                first[i, j] = value
                shares[0, i, j], shares[1, i, j], shares[2, i, j] = passed, a, b
                if slopes:
                    change = passed * dfirst[i - 1, j]
                    if a + b > 0.0:
                        change += a * dfirst[i - 1, j - 1] + b * dsecond[i - 1, j - 1]
                        change += (a + b) * ds[i - 1, j - 1]
                    dfirst[i, j] = change
            if j > 0:
                value, passed, b, _ = _sum(first[i, j - 1], second[i, j - 1], -np.inf)
                second[i, j] = value
                shares[3, i, j], shares[4, i, j] = passed, b
                if slopes:
                    dsecond[i, j] = passed * dfirst[i, j - 1] + b * dsecond[i, j - 1]
    return _sum(first[rows, columns], second[rows, columns], -np.inf)[0]


@kernel
def _backward(grid, rows, columns, moves, operation, result):
    """Write the marginals, or their tangents.

    From the last point to the first, each point divides its probability among its predecessors.
    Probabilities thus sum to 1 for scores of any magnitude. Products of forward and backward sums
    would not.
    """
    sums, shares, flow = grid.sums, grid.shares, grid.flow
    ds, dsums, dflow = grid.ds, grid.dsums, grid.dflow
    slopes = operation == HESSIAN_PRODUCT
    flow[:, : rows + 1, : columns + 1] = 0.0
    first, dfirst = sums[0], dsums[0]
    of_first, d_of_first = flow[0], dflow[0]
    if slopes:
        dflow[:, : rows + 1, : columns + 1] = 0.0
    if moves == WARPING:
        of_first[rows, columns] = 1.0
        for i in range(rows, 0, -1):
            for j in range(columns, 0, -1):
                own = of_first[i, j]
                if slopes:
                    result[i - 1, j - 1] = d_of_first[i, j]
                else:
                    result[i - 1, j - 1] = own
                if own == 0.0 or (i == 1 and j == 1):
                    continue
                up, left, both = shares[0, i, j], shares[1, i, j], shares[2, i, j]
                of_first[i - 1, j] += own * up
                of_first[i, j - 1] += own * left
                of_first[i - 1, j - 1] += own * both
                if slopes:
                    # Tangent of a share: the share times the predecessor's tangent less the mean of
                    # all three.
                    change = d_of_first[i, j] - own * (dfirst[i, j] - ds[i - 1, j - 1])
                    d_of_first[i - 1, j] += (change + own * dfirst[i - 1, j]) * up
                    d_of_first[i, j - 1] += (change + own * dfirst[i, j - 1]) * left
                    d_of_first[i - 1, j - 1] += (change + own * dfirst[i - 1, j - 1]) * both
        return
    second, dsecond = sums[1], dsums[1]
    of_second, d_of_second = flow[1], dflow[1]
    _, whole, other, _ = _sum(first[rows, columns], second[rows, columns], -np.inf)
    of_first[rows, columns], of_second[rows, columns] = whole, other
    if slopes:
        mean = whole * dfirst[rows, columns] + other * dsecond[rows, columns]
        d_of_first[rows, columns] = (dfirst[rows, columns] - mean) * whole
        d_of_second[rows, columns] = (dsecond[rows, columns] - mean) * other
    for i in range(rows, -1, -1):
        for j in range(columns, -1, -1):
            own = of_second[i, j]
            if own > 0.0:
                # The last step passed a column.
                a, b = shares[3, i, j], shares[4, i, j]
                of_first[i, j - 1] += own * a
                of_second[i, j - 1] += own * b
                if slopes:
                    change = d_of_second[i, j] - own * dsecond[i, j]
                    d_of_first[i, j - 1] += (change + own * dfirst[i, j - 1]) * a
                    d_of_second[i, j - 1] += (change + own * dsecond[i, j - 1]) * b
            own = of_first[i, j]
            if own == 0.0 or i == 0:
                continue
            # The last step passed a row, or was a match from one of two states.
            passed, a, b = shares[0, i, j], shares[1, i, j], shares[2, i, j]
            of_first[i - 1, j] += own * passed
            if slopes:
                change = d_of_first[i, j] - own * dfirst[i, j]
                d_of_first[i - 1, j] += (change + own * dfirst[i - 1, j]) * passed
            if a + b == 0.0:
                continue
            of_first[i - 1, j - 1] += own * a
            of_second[i - 1, j - 1] += own * b
            if slopes:
                score = ds[i - 1, j - 1]
                d_a = (change + own * (dfirst[i - 1, j - 1] + score)) * a
                d_b = (change + own * (dsecond[i - 1, j - 1] + score)) * b
                d_of_first[i - 1, j - 1] += d_a
                d_of_second[i - 1, j - 1] += d_b
                result[i - 1, j - 1] = d_a + d_b
            else:
                result[i - 1, j - 1] = own * (a + b)


@kernel
def longest_sizes(start, stop, lengths):
    """Return the largest number of rows and columns of the items."""
    rows, columns = 0, 0
    for b in range(start, stop):
        rows = max(rows, lengths[b, 0])
        columns = max(columns, lengths[b, 1])
    return rows, columns


@kernel
def _grid(rows, columns):
    cells, points = (rows, columns), (2, rows + 2, columns + 2)
    return Grid(
        *(np.empty(cells), np.empty(points), np.empty((5, *points[1:])), np.empty(points)),
        *(np.zeros(cells), np.empty(points), np.empty(points)),
    )


@kernel
def sum_over_alignments(start, stop, batch, along, operation, results):
    """Compute the sums over alignments as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N, M)``, lengths ``(B, 2)``.
    """
    scores, lengths, (moves, window) = batch
    log_partition, result, _, status = results
    grid = _grid(*longest_sizes(start, stop, lengths))
    for b in range(start, stop):
        rows, columns = lengths[b, 0], lengths[b, 1]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = read_cells(scores[b], rows, columns, window, grid.s)
        if status[b] != FEASIBLE or rows == 0 or columns == 0:
            continue
        if operation == HESSIAN_PRODUCT:
            read_changes(along[b], grid.s, rows, columns, grid.ds)
        total = _forward(grid, rows, columns, moves, operation)
        if total == -np.inf:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = total
        if operation != LOG_PARTITION:
            _backward(grid, rows, columns, moves, operation, result[b])


@kernel
def best_alignments(start, stop, batch, best, status):
    """Write 0/1 for each cell of the best alignment.

    At a tie, a path takes the diagonal step, else the step to the row before. Two words stay
    unmatched if their match does not improve the score.
    """
    scores, lengths, (moves, window) = batch
    most_rows, most_columns = longest_sizes(start, stop, lengths)
    s = np.empty((most_rows, most_columns))
    top = np.empty((most_rows + 1, most_columns + 1))
    for b in range(start, stop):
        rows, columns = lengths[b, 0], lengths[b, 1]
        best[b] = 0
        status[b] = read_cells(scores[b], rows, columns, window, s)
        if status[b] != FEASIBLE or rows == 0 or columns == 0:
            continue
        if moves == MATCHING:
            top[0, : columns + 1] = 0.0
            for i in range(1, rows + 1):
                top[i, 0] = 0.0
                for j in range(1, columns + 1):
                    value = max(top[i - 1, j], top[i, j - 1])
                    top[i, j] = max(value, top[i - 1, j - 1] + s[i - 1, j - 1])
            i, j = rows, columns
            while i > 0 and j > 0:
                if top[i, j] == top[i - 1, j]:
                    i -= 1
                elif top[i, j] == top[i, j - 1]:
                    j -= 1
                else:
                    best[b, i - 1, j - 1] = 1
                    i -= 1
                    j -= 1
            continue
        top[: rows + 1, 0] = -np.inf
        top[0, : columns + 1] = -np.inf
        top[0, 0] = 0.0
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                value = max(top[i - 1, j - 1], max(top[i - 1, j], top[i, j - 1]))
                top[i, j] = value + s[i - 1, j - 1]
            # At first only the corner can be reached. Afterwards it must not be.
            top[0, 0] = -np.inf
        if top[rows, columns] == -np.inf:
            status[b] = INFEASIBLE
            continue
        i, j = rows, columns
        while True:
            best[b, i - 1, j - 1] = 1
            if i == 1 and j == 1:
                break
            value = max(top[i - 1, j - 1], max(top[i - 1, j], top[i, j - 1]))
            if top[i - 1, j - 1] == value:
                i -= 1
                j -= 1
            elif top[i - 1, j] == value:
                i -= 1
            else:
                j -= 1


@kernel
def sample_alignments(start, stop, batch, seeds, samples, status):
    """Draw exact samples ``(K, B, N, M)``, 0/1, from the last cell back."""
    scores, lengths, (moves, window) = batch
    grid = _grid(*longest_sizes(start, stop, lengths))
    s, sums = grid.s, grid.sums
    state, weights = np.empty(1, dtype=np.uint64), np.empty(3)
    for b in range(start, stop):
        rows, columns = lengths[b, 0], lengths[b, 1]
        samples[:, b] = 0
        status[b] = read_cells(scores[b], rows, columns, window, s)
        if status[b] != FEASIBLE or rows == 0 or columns == 0:
            continue
        total = _forward(grid, rows, columns, moves, LOG_PARTITION)
        if total == -np.inf:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for draw in range(samples.shape[0]):
            z = samples[draw, b]
            i, j = rows, columns
            if moves == WARPING:
                while True:
                    z[i - 1, j - 1] = 1
                    if i == 1 and j == 1:
                        break
                    weights[0] = sums[0, i - 1, j - 1]
                    weights[1] = sums[0, i - 1, j]
                    weights[2] = sums[0, i, j - 1]
                    move = choose(weights, 3, uniform_of_splitmix(state))
                    i -= move != 2
                    j -= move != 1
                continue
            weights[0], weights[1] = sums[0, i, j], sums[1, i, j]
            at = choose(weights, 2, uniform_of_splitmix(state))
            while i > 0 or j > 0:
                if at == 1:
                    # The step passed a column. The state before it may be either.
                    j -= 1
                else:
                    weights[0] = sums[0, i - 1, j]
                    weights[1] = -np.inf
                    if j > 0 and s[i - 1, j - 1] > -np.inf:
                        either, _, _, _ = _sum(
                            sums[0, i - 1, j - 1], sums[1, i - 1, j - 1], -np.inf
                        )
                        weights[1] = either + s[i - 1, j - 1]
                    if choose(weights, 2, uniform_of_splitmix(state)) == 0:
                        i -= 1
                        continue
                    z[i - 1, j - 1] = 1
                    i -= 1
                    j -= 1
                weights[0], weights[1] = sums[0, i, j], sums[1, i, j]
                at = choose(weights, 2, uniform_of_splitmix(state))


FAMILY = Family(
    name="MonotoneAlignment",
    best=best_alignments,
    total=sum_over_alignments,
    sample=sample_alignments,
    best_shape=tuple,
    best_cost=lambda n: 300.0 + 6.0 * n[:, 0] * n[:, 1],
    total_cost=lambda n: 500.0 + 80.0 * n[:, 0] * n[:, 1],
)
