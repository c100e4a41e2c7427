"""Sums over subsets of n items of a given size: elementary symmetric polynomials of exp(scores).

They are computed on logarithms in O(n·k) for an item.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import uniform_of_splitmix
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.simd.logarithms import log_add


class Table(NamedTuple):
    """Workspaces of the largest item.

    Attributes:
        row: the scores of the items.
        sums: [i, j], the log-sum over subsets of j of the first i items.
        drow, dsums: their tangents.
    """

    row: np.ndarray
    sums: np.ndarray
    drow: np.ndarray
    dsums: np.ndarray


@kernel
def _table(longest, largest):
    shape = (longest + 1, min(largest, longest) + 1)
    return Table(np.empty(longest), np.empty(shape), np.zeros(longest), np.zeros(shape))


@kernel
def read_items(scores, n, row):
    """Copy the scores of n items, and return FEASIBLE or NOT_FINITE."""
    wrong = 0
    for i in range(n):
        row[i] = scores[i]
        wrong += 0 if row[i] < np.inf else 1
    return FEASIBLE if wrong == 0 else NOT_FINITE


@kernel
def take_off_largest(row, n):
    """Subtract the largest score of a row, if finite, from each, and return it, else 0.

    A common offset then costs no digits.
    """
    top = -np.inf
    for i in range(n):
        top = max(top, row[i])
    if top == -np.inf:
        return 0.0
    for i in range(n):
        row[i] -= top
    return top


@kernel
def _forward(table, n, k):
    """Write the sums and their tangents."""
    row, sums, drow, dsums = table
    sums[0, :] = -np.inf
    dsums[: n + 1] = 0.0
    sums[0, 0] = 0.0
    for i in range(n):
        sums[i + 1, 0] = 0.0
        for j in range(1, k + 1):
            value, share = log_add(sums[i, j], sums[i, j - 1] + row[i])
            sums[i + 1, j] = value
            change = (1.0 - share) * dsums[i, j]
            if share > 0.0:
                change += share * (dsums[i, j - 1] + drow[i])
            dsums[i + 1, j] = change


@kernel
def _whole(table, n, k, exactly, top):
    """Return log Z less k·top, and its tangent; top was subtracted from each score."""
    sums, dsums = table.sums, table.dsums
    if exactly:
        return sums[n, k], dsums[n, k]
    total, change = sums[n, 0] - k * top, dsums[n, 0]
    for j in range(1, k + 1):
        total, share = log_add(total, sums[n, j] + (j - k) * top)
        change = (1.0 - share) * change + share * dsums[n, j]
    return total, change


@kernel
def _backward(table, n, k, exactly, top, operation, result):
    """Write the marginals, or their tangents for HESSIAN_PRODUCT.

    From the last item to the first, the probability of each size is divided among the subsets with
    and without the item. Probabilities thus sum to 1 for scores of any magnitude.
    """
    row, sums, drow, dsums = table
    flow, dflow = np.zeros(k + 1), np.zeros(k + 1)
    flow[k] = 1.0
    if not exactly:
        highest, total, mean = -np.inf, 0.0, 0.0
        for j in range(k + 1):
            highest = max(highest, sums[n, j] + (j - k) * top)
        for j in range(k + 1):
            flow[j] = math.exp(sums[n, j] + (j - k) * top - highest)
            total += flow[j]
            mean += flow[j] * dsums[n, j]
        for j in range(k + 1):
            flow[j] /= total
            dflow[j] = flow[j] * (dsums[n, j] - mean / total)
    for i in range(n - 1, -1, -1):
        marginal = 0.0
        for j in range(1, k + 1):
            # Before this item, a subset of j items had j or j − 1. flow[j − 1] may be changed,
            # since the loop has read it already.
            own, change = flow[j], dflow[j]
            if own == 0.0:
                continue
            without, chosen = sums[i, j], sums[i, j - 1] + row[i]
            ratio = math.exp(-abs(chosen - without)) if without > -np.inf else 0.0
            if chosen == -np.inf:
                continue
            small, large = ratio / (1.0 + ratio), 1.0 / (1.0 + ratio)
            more, less = (large, small) if chosen >= without else (small, large)
            flow[j] = own * less
            flow[j - 1] += own * more
            if operation == MARGINALS:
                marginal += own * more
                continue
            difference = 0.0
            if more > 0.0 and less > 0.0:
                difference = own * more * less * (dsums[i, j - 1] + drow[i] - dsums[i, j])
            marginal += change * more + difference
            dflow[j] = change * less - difference
            dflow[j - 1] += change * more + difference
        result[i] = min(marginal, 1.0) if operation == MARGINALS else marginal


@kernel
def sum_over_subsets(start, stop, batch, along, operation, results):
    """Compute the sums over subsets as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N)``. Options are k, and whether to choose exactly k items.
    """
    scores, lengths, (largest, exactly) = batch
    log_partition, result, _, status = results
    table = _table(scores.shape[1], largest)
    row, drow = table.row, table.drow
    for b in range(start, stop):
        n = lengths[b]
        k = min(largest, n)
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = read_items(scores[b], n, row)
        if status[b] != FEASIBLE or n == 0:
            continue
        top = take_off_largest(row, n)
        if operation == HESSIAN_PRODUCT:
            for j in range(n):
                drow[j] = along[b, j] if row[j] > -np.inf else 0.0
        _forward(table, n, k)
        total, _ = _whole(table, n, k, exactly, top)
        if total == -np.inf:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = total + k * top
        if operation != LOG_PARTITION:
            _backward(table, n, k, exactly, top, operation, result[b])


@kernel
def best_subsets(start, stop, batch, best, status):
    """Write 1 for the k largest scores, else 0; if not ``exactly``, only for scores above 0."""
    scores, lengths, (largest, exactly) = batch
    row = np.empty(scores.shape[1])
    for b in range(start, stop):
        n = lengths[b]
        k = min(largest, n)
        best[b] = 0
        # The scores are not shifted, since a difference could round two scores to one.
        status[b] = read_items(scores[b], n, row)
        if status[b] != FEASIBLE:
            continue
        order = np.argsort(-row[:n], kind="mergesort")
        for i in range(k):
            score = row[order[i]]
            if exactly and score == -np.inf:
                status[b] = INFEASIBLE
            if exactly or score > 0.0:
                best[b, order[i]] = 1


@kernel
def sample_subsets(start, stop, batch, seeds, samples, status):
    """Draw exact samples.

    From the last item to the first, each is chosen or not, given the number of items left to
    choose.
    """
    scores, lengths, (largest, exactly) = batch
    table = _table(scores.shape[1], largest)
    row, sums = table.row, table.sums
    state = np.empty(1, dtype=np.uint64)
    for b in range(start, stop):
        n = lengths[b]
        k = min(largest, n)
        samples[:, b] = 0
        status[b] = read_items(scores[b], n, row)
        if status[b] != FEASIBLE or n == 0:
            continue
        top = take_off_largest(row, n)
        _forward(table, n, k)
        total, _ = _whole(table, n, k, exactly, top)
        if total == -np.inf:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for draw in range(samples.shape[0]):
            left = k
            if not exactly:
                point, left = uniform_of_splitmix(state), 0
                passed = math.exp(sums[n, 0] - k * top - total)
                while left < k and point >= passed:
                    left += 1
                    passed += math.exp(sums[n, left] + (left - k) * top - total)
                # Rounding at the end must not choose a size without a subset.
                while sums[n, left] == -np.inf:
                    left -= 1
            for i in range(n - 1, -1, -1):
                if left == 0:
                    break
                share = math.exp(sums[i, left - 1] + row[i] - sums[i + 1, left])
                if uniform_of_splitmix(state) < share or sums[i, left] == -np.inf:
                    samples[draw, b, i] = 1
                    left -= 1


FAMILY = Family(
    name="KOfN",
    best=best_subsets,
    total=sum_over_subsets,
    sample=sample_subsets,
    best_shape=tuple,
    best_cost=lambda n: 200 + 30.0 * n,
    total_cost=lambda n: 500 + 300.0 * n,
)
