"""Best assignments by shortest augmenting paths, one item at a time.

The algorithm is from Jonker and Volgenant (1987), and from Crouse (2016) for rectangular problems.
It takes O(n²m) time for n rows and m ≥ n columns.

Costs are minimised. Each column has a price (dual variable) p[j], at most 0, and 0 for free
columns. A matched row is in the column with its lowest reduced cost: cost less price. A row that
may stay unmatched also has a column of its own, of cost 0, which is not stored. A row that is in
this column stays there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd import arrays
from spacy_latent.kernels.autograd.families import check
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE

FREE = -1
ALONE = -2
# Rows may take turns at lowering a price by tiny amounts. This bounds the bids per row, on average.
# The remaining rows are matched by augmenting paths.
BIDS = 2


class Matching(NamedTuple):
    """A matching of rows and columns, with the workspaces of the search for it.

    Attributes:
        matched: int32, the column of each row, FREE, or ALONE if the row stays without one.
        partner, prices: int32 and float64, the row of each column, or FREE; and its price.
        distance, previous: for each column, its distance along the shortest path, and the row
            before it on this path.
        visited: 0, or inf for a column whose distance is final.
        reach: distance + visited, whose minimum is the next column.
    """

    matched: np.ndarray
    partner: np.ndarray
    prices: np.ndarray
    distance: np.ndarray
    visited: np.ndarray
    reach: np.ndarray
    previous: np.ndarray


@kernel
def _smallest(values, count):
    """Return the minimum of the first ``count`` values.

    Four minima are kept at a time, so that a comparison need not wait for the one before.
    """
    a, b, c, d = np.inf, np.inf, np.inf, np.inf
    whole = count // 4 * 4
    for j in range(0, whole, 4):
        a = values[j] if values[j] < a else a
        b = values[j + 1] if values[j + 1] < b else b
        c = values[j + 2] if values[j + 2] < c else c
        d = values[j + 3] if values[j + 3] < d else d
    for j in range(whole, count):
        a = values[j] if values[j] < a else a
    return min(min(a, b), min(c, d))


@kernel
def empty_matching(longest):
    """Return an empty matching of at most ``longest`` rows and columns."""
    whole, floats = np.empty((3, longest), dtype=np.int32), np.empty((4, longest))
    return Matching(whole[0], whole[1], floats[0], floats[1], floats[2], floats[3], whole[2])


@kernel
def _bid(costs, unaligned, row, matching):
    """Put a free row in its cheapest column, by augmenting row reduction.

    The column's price falls until the column costs the row as much as the second cheapest. The
    function returns the row that held the column, or −1.
    """
    matched, partner, prices, reduced = matching[:4]
    row_costs, columns = costs[row], costs.shape[1]
    for j in range(columns):
        reduced[j] = row_costs[j] - prices[j]
    first = _smallest(reduced, columns)
    best = 0
    while reduced[best] != first:
        best += 1
    reduced[best] = np.inf
    second = _smallest(reduced, columns)
    if unaligned and first >= 0.0:
        matched[row] = ALONE
        return -1
    if unaligned and second > 0.0:
        second = 0.0
    if second == np.inf:
        # Without a second choice, the row is left to the augmenting paths.
        return -1
    loser = partner[best]
    if loser >= 0:
        if first == second:
            # The price would stay the same, so the other row would win the column back.
            return -1
        matched[loser] = FREE
    prices[best] -= second - first
    matched[row] = best
    partner[best] = row
    return loser


@kernel
def _augment(costs, unaligned, start, matching):
    """Match one more row by its shortest augmenting path (Dijkstra 1959), if there is one."""
    matched, partner, prices, distance, visited, reach, previous = matching
    columns = costs.shape[1]
    for j in range(columns):
        distance[j] = np.inf
        visited[j] = 0.0
        previous[j] = start
    row, base = start, 0.0
    alone, last = np.inf, start
    sink = -1
    while True:
        row_costs = costs[row]
        if unaligned and -base < alone:
            alone = -base
            last = row
        for j in range(columns):
            through = row_costs[j] - prices[j] - base + visited[j]
            better = through < distance[j]
            distance[j] = through if better else distance[j]
            previous[j] = row if better else previous[j]
            reach[j] = distance[j] + visited[j]
        length = _smallest(reach, columns)
        if alone <= length:
            if alone == np.inf:
                return False
            length = alone
            break
        column = 0
        while reach[column] != length:
            column += 1
        if partner[column] == FREE:
            sink = column
            break
        visited[column] = np.inf
        row = partner[column]
        base = costs[row, column] - prices[column] - length
    for j in range(columns):
        if visited[j] > 0.0:
            prices[j] += distance[j] - length
    if sink < 0:
        sink = matched[last]
        matched[last] = ALONE
        if last == start:
            return True
    while True:
        row = previous[sink]
        partner[sink] = row
        following = matched[row]
        matched[row] = sink
        if row == start:
            return True
        sink = following


@kernel
def free_all(costs, matching):
    """Free all rows and columns, at price 0."""
    for i in range(costs.shape[0]):
        matching.matched[i] = FREE
    for j in range(costs.shape[1]):
        matching.partner[j], matching.prices[j] = FREE, 0.0


@kernel
def keep_cheapest(costs, matching):
    """Free all rows of a matching for other costs, except those in their cheapest column.

    This needs as many rows as columns, none of them unaligned: prices are then unrestricted.
    """
    matched, partner, prices = matching.matched, matching.partner, matching.prices
    for j in range(costs.shape[1]):
        partner[j] = FREE
    for i in range(costs.shape[0]):
        row_costs, cheapest = costs[i], np.inf
        for j in range(costs.shape[1]):
            cost = row_costs[j] - prices[j]
            cheapest = cost if cost < cheapest else cheapest
        best = matched[i]
        if cheapest < np.inf and row_costs[best] - prices[best] == cheapest:
            partner[best] = i
        else:
            matched[i] = FREE


@kernel
def assign(costs, unaligned, matching):
    """Find the cheapest assignment of each row to a different column, if there is one.

    Args:
        costs: ``(rows, columns)`` float64, +inf if forbidden; no more rows than columns, except
            with ``unaligned``.
        unaligned: whether a row may stay without a column, at cost 0.
        matching: from :func:`free_all` or :func:`keep_cheapest`; written.

    Returns:
        Whether there is an assignment.
    """
    rows, matched, bids = costs.shape[0], matching.matched, 0
    for i in range(rows):
        row = i if matched[i] == FREE else -1
        while row >= 0 and bids < BIDS * rows:
            bids += 1
            row = _bid(costs, unaligned, row, matching)
    for i in range(rows):
        if matched[i] == FREE and not _augment(costs, unaligned, i, matching):
            return False
    return True


@kernel
def read_costs(scores, rows, columns, result):
    """Write −scores as float64, transposed if there are more rows than columns.

    The function returns FEASIBLE or NOT_FINITE.
    """
    for i in range(rows):
        for j in range(columns):
            value = scores[i, j]
            # Written so that it holds for NaN, too.
            if not value < np.inf:
                return NOT_FINITE
            if rows <= columns:
                result[i, j] = -value
            else:
                result[j, i] = -value
    return FEASIBLE


@kernel
def best_assignments(start, stop, batch, best, status):
    """Write 1 to the cells of the best one-to-one alignments of the items start .. stop−1.

    Scores are ``(B, N, M)``, lengths ``(B, 2)``. The option is ``unaligned``, see :func:`assign`.
    ``best`` has the shape of the scores, and is 0 at the call. The status is only written if it is
    not FEASIBLE.
    """
    scores, lengths, (unaligned,) = batch
    longest = 1
    for b in range(start, stop):
        longest = max(longest, lengths[b, 0], lengths[b, 1])
    workspace, matching = np.empty(longest * longest), empty_matching(longest)
    matched = matching.matched
    for b in range(start, stop):
        rows, columns = lengths[b, 0], lengths[b, 1]
        short, long = min(rows, columns), max(rows, columns)
        costs = workspace[: short * long].reshape((short, long))
        read = read_costs(scores[b], rows, columns, costs)
        if read != FEASIBLE:
            status[b] = read
            continue
        free_all(costs, matching)
        if not assign(costs, unaligned, matching):
            status[b] = INFEASIBLE
            continue
        for i in range(short):
            if matched[i] >= 0:
                if rows <= columns:
                    best[b, i, matched[i]] = 1.0
                else:
                    best[b, matched[i], i] = 1.0


def assignment_costs(sizes: np.ndarray) -> np.ndarray:
    """Return the estimated nanoseconds of items of ``sizes`` (B, 2), for dividing a batch."""
    return 500.0 + 7.0 * sizes.min(1) * sizes.max(1)


@torch_operator("best_alignments")
def best_alignments(scores: Tensor, lengths: Tensor, unaligned: bool, name: str) -> Tensor:
    """Return the best one-to-one alignments, 0/1, like ``scores``.

    Tensors on a GPU are solved on the CPU and sent back.
    """
    matrix, sizes = arrays.read(scores, lengths)
    best, status = np.zeros_like(matrix), np.zeros(len(matrix), dtype=np.int8)
    batch = (matrix, sizes, (unaligned,))
    spread(best_assignments, assignment_costs(sizes), (batch, best, status))
    check(name, status)
    return send(torch.from_numpy(best), scores.device)


@best_alignments.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)
