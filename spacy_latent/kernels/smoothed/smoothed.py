"""Dynamic programming with the quadratically smoothed maximum (Mensch and Blondel 2018).

It runs over chains and over the paths of dynamic time warping. max_Ω(x) is the largest p·x − ½(‖p‖²
− 1) over the simplex. Let y = x − max x, and θ the threshold for which p = (y − θ)₊ sums to 1. The
value is max x + θ + ½(‖p‖² + 1). The tangent of p is the tangent of x, less its mean over the
support of p.

For kernels.autograd.operators, these are families whose log-partition is the smoothed value, and
whose marginals are its gradient. γ is not an argument: the caller divides scores by it and
multiplies the value. Everything is float64, whatever the dtype of the scores.

The backward pass is the adjoint of the recursion. ``flow`` names the adjoint of a state: the share
of the solution that passes through it. A state divides it among its predecessors by their shares p.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spacy_latent.kernels.alignments import monotone_alignment
from spacy_latent.kernels.alignments.monotone_alignment import (
    longest_sizes,
    read_cells,
    read_changes,
)
from spacy_latent.kernels.chains import linear_chain
from spacy_latent.kernels.chains.best_chains import has_nan_or_inf, longest_of
from spacy_latent.kernels.chains.chain_logarithms import subtract_largest
from spacy_latent.kernels.choices.simplex import sparsemax_threshold
from spacy_latent.kernels.core.compilation import ANY_ORDER, FUSED, kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE

# ------------------------------------------------------------------------------------ chains


@kernel(fastmath=FUSED)
def _step(previous, block, top, threshold, known, count, total, result):
    """Write result[t] = max_Ω over p of previous[p] + block[p, t].

    ``top`` gets the largest number, 0 if all are −inf, and ``threshold`` gets θ.
    """
    tags = len(block)
    for t in range(tags):
        result[t] = -np.inf
    for p in range(tags):
        base, row = previous[p], block[p]
        for t in range(tags):
            value = base + row[t]
            result[t] = value if value > result[t] else result[t]
    for t in range(tags):
        top[t] = result[t] if result[t] > -np.inf else 0.0
        # The search of kernels.choices.simplex, for all tags at once.
        threshold[t], known[t] = -1.0, tags + 1.0
    falls = True
    while falls:
        for t in range(tags):
            count[t], total[t] = 0.0, 0.0
        for p in range(tags):
            base, row = previous[p], block[p]
            for t in range(tags):
                y = base + row[t] - top[t]
                inside = y > threshold[t]
                count[t] += 1.0 if inside else 0.0
                total[t] += y if inside else 0.0
        falls = False
        for t in range(tags):
            if 0.0 < count[t] < known[t]:
                known[t] = count[t]
                threshold[t] = (total[t] - 1.0) / count[t]
                falls = True
    for t in range(tags):
        total[t] = 0.0
    for p in range(tags):
        base, row = previous[p], block[p]
        for t in range(tags):
            share = max(base + row[t] - top[t] - threshold[t], 0.0)
            total[t] += share * share
    for t in range(tags):
        # The result is −inf if all numbers are −inf.
        result[t] += threshold[t] + 0.5 * (total[t] + 1.0)


@kernel
def _divide_last(row, shares):
    """Return max_Ω of a row whose largest number is 0, and write its shares p."""
    threshold = sparsemax_threshold(row, len(row))
    total = 0.0
    for t in range(len(row)):
        shares[t] = max(row[t] - threshold, 0.0)
        total += shares[t] * shares[t]
    return threshold + 0.5 * (total + 1.0)


# The order of summation is that of _step. Another order would round differently: at scores of large
# magnitude, the shares of a tag would not sum to 1.
@kernel(fastmath=FUSED)
def _divide(previous, block, top, threshold, flow, before, target):
    """Divide the flow of each tag among the tags before it."""
    tags = len(block)
    for p in range(tags):
        base, row, own, total = previous[p], block[p], target[p], 0.0
        for t in range(tags):
            share = flow[t] * max(base + row[t] - top[t] - threshold[t], 0.0)
            own[t] = share
            total += share
        before[p] = total


@kernel
def sum_over_chains(start, stop, batch, along, operation, results):
    """Compute the smoothed maximum as ``Family.total``, except HESSIAN_PRODUCT."""
    scores, lengths, _ = batch
    value, result, _, status = results
    longest, tags = longest_of(start, stop, lengths), scores.shape[3]
    shape = (longest, tags)
    # Values are centred, since they would grow with the length of the text.
    values, tops, thresholds = np.empty(shape), np.empty(shape), np.empty(shape)
    known, count, total = np.empty(tags), np.empty(tags), np.empty(tags)
    flow, before = np.empty(tags), np.empty(tags)
    for b in range(start, stop):
        n = lengths[b]
        value[b] = 0.0
        status[b] = FEASIBLE
        if operation != LOG_PARTITION:
            result[b, :1] = 0.0
            result[b, max(n, 1) :] = 0.0
        if n == 0:
            continue
        item = scores[b]
        if has_nan_or_inf(item, n):
            status[b] = NOT_FINITE
            continue
        for t in range(tags):
            values[0, t] = item[0, 0, t]
        shift = subtract_largest(values[0])
        for i in range(1, n):
            if shift == -np.inf:
                break
            _step(values[i - 1], item[i], tops[i], thresholds[i], known, count, total, values[i])
            shift += subtract_largest(values[i])
        if shift == -np.inf:
            status[b] = INFEASIBLE
            continue
        value[b] = shift + _divide_last(values[n - 1], flow)
        if operation == LOG_PARTITION:
            continue
        for i in range(n - 1, 0, -1):
            _divide(values[i - 1], item[i], tops[i], thresholds[i], flow, before, result[b, i])
            flow[:] = before
        result[b, 0, 0] = flow


@kernel(fastmath=ANY_ORDER)
def _change_forward(gradient, along, n, change, mean, rows):
    """Write the tangent of the value of tag t at position i to change[i, t].

    It is 0 if the flow of the tag is 0. mean[i, t] gets the mean of the tangents of the tag's
    scores over the support.
    """
    flow, support, tags = rows[0], rows[2], rows.shape[1]
    for t in range(tags):
        change[0, t] = along[0, 0, t] if gradient[0, 0, t] > 0.0 else 0.0
    for i in range(1, n):
        before, current, middle = change[i - 1], change[i], mean[i]
        for t in range(tags):
            current[t], middle[t], flow[t], support[t] = 0.0, 0.0, 0.0, 0.0
        for p in range(tags):
            base, row, own = before[p], gradient[i, p], along[i, p]
            for t in range(tags):
                share = np.float64(row[t])
                added = base + own[t]
                inside = share > 0.0
                current[t] += share * added if inside else 0.0
                middle[t] += added if inside else 0.0
                flow[t] += share
                support[t] += 1.0 if inside else 0.0
        for t in range(tags):
            current[t] = current[t] / flow[t] if flow[t] > 0.0 else 0.0
            middle[t] = middle[t] / support[t] if support[t] > 0.0 else 0.0


@kernel(fastmath=ANY_ORDER)
def _change_backward(gradient, along, n, change, mean, rows, result):
    """Write the Hessian product: the tangent of the flow from each tag to each tag before it.

    At the call, rows[1] is the tangent of the flow of the last tags.
    """
    flow, d_flow, d_before, tags = rows[0], rows[1], rows[2], rows.shape[1]
    for i in range(n - 1, 0, -1):
        before, middle = change[i - 1], mean[i]
        for t in range(tags):
            flow[t] = 0.0
        for p in range(tags):
            row = gradient[i, p]
            for t in range(tags):
                flow[t] += np.float64(row[t])
        for t in range(tags):
            d_flow[t] = d_flow[t] / flow[t] if flow[t] > 0.0 else 0.0
        for p in range(tags):
            base, row, own, target = before[p], gradient[i, p], along[i, p], result[i, p]
            total = 0.0
            for t in range(tags):
                share = np.float64(row[t])
                inner = share * d_flow[t] + flow[t] * (base + own[t] - middle[t])
                inner = inner if share > 0.0 else 0.0
                target[t] = inner
                total += inner
            d_before[p] = total
        for p in range(tags):
            d_flow[p] = d_before[p]
    for t in range(tags):
        result[0, 0, t] = d_flow[t]


@kernel
def product_with_hessian(start, stop, batch, along, result, status):
    """Compute the Hessian product as ``Family.product`` of kernels.autograd.families.

    It only needs the gradient, which determines the shares and their support. Parts without flow do
    not contribute.
    """
    gradient, lengths, _ = batch
    longest, tags = longest_of(start, stop, lengths), gradient.shape[3]
    change, mean = np.empty((longest, tags)), np.empty((longest, tags))
    rows = np.empty((3, tags))
    flow, d_flow = rows[0], rows[1]
    for b in range(start, stop):
        n = lengths[b]
        result[b, max(n, 1) :] = 0.0
        result[b, :1] = 0.0
        if n == 0:
            continue
        _change_forward(gradient[b], along[b], n, change, mean, rows)
        last, middle, support = gradient[b, n - 1], 0.0, 0.0
        for t in range(tags):
            flow[t] = 0.0
            for p in range(tags if n > 1 else 1):
                flow[t] += last[p, t]
            if flow[t] > 0.0:
                middle += change[n - 1, t]
                support += 1.0
        for t in range(tags):
            d_flow[t] = change[n - 1, t] - middle / support if flow[t] > 0.0 else 0.0
        _change_backward(gradient[b], along[b], n, change, mean, rows, result[b])


# ------------------------------------------------------------------------------------ paths


@kernel
def _reach(values, shares):
    """Return max_Ω of three values, and write their shares; all are 0 if all values are −inf."""
    top = max(values[0], max(values[1], values[2]))
    shares[:] = 0.0
    if top == -np.inf:
        return top
    for k in range(3):
        values[k] -= top
    return top + _divide_last(values, shares)


@kernel
def _forward(s, ds, rows, columns, operation, totals, both_shares):
    """Run the forward pass, and return the value of all paths.

    Args:
        totals: (2, rows + 1, columns + 1), written: the value of the paths up to and including cell
            (i − 1, j − 1), and for a Hessian product its tangent.
        both_shares: (2, rows + 1, columns + 1, 3), written: the shares of the predecessors above,
            to the left, and on the diagonal, and for a Hessian product their tangents.
    """
    total, change, shares, d_shares = totals[0], totals[1], both_shares[0], both_shares[1]
    slopes = operation == HESSIAN_PRODUCT
    total[: rows + 1, 0], total[0, : columns + 1] = -np.inf, -np.inf
    if slopes:
        change[: rows + 1, 0], change[0, : columns + 1] = 0.0, 0.0
    three = np.empty(3)
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            own = shares[i, j]
            if i == 1 and j == 1:
                own[:] = 0.0
                total[1, 1] = s[0, 0]
            else:
                three[0], three[1], three[2] = total[i - 1, j], total[i, j - 1], total[i - 1, j - 1]
                total[i, j] = _reach(three, own) + s[i - 1, j - 1]
            if not slopes:
                continue
            three[0], three[1], three[2] = change[i - 1, j], change[i, j - 1], change[i - 1, j - 1]
            mean, support, added = 0.0, 0.0, ds[i - 1, j - 1]
            for k in range(3):
                if own[k] > 0.0:
                    mean += three[k]
                    support += 1.0
                    added += own[k] * three[k]
            change[i, j] = added
            for k in range(3):
                d_shares[i, j, k] = three[k] - mean / support if own[k] > 0.0 else 0.0
    return total[rows, columns]


@kernel
def _backward(rows, columns, operation, both_shares, flows, result):
    """Write the gradient, or the Hessian product.

    From the last cell back, each cell divides its flow among its predecessors.
    """
    shares, d_shares, flow, d_flow = both_shares[0], both_shares[1], flows[0], flows[1]
    slopes = operation == HESSIAN_PRODUCT
    flow[: rows + 1, : columns + 1] = 0.0
    flow[rows, columns] = 1.0
    if slopes:
        d_flow[: rows + 1, : columns + 1] = 0.0
    for i in range(rows, 0, -1):
        for j in range(columns, 0, -1):
            own, d_own = flow[i, j], 0.0
            if slopes:
                d_own = d_flow[i, j]
            result[i - 1, j - 1] = d_own if slopes else own
            if own == 0.0:
                continue
            part = shares[i, j]
            flow[i - 1, j] += own * part[0]
            flow[i, j - 1] += own * part[1]
            flow[i - 1, j - 1] += own * part[2]
            if slopes:
                d_part = d_shares[i, j]
                d_flow[i - 1, j] += d_own * part[0] + own * d_part[0]
                d_flow[i, j - 1] += d_own * part[1] + own * d_part[1]
                d_flow[i - 1, j - 1] += d_own * part[2] + own * d_part[2]


@kernel
def sum_over_paths(start, stop, batch, along, operation, results):
    """Compute the smoothed maximum as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N, M)``, lengths ``(B, 2)``. ``moves`` must be WARPING.
    """
    scores, lengths, (_, window) = batch
    value, result, _, status = results
    most_rows, most_columns = longest_sizes(start, stop, lengths)
    s, ds = np.empty((most_rows, most_columns)), np.zeros((most_rows, most_columns))
    shape = (2, most_rows + 1, most_columns + 1)
    totals, shares, flows = np.empty(shape), np.empty((*shape, 3)), np.empty(shape)
    for b in range(start, stop):
        rows, columns = lengths[b, 0], lengths[b, 1]
        value[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = read_cells(scores[b], rows, columns, window, s)
        if status[b] != FEASIBLE or rows == 0 or columns == 0:
            continue
        if operation == HESSIAN_PRODUCT:
            read_changes(along[b], s, rows, columns, ds)
        value[b] = _forward(s, ds, rows, columns, operation, totals, shares)
        if value[b] == -np.inf:
            value[b] = 0.0
            status[b] = INFEASIBLE
            continue
        if operation != LOG_PARTITION:
            _backward(rows, columns, operation, shares, flows, result[b])


# Used for sums alone. Best structures and samples come from the families of the structures.
CHAINS = replace(
    linear_chain.FAMILY,
    total=sum_over_chains,
    product=product_with_hessian,
    total_cost=lambda n: 500 + 1000 * n,
    device=None,
)
PATHS = replace(
    monotone_alignment.FAMILY,
    total=sum_over_paths,
    total_cost=lambda n: 500.0 + 60.0 * n[:, 0] * n[:, 1],
)
