"""Sums over choices of items in few runs of neighbours, on logarithms, O(n · k · runs) for an item.

After each position, a state holds the number of chosen items so far, their number of runs, and
whether the item at this position was chosen. From the last position to the first, the probability
of each state is divided between the two states that can precede it. This needs only the forward
sums.

Each bound has two names. ``largest`` and ``most_runs`` belong to the structure. ``k`` and ``runs``
also take the length of an item into account.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.choices.subsets import read_items, take_off_largest
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import uniform_of_splitmix
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE
from spacy_latent.kernels.simd.logarithms import log_add


class Table(NamedTuple):
    """Workspaces of the largest item.

    Attributes:
        row: the scores of the items.
        sums: [i, items, used, last], the log-sum over the ways to a state after i items.
        flows: (2, items, used, last), the probabilities of the states at a position and at the one
            before. The first ones are those after the last item.
        drow, dsums, dflows: tangents.
    """

    row: np.ndarray
    sums: np.ndarray
    flows: np.ndarray
    drow: np.ndarray
    dsums: np.ndarray
    dflows: np.ndarray


@kernel
def _table(longest, largest, most_runs):
    most = min(largest, longest)
    shape = (longest + 1, most + 1, min(most_runs, most) + 1, 2)
    flows = (2, *shape[1:])
    return Table(
        *(np.empty(longest), np.empty(shape), np.empty(flows)),
        *(np.zeros(longest), np.zeros(shape), np.empty(flows)),
    )


@kernel
def _before(items, used, last):
    """Return the counts of items and of runs in the two states that can precede a state.

    Args:
        last: 1 if the item itself is chosen. It then begins a run or continues one.

    Returns:
        The number of items; the number of runs if the item before was not chosen; and the number of
        runs if it was.
    """
    if last == 0:
        return items, used, used
    return items - 1, used - 1, used


@kernel
def _forward(table, n, k, runs):
    """Write the sums and their tangents."""
    row, sums, drow, dsums = table.row, table.sums, table.drow, table.dsums
    sums[: n + 1] = -np.inf
    dsums[: n + 1] = 0.0
    sums[0, 0, 0, 0] = 0.0
    for i in range(n):
        for items in range(min(k, i + 1) + 1):
            for used in range(min(runs, items) + 1):
                for last in range(2 if items > 0 and used > 0 else 1):
                    earlier, begun, running = _before(items, used, last)
                    value, share = log_add(sums[i, earlier, begun, 0], sums[i, earlier, running, 1])
                    if value == -np.inf:
                        continue
                    change = 0.0
                    if share < 1.0:
                        change += (1.0 - share) * dsums[i, earlier, begun, 0]
                    if share > 0.0:
                        change += share * dsums[i, earlier, running, 1]
                    if last == 1:
                        value += row[i]
                        change += drow[i]
                    sums[i + 1, items, used, last] = value
                    dsums[i + 1, items, used, last] = change if value > -np.inf else 0.0


@kernel
def _ends(table, n, k, runs, exactly, top):
    """Write the probabilities of the states after the last item, and their tangents.

    They sum to 1 even if scores are so large that the sums have few correct digits. log Z less k ·
    top is returned; top was subtracted from each score.
    """
    sums, dsums, flow, dflow = table.sums, table.dsums, table.flows[0], table.dflows[0]
    flow[:] = 0.0
    dflow[:] = 0.0
    fewest = k if exactly else 0
    highest = -np.inf
    for items in range(fewest, k + 1):
        for used in range(runs + 1):
            for last in range(2):
                highest = max(highest, sums[n, items, used, last] + (items - k) * top)
    if highest == -np.inf:
        return highest
    total, mean = 0.0, 0.0
    for items in range(fewest, k + 1):
        for used in range(runs + 1):
            for last in range(2):
                own = math.exp(sums[n, items, used, last] + (items - k) * top - highest)
                flow[items, used, last] = own
                total += own
                mean += own * dsums[n, items, used, last]
    mean /= total
    for items in range(fewest, k + 1):
        for used in range(runs + 1):
            for last in range(2):
                own = flow[items, used, last] / total
                flow[items, used, last] = own
                dflow[items, used, last] = own * (dsums[n, items, used, last] - mean)
    return highest + math.log(total)


@kernel
def _backward(table, n, k, runs, operation, result):
    """Write the marginals, or their tangents, after :func:`_ends`."""
    sums, flows, dsums, dflows = table.sums, table.flows, table.dsums, table.dflows
    present = 0
    for i in range(n - 1, -1, -1):
        flow, dflow = flows[present], dflows[present]
        present = 1 - present
        ahead, dahead = flows[present], dflows[present]
        ahead[:], dahead[:] = 0.0, 0.0
        marginal = 0.0
        for items in range(min(k, i + 1) + 1):
            for used in range(min(runs, items) + 1):
                for last in range(2):
                    own, change = flow[items, used, last], dflow[items, used, last]
                    if own == 0.0 and change == 0.0:
                        continue
                    if last == 1:
                        marginal += own if operation == MARGINALS else change
                    earlier, begun, running = _before(items, used, last)
                    apart, joined = sums[i, earlier, begun, 0], sums[i, earlier, running, 1]
                    _, share = log_add(apart, joined)
                    ahead[earlier, begun, 0] += own * (1.0 - share)
                    ahead[earlier, running, 1] += own * share
                    if operation == HESSIAN_PRODUCT:
                        moved = 0.0
                        if 0.0 < share < 1.0:
                            moved = own * share * (1.0 - share)
                            moved *= dsums[i, earlier, running, 1] - dsums[i, earlier, begun, 0]
                        dahead[earlier, begun, 0] += change * (1.0 - share) - moved
                        dahead[earlier, running, 1] += change * share + moved
        result[i] = min(marginal, 1.0) if operation == MARGINALS else marginal


@kernel
def sum_over_runs(start, stop, batch, along, operation, results):
    """Compute the sums over runs as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N)``. Options are k, the bound of the number of runs, and whether to choose
    exactly k.
    """
    scores, lengths, (largest, most_runs, exactly) = batch
    log_partition, result, _, status = results
    table = _table(scores.shape[1], largest, most_runs)
    row, drow = table.row, table.drow
    for b in range(start, stop):
        n = lengths[b]
        k = min(largest, n)
        runs = min(most_runs, k)
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = read_items(scores[b], n, row)
        if status[b] != FEASIBLE or n == 0:
            continue
        if operation == HESSIAN_PRODUCT:
            for i in range(n):
                drow[i] = along[b, i] if row[i] > -np.inf else 0.0
        top = take_off_largest(row, n)
        _forward(table, n, k, runs)
        whole = _ends(table, n, k, runs, exactly, top)
        if whole == -np.inf:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = whole + k * top
        if operation != LOG_PARTITION:
            _backward(table, n, k, runs, operation, result[b])


@kernel
def best_runs(start, stop, batch, best, status):
    """Write 1 for the items of the best choice, else 0."""
    scores, lengths, (largest, most_runs, exactly) = batch
    table = _table(scores.shape[1], largest, most_runs)
    row, totals = table.row, table.sums
    for b in range(start, stop):
        n = lengths[b]
        k = min(largest, n)
        runs = min(most_runs, k)
        best[b] = 0
        status[b] = read_items(scores[b], n, row)
        if status[b] != FEASIBLE:
            continue
        totals[: n + 1] = -np.inf
        totals[0, 0, 0, 0] = 0.0
        for i in range(n):
            for items in range(min(k, i + 1) + 1):
                for used in range(min(runs, items) + 1):
                    for last in range(2 if items > 0 and used > 0 else 1):
                        earlier, begun, running = _before(items, used, last)
                        value = max(totals[i, earlier, begun, 0], totals[i, earlier, running, 1])
                        totals[i + 1, items, used, last] = value + (row[i] if last == 1 else 0.0)
        total, items, used, last = -np.inf, 0, 0, 0
        for j in range(k if exactly else 0, k + 1):
            for r in range(runs + 1):
                for chosen in range(2):
                    if totals[n, j, r, chosen] > total:
                        total, items, used, last = totals[n, j, r, chosen], j, r, chosen
        if total == -np.inf:
            status[b] = INFEASIBLE
            continue
        for i in range(n - 1, -1, -1):
            best[b, i] = last
            earlier, begun, running = _before(items, used, last)
            joined = totals[i, earlier, running, 1] > totals[i, earlier, begun, 0]
            items = earlier
            used, last = (running, 1) if joined else (begun, 0)


@kernel
def sample_runs(start, stop, batch, seeds, samples, status):
    """Draw exact samples: from the last item to the first, each state given the next."""
    scores, lengths, (largest, most_runs, exactly) = batch
    table = _table(scores.shape[1], largest, most_runs)
    row, sums, ends = table.row, table.sums, table.flows[0]
    state = np.empty(1, dtype=np.uint64)
    for b in range(start, stop):
        n = lengths[b]
        k = min(largest, n)
        runs = min(most_runs, k)
        samples[:, b] = 0
        status[b] = read_items(scores[b], n, row)
        if status[b] != FEASIBLE or n == 0:
            continue
        top = take_off_largest(row, n)
        _forward(table, n, k, runs)
        if _ends(table, n, k, runs, exactly, top) == -np.inf:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for draw in range(samples.shape[0]):
            point = uniform_of_splitmix(state)
            passed, items, used, last = 0.0, 0, 0, 0
            for j in range(k if exactly else 0, k + 1):
                for r in range(runs + 1):
                    for chosen in range(2):
                        share = ends[j, r, chosen]
                        # Rounding must not lead to a state that cannot be reached.
                        if share > 0.0 and passed <= point:
                            items, used, last = j, r, chosen
                        passed += share
            for i in range(n - 1, -1, -1):
                samples[draw, b, i] = last
                earlier, begun, running = _before(items, used, last)
                _, share = log_add(sums[i, earlier, begun, 0], sums[i, earlier, running, 1])
                joined = uniform_of_splitmix(state) < share
                items = earlier
                used, last = (running, 1) if joined else (begun, 0)


FAMILY = Family(
    name="Runs",
    best=best_runs,
    total=sum_over_runs,
    sample=sample_runs,
    best_shape=tuple,
    best_cost=lambda n: 200 + 200.0 * n,
    total_cost=lambda n: 500 + 2000.0 * n,
)
