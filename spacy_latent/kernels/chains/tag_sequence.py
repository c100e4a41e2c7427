"""Linear chains with the same transitions at all positions: time O(n·K²), memory O(n·K).

An item is one array ``(N + K + 2, K)``: N rows of emissions, K of transitions, [previous tag, tag],
one row of the scores of the first tag, and one of the last. Its marginals are the expected uses of
each entry, so one operator gives the gradients of all of them.

The methods are those of kernels.chains.linear_chain, with one difference: marginals of pairs of
neighbours are not saved. The Hessian product computes them again, one position at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.chains.best_chains import (
    k_best_last,
    k_best_step,
    longest_of,
    table_of,
    trace_k_best,
)
from spacy_latent.kernels.chains.chain_logarithms import (
    log_backward_step,
    log_forward_step,
    log_sum,
    subtract_largest,
)
from spacy_latent.kernels.chains.linear_chain import (
    TRUSTED,
    backward_step,
    forward_step,
    scale_by_largest,
    weigh,
)
from spacy_latent.kernels.core.compilation import ANY_ORDER, FUSED, kernel
from spacy_latent.kernels.core.draws import choose, uniform
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE, UNSOLVED
from spacy_latent.kernels.simd.exponential import exponential
from spacy_latent.kernels.simd.vector import LANES, best_of_rows, copy, scan


class Passes(NamedTuple):
    """Arrays that the forward and the backward pass over an item write, for the longest item.

    Attributes:
        weights, factors: (K, K) and (n, K), exponentials of transitions and emissions.
        forward, share: (n, K). The marginal of the pair p, t at positions i − 1 and i is
            forward[i − 1, p] · weights[p, t] · share[i, t].
        gamma: (n, K), the marginals of tags.
        rows: workspace (3, at least n + K).
    """

    weights: np.ndarray
    factors: np.ndarray
    forward: np.ndarray
    share: np.ndarray
    gamma: np.ndarray
    rows: np.ndarray


@kernel
def _split(item):
    """Return emissions, transitions, and the scores of the first and the last tag."""
    rows, tags = item.shape
    longest = rows - tags - 2
    return item[:longest], item[longest : longest + tags], item[rows - 2], item[rows - 1]


@kernel
def _status(item, n):
    """Return NOT_FINITE if a score that is read is NaN or +inf, else FEASIBLE.

    Rows are read one by one: numba compiles a reshape for longer than all the rest.
    """
    found, rows = FEASIBLE, len(item)
    longest = rows - item.shape[1] - 2
    for i in range(rows if n > 0 else 0):
        if i < n or i >= longest:
            _, wrong = scan(item[i])
            if wrong:
                found = NOT_FINITE
    return found


@kernel
def best_sequences(start, stop, batch, tags, status):
    """Write the best tags as ``Family.best``: tags ``(B, N)``, −1 for padding.

    The first call of a process may wait for the compilation, so this kernel calls few others and
    has arrays of one shape.
    """
    scores, lengths, _ = batch
    longest, count = tags.shape[1], scores.shape[2]
    values = np.empty((longest + 1, count + LANES))
    # Whole vectors are read past the last row of the transitions.
    padded = np.empty((count + LANES, count))
    padded[count:] = 0.0
    table, last = padded[:count], values[longest]
    for b in range(start, stop):
        n, item = lengths[b], scores[b]
        for i in range(longest):
            tags[b, i] = -1
        status[b] = _status(item, n)
        if n == 0 or status[b] != FEASIBLE:
            continue
        for p in range(count):
            for t in range(count):
                table[p, t] = item[longest + p, t]
        for t in range(count):
            values[0, t] = np.float64(item[0, t]) + item[longest + count, t]
        for i in range(1, n):
            best_of_rows(values[i - 1], table, values[i])
            for t in range(count):
                values[i, t] += item[i, t]
        tag = 0
        for t in range(count):
            last[t] = values[n - 1, t] + item[longest + count + 1, t]
            if last[t] > last[tag]:
                tag = t
        if last[tag] == -np.inf:
            status[b] = INFEASIBLE
            continue
        for i in range(n - 1, 0, -1):
            tags[b, i] = tag
            before, emission, value = values[i - 1], item[i, tag], values[i, tag]
            found = 0
            for p in range(count):
                if before[p] + table[p, tag] + emission == value:
                    found = p
                    break
            tag = found
        tags[b, 0] = tag


@kernel(fastmath=ANY_ORDER)
def _forward(item, n, passes):
    """Run the forward pass, and return the result of :func:`_sweep`.

    In ``rows`` it leaves the scales of the sums and the weights of the last tag.
    """
    weights, factors, forward, rows = passes.weights, passes.factors, passes.forward, passes.rows
    tags = len(weights)
    longest = len(item) - tags - 2
    scales, backward, row = rows[0], rows[1, :tags], rows[2, :tags]
    # Copied as float64, so that only one variant of weigh is compiled.
    for p in range(tags):
        for t in range(tags):
            weights[p, t] = item[longest + p, t]
    flat = weights.reshape(-1)
    log_partition = (n - 1) * weigh(flat, flat)
    for i in range(n):
        for t in range(tags):
            row[t] = np.float64(item[i, t]) + (item[longest + tags, t] if i == 0 else 0.0)
        log_partition += weigh(row, factors[i])
    for t in range(tags):
        row[t] = item[longest + tags + 1, t]
    log_partition += weigh(row, backward)
    for t in range(tags):
        forward[0, t] = factors[0, t]
    scales[0] = scale_by_largest(forward[0, :tags])
    for i in range(1, n):
        current, factor = forward[i], factors[i]
        forward_step(forward[i - 1], weights, current)
        for t in range(tags):
            current[t] *= factor[t]
        scales[i] = scale_by_largest(current[:tags])
        if scales[i] == 0.0:
            return False, 0.0
    total = 0.0
    for t in range(tags):
        total += forward[n - 1, t] * backward[t]
    if not total > 0.0:
        return False, 0.0
    log_partition += math.log(total)
    for i in range(n):
        log_partition += math.log(scales[i])
    return True, log_partition


@kernel(fastmath=ANY_ORDER)
def _sweep(item, n, passes):
    """Run both passes, and return whether the sums are precise, and the log-partition."""
    weights, factors, forward, share, gamma, rows = passes
    tags = len(weights)
    scales, backward = rows[0], rows[1, :tags]
    precise, log_partition = _forward(item, n, passes)
    if not precise:
        return False, 0.0
    share[:n] = 0.0
    for i in range(n - 1, -1, -1):
        current, factor, sharing, tag_marginals = forward[i], factors[i], share[i], gamma[i]
        total = 0.0
        for t in range(tags):
            total += current[t] * backward[t]
        if not total * scales[i] >= TRUSTED:
            return False, 0.0
        normal = 1.0 / total
        for t in range(tags):
            tag_marginals[t] = current[t] * backward[t] * normal
        if i == 0:
            break
        normal /= scales[i]
        for t in range(tags):
            sharing[t] = factor[t] * backward[t] * normal
        backward_step(sharing, weights, backward)
        scale_by_largest(backward)
    return True, log_partition


@kernel
def log_forward(item, n, forward, top):
    """Write logarithms of the forward sums to ``forward``, less the largest of each row.

    The log-partition is returned, −inf if there is no sequence.
    """
    emissions, transitions, first, final = _split(item)
    tags = len(top)
    total = 0.0
    for i in range(n):
        if i > 0:
            log_forward_step(forward[i - 1], transitions, top, forward[i])
        for t in range(tags):
            before = forward[i, t] if i > 0 else np.float64(first[t])
            forward[i, t] = before + emissions[i, t]
        shift = subtract_largest(forward[i, :tags])
        if shift == -np.inf:
            return shift
        total += shift
    for t in range(tags):
        top[t] = forward[n - 1, t] + final[t]
    return total + log_sum(top)


@kernel
def _log_sweep(item, n, forward, share, gamma):
    """Run :func:`_sweep` on logarithms, and return the log-partition, −inf without a sequence.

    The marginal of a pair is the exponential of forward[i − 1, p] + transitions[p, t] + share[i,
    t].
    """
    emissions, transitions, _, final = _split(item)
    tags = len(transitions)
    top, backward, after = np.empty(tags), np.empty(tags), np.empty(tags)
    log_partition = log_forward(item, n, forward, top)
    if log_partition == -np.inf:
        return log_partition
    for t in range(tags):
        backward[t] = final[t]
    for i in range(n - 1, -1, -1):
        for t in range(tags):
            top[t] = forward[i, t] + backward[t]
        total = log_sum(top)
        for t in range(tags):
            gamma[i, t] = math.exp(top[t] - total)
        if i == 0:
            break
        for t in range(tags):
            after[t] = emissions[i, t] + backward[t]
        log_backward_step(after, transitions, backward)
        # Centred before it is normalised, since both numbers may be large.
        shift = subtract_largest(backward)
        for t in range(tags):
            after[t] -= shift
            top[t] = forward[i - 1, t] + backward[t]
        total = log_sum(top)
        for t in range(tags):
            share[i, t] = after[t] - total
    return log_partition


@kernel(fastmath=FUSED)
def _pairs(plain, weights, forward, share, pairs):
    """Write marginals of pairs of neighbours, from weights if ``plain``, else from logarithms."""
    tags = len(weights)
    for p in range(tags):
        base, row, target = forward[p], weights[p], pairs[p]
        if plain:
            for t in range(tags):
                target[t] = base * row[t] * share[t]
        else:
            for t in range(tags):
                target[t] = exponential(base + row[t] + share[t])


@kernel(fastmath=ANY_ORDER)
def _write_marginals(n, plain, passes, pairs, result):
    weights, forward, share, gamma = passes.weights, passes.forward, passes.share, passes.gamma
    emissions, transitions, first, final = _split(result)
    tags = len(first)
    for i in range(n):
        for t in range(tags):
            emissions[i, t] = gamma[i, t]
    for t in range(tags):
        first[t] = gamma[0, t]
        final[t] = gamma[n - 1, t]
    for i in range(1, n):
        _pairs(plain, weights, forward[i - 1], share[i], pairs)
        for p in range(tags):
            source, target = pairs[p], transitions[p]
            for t in range(tags):
                target[t] += source[t]


@kernel(fastmath=ANY_ORDER)
def _write_product(n, plain, passes, pairs, along, mean, result):
    """Write the Hessian product (see kernels.chains.linear_chain.product_with_hessian).

    Args:
        mean: workspace (n, K), the expected sum of ``along`` up to a position, given its tag.
    """
    weights, forward, share, gamma = passes.weights, passes.forward, passes.share, passes.gamma
    emissions, transitions, first, final = _split(result)
    of_emissions, of_transitions, of_first, of_final = _split(along)
    tags = len(first)
    rest, weight, total = np.empty(tags), np.empty(tags), 0.0
    for t in range(tags):
        value = of_emissions[0, t] + of_first[t]
        mean[0, t] = value if gamma[0, t] > 0.0 else 0.0
    for i in range(1, n):
        before, current = mean[i - 1], mean[i]
        _pairs(plain, weights, forward[i - 1], share[i], pairs)
        for t in range(tags):
            current[t] = 0.0
            weight[t] = 0.0
        for p in range(tags):
            base, row, change = before[p], pairs[p], of_transitions[p]
            for t in range(tags):
                value = row[t] * (base + change[t])
                current[t] += value if row[t] > 0.0 else 0.0
                weight[t] += row[t]
        for t in range(tags):
            likely = weight[t] > 0.0 and gamma[i, t] > 0.0
            current[t] = current[t] / weight[t] + of_emissions[i, t] if likely else 0.0
    for t in range(tags):
        likely = gamma[n - 1, t] > 0.0
        rest[t] = of_final[t] if likely else 0.0
        total += gamma[n - 1, t] * (mean[n - 1, t] + rest[t])
    for t in range(tags):
        rest[t] -= total
        final[t] = gamma[n - 1, t] * (mean[n - 1, t] + rest[t])
    for i in range(n - 1, -1, -1):
        for t in range(tags):
            emissions[i, t] = gamma[i, t] * (mean[i, t] + rest[t])
        if i == 0:
            break
        _pairs(plain, weights, forward[i - 1], share[i], pairs)
        for t in range(tags):
            value = rest[t] + of_emissions[i, t]
            rest[t] = value if gamma[i, t] > 0.0 else 0.0
        before = mean[i - 1]
        for p in range(tags):
            base, row, change, target = before[p], pairs[p], of_transitions[p], transitions[p]
            value, mass = 0.0, 0.0
            for t in range(tags):
                inner = row[t] * (change[t] + rest[t])
                inner = inner if row[t] > 0.0 else 0.0
                target[t] += inner + row[t] * base
                value += inner
                mass += row[t]
            weight[p] = value / mass if mass > 0.0 else 0.0
        for p in range(tags):
            rest[p] = weight[p]
    for t in range(tags):
        first[t] = emissions[0, t]


@kernel
def sum_over_sequences(start, stop, batch, along, operation, results):
    """Compute the sums over sequences as ``Family.total`` of kernels.autograd.families."""
    scores, lengths, _ = batch
    log_partition, result, _, status = results
    longest, tags = longest_of(start, stop, lengths), scores.shape[2]
    weights, pairs = table_of(tags), np.empty((tags, tags))
    forward, share = np.empty((longest, tags + LANES)), np.empty((longest, tags + LANES))
    factors, gamma = np.empty((longest, tags)), np.empty((longest, tags))
    passes = Passes(weights, factors, forward, share, gamma, np.empty((3, longest + tags)))
    mean = np.empty((longest if operation == HESSIAN_PRODUCT else 0, tags))
    for b in range(start, stop):
        n = lengths[b]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        item = scores[b]
        status[b] = _status(item, n)
        if n == 0 or status[b] != FEASIBLE:
            continue
        plain, total = _sweep(item, n, passes)
        if not plain:
            total = _log_sweep(item, n, forward, share, gamma)
            copy(_split(item)[1], weights, tags, tags)
        log_partition[b] = total
        if total == -np.inf:
            status[b] = INFEASIBLE
        elif operation == MARGINALS:
            _write_marginals(n, plain, passes, pairs, result[b])
        elif operation == HESSIAN_PRODUCT:
            _write_product(n, plain, passes, pairs, along[b], mean, result[b])


@kernel
def sample_sequences(start, stop, batch, seeds, samples, status):
    """Draw samples as ``Family.sample``: tags ``(S, B, N)``, −1 for padding."""
    scores, lengths, _ = batch
    tags = scores.shape[2]
    forward = np.empty((longest_of(start, stop, lengths), tags + LANES))
    top, column = np.empty(tags), np.empty(tags)
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        status[b] = _status(scores[b], n)
        if n == 0 or status[b] != FEASIBLE:
            continue
        if log_forward(scores[b], n, forward, top) == -np.inf:
            status[b] = INFEASIBLE
            continue
        _, transitions, _, final = _split(scores[b])
        state = seeds[b : b + 1].copy()
        for k in range(samples.shape[0]):
            for t in range(tags):
                column[t] = forward[n - 1, t] + final[t]
            tag = choose(column, tags, uniform(state))
            samples[k, b, n - 1] = tag
            for i in range(n - 1, 0, -1):
                for p in range(tags):
                    column[p] = forward[i - 1, p] + transitions[p, tag]
                tag = choose(column, tags, uniform(state))
                samples[k, b, i - 1] = tag


@kernel
def k_best_sequences(start, stop, batch, tags, totals, status):
    """Write the k best sequences like kernels.chains.best_chains.k_best_chains."""
    scores, lengths, _ = batch
    count, k = scores.shape[2], len(tags)
    values = np.empty((2, count, k))
    origin = np.empty((longest_of(start, stop, lengths), count, k), dtype=np.int64)
    best, places = np.empty(k), np.empty(k, dtype=np.int64)
    for b in range(start, stop):
        n = lengths[b]
        tags[:, b] = -1
        totals[:, b] = -np.inf
        status[b] = FEASIBLE
        if n == 0:
            totals[0, b] = 0.0
            continue
        status[b] = _status(scores[b], n)
        if status[b] != FEASIBLE:
            continue
        emissions, transitions, first, final = _split(scores[b])
        values[0] = -np.inf
        for t in range(count):
            values[0, t, 0] = np.float64(emissions[0, t]) + first[t]
        for i in range(1, n):
            current = values[i % 2]
            k_best_step(values[(i - 1) % 2], transitions, current, origin[i])
            for t in range(count):
                current[t] += emissions[i, t]
        current = values[(n - 1) % 2]
        for t in range(count):
            current[t] += final[t]
        k_best_last(current, best, places)
        if best[0] == -np.inf:
            status[b] = INFEASIBLE
        else:
            totals[:, b] = best
            trace_k_best(places, origin, n, k, tags[:, b])


@kernel
def _follow(n, plain, passes, path, pairs, steps, pair_steps):
    """Write the steps of one item for :func:`follow_sequences`.

    If not ``plain``, the arrays of ``passes`` are logarithms, and its workspace is not read.
    """
    weights, forward, share, gamma = passes.weights, passes.forward, passes.share, passes.gamma
    steps[0] = gamma[0, path[0]]
    for i in range(1, n):
        for k in range(-1, pairs.shape[1]):
            # The step of the path, and then those of the pairs.
            p, t = (path[i - 1], path[i]) if k < 0 else (pairs[0, k], pairs[1, k])
            if gamma[i - 1, p] > 0.0:
                if plain:
                    pair = forward[i - 1, p] * weights[p, t] * share[i, t]
                else:
                    pair = math.exp(forward[i - 1, p] + weights[p, t] + share[i, t])
                step = pair / gamma[i - 1, p]
                step = step if step < 1.0 else 1.0
                if k < 0:
                    steps[i] = step
                else:
                    pair_steps[i, k] = step


@kernel
def follow_sequences(start, stop, batch, tags, pairs, followed, status):
    """Write the probability of each step along given sequences, and of given steps everywhere.

    Items whose sums are not precise get the status UNSOLVED, for :func:`follow_in_logarithms`. The
    two are separate kernels, since most texts only need this one compiled.

    Args:
        tags: ``(B, N)`` int32, read up to each length.
        pairs: ``(2, P)`` int64, the first and the second tags of P steps.
        followed: written: the marginals of tags ``(B, N, K)``, 0 for padding. ``(B, N)``, p(tag |
            previous tag), and p(tag) at the first position; 0 for padding and after an impossible
            tag. ``(B, N, P)``, zeros, written after the first position: p(second tag | first tag
            before it). All are float64.
    """
    scores, lengths, _ = batch
    marginals, steps, pair_steps = followed
    longest, count = tags.shape[1], scores.shape[2]
    # Whole vectors are read past the last row of the transitions.
    padded = np.empty((count + LANES, count))
    padded[count:] = 0.0
    weights = padded[:count]
    forward, share = np.empty((longest, count + LANES)), np.empty((longest, count + LANES))
    factors, rows = np.empty((longest, count)), np.empty((3, longest + count))
    for b in range(start, stop):
        n = lengths[b]
        for i in range(longest):
            steps[b, i] = 0.0
            for t in range(count):
                marginals[b, i, t] = 0.0
        status[b] = _status(scores[b], n)
        if n == 0 or status[b] != FEASIBLE:
            continue
        gamma, path = marginals[b], tags[b]
        passes = Passes(weights, factors, forward, share, gamma, rows)
        plain, _ = _sweep(scores[b], n, passes)
        if not plain:
            status[b] = UNSOLVED
            continue
        _follow(n, True, passes, path, pairs, steps[b], pair_steps[b])


@kernel
def follow_in_logarithms(start, stop, batch, tags, pairs, followed, status):
    """Solve the items that :func:`follow_sequences` has left UNSOLVED, on logarithms."""
    scores, lengths, _ = batch
    marginals, steps, pair_steps = followed
    longest, count = longest_of(start, stop, lengths), scores.shape[2]
    forward, share = np.empty((longest, count + LANES)), np.empty((longest, count + LANES))
    for b in range(start, stop):
        if status[b] != UNSOLVED:
            continue
        n, gamma, path = lengths[b], marginals[b], tags[b]
        status[b] = FEASIBLE
        if _log_sweep(scores[b], n, forward, share, gamma) == -np.inf:
            marginals[b] = 0.0
            status[b] = INFEASIBLE
            continue
        passes = Passes(_split(scores[b])[1], share, forward, share, gamma, forward)
        _follow(n, False, passes, path, pairs, steps[b], pair_steps[b])


def _tags_shape(shape: torch.Size) -> tuple[int, ...]:
    return (shape[0], shape[1] - shape[2] - 2)


FAMILY = Family(
    name="TagSequence",
    best=best_sequences,
    total=sum_over_sequences,
    sample=sample_sequences,
    best_shape=_tags_shape,
    # Measured with 20 tags, since costs depend on lengths alone.
    best_cost=lambda n: 300 + 85 * n,
    total_cost=lambda n: 1_000 + 230 * n,
)
