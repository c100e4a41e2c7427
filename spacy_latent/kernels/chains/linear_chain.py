"""Linear chains: sums and samples (Rabiner 1989), and the family of their kernels.

Scores are ``(B, N, K, K)``, [item, position, previous tag, tag]. At position 0 only the row of
previous tag 0 is read. Weights are exp(score − the position's best). The forward and backward sums
of each position are divided by their largest, so inner loops are multiply-adds. The sums tell
whether an underflow could matter (see TRUSTED). If so, chain_logarithms solves the item again.
Everything is float64, whatever the dtype of the scores.

Hessian products only need the marginals, and no exponential. They follow from expectations: the sum
of the vector's entries along a chain, given a tag. These are computed by a recursion over
P(previous tag | tag).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spacy_latent.kernels.autograd.arrays import read
from spacy_latent.kernels.autograd.batches import find_best
from spacy_latent.kernels.autograd.families import Family, check
from spacy_latent.kernels.chains.best_chains import best_chains, has_nan_or_inf, longest_of
from spacy_latent.kernels.chains.chain_logarithms import log_forward, log_marginals, log_sum
from spacy_latent.kernels.core import gpu_transfers
from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel
from spacy_latent.kernels.core.draws import choose, uniform
from spacy_latent.kernels.core.operations import LOG_PARTITION
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.exponential import exponentials
from spacy_latent.kernels.simd.vector import LANES, dot_four, dot_one, scan, sum_rows

# All factors are at most 1, so a product that underflowed was below 1e−300. It cannot matter at a
# position whose products sum to at least this.
TRUSTED = 1e-150


# ------------------------------------------------------------------------------------ the best


@kernel
def _best_transitions(start, stop, batch, z, status):
    """Write the best chains as 0/1 arrays like ``scores``."""
    scores, lengths, _ = batch
    tags = np.empty(scores.shape[:2], dtype=np.int32)
    best_chains(start, stop, batch, tags, status)
    for b in range(start, stop):
        z[b] = 0.0
        previous = 0
        for i in range(lengths[b] if status[b] == FEASIBLE else 0):
            z[b, i, previous, tags[b, i]] = 1.0
            previous = tags[b, i]


def best_transitions(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return 0/1 arrays of the best chains, like ``scores``.

    A kernel writes them, since converting tags would take longer than finding them.
    """
    if dispatch.serves(FAMILY.device, scores):
        found = find_best(FAMILY, scores, lengths, ())
        check(FAMILY.name, dispatch.read_status(found.status))
        tag = torch.arange(scores.shape[3], device=scores.device)
        previous = pad(found.result[:, :-1], (1, 0))[:, :, None, None] == tag[:, None]
        return (previous & (found.result[:, :, None, None] == tag)).to(scores.dtype)
    array, sizes = read(scores, lengths)
    z, status = np.empty_like(array), np.zeros(len(array), dtype=np.int8)
    spread(_best_transitions, FAMILY.best_cost(sizes), ((array, sizes, ()), z, status))
    check(FAMILY.name, status)
    return gpu_transfers.send(torch.from_numpy(z), scores.device)


# ------------------------------------------------------------------------------------ sums


@kernel
def weigh(scores, weights):
    """Write exp(score − best) of a contiguous row, and return the best score.

    The result is NaN if a score is NaN or +inf, or 0 if no score is above −inf.
    """
    best, wrong = scan(scores)
    if wrong:
        return np.nan
    if best == -np.inf:
        best = 0.0
    exponentials(scores, best, weights)
    return best


@kernel(fastmath=ANY_ORDER)
def scale_by_largest(row):
    """Divide a row of sums by its largest, unless that is 0, and return the largest."""
    best = 0.0
    for t in range(len(row)):
        best = max(best, row[t])
    if best > 0.0:
        factor = 1.0 / best
        if factor < np.inf:
            for t in range(len(row)):
                row[t] *= factor
        else:
            for t in range(len(row)):
                row[t] /= best
    return best


@kernel
def forward_step(previous, weights, result):
    """Write result[t] = Σ_p previous[p] · weights[p, t], with the padding of :func:`best_step`."""
    sum_rows(previous, weights, len(weights), result)


@kernel
def backward_step(after, weights, result):
    """Write result[p] = Σ_t weights[p, t] · after[t].

    The padding of ``after`` must be 0, and the numbers after each row of ``weights`` finite.
    """
    tags = len(weights)
    whole = tags - tags % 4
    for p in range(0, whole, 4):
        rows = (weights[p], weights[p + 1], weights[p + 2], weights[p + 3], after)
        _, result[p], result[p + 1], result[p + 2], result[p + 3] = dot_four(rows, (0.0,), 0, tags)
    for p in range(whole, tags):
        _, result[p] = dot_one((weights[p], after), (0.0,), 0, tags)


@kernel
def _forward(weights, n, forward, scales):
    """Write to forward[i, t] the sum over the chains up to position i that end in tag t.

    Each row is divided by its largest sum, which is written to ``scales``.
    """
    tags = weights.shape[1]
    forward[0, :tags] = weights[0, 0]
    scales[0] = scale_by_largest(forward[0, :tags])
    for i in range(1, n):
        forward_step(forward[i - 1], weights[i], forward[i])
        scales[i] = scale_by_largest(forward[i, :tags])


@kernel(fastmath=ANY_ORDER)
def _backward(weights, n, forward, scales, backward, backward_over_z, write, result):
    """Run the backward pass, and write the marginals if ``write`` is true.

    The function returns whether the result is precise.
    """
    tags = weights.shape[1]
    backward[:tags] = 1.0
    backward_over_z[:] = 0.0
    for i in range(n - 1, -1, -1):
        forward_row = forward[i]
        total = 0.0
        for t in range(tags):
            total += forward_row[t] * backward[t]
        if not total * scales[i] >= TRUSTED:
            return False
        if i == 0:
            if write:
                factor, target = 1.0 / total, result[0, 0]
                for t in range(tags):
                    target[t] = forward_row[t] * backward[t] * factor
            break
        factor = 1.0 / (total * scales[i])
        for t in range(tags):
            backward_over_z[t] = backward[t] * factor
        before, block = forward[i - 1], weights[i]
        if write:
            for p in range(tags):
                row, base, target = block[p], before[p], result[i, p]
                for t in range(tags):
                    target[t] = base * row[t] * backward_over_z[t]
        backward_step(backward_over_z, block, backward)
        scale_by_largest(backward[:tags])
    return True


@kernel
def sum_over_chains(start, stop, batch, along, operation, results):
    """Compute the sums over chains as ``Family.total``, except HESSIAN_PRODUCT."""
    scores, lengths, _ = batch
    log_partition, result, _, status = results
    longest, tags = longest_of(start, stop, lengths), scores.shape[3]
    # The numbers after a row must be finite (see backward_step).
    weights = np.zeros(longest * tags * tags + LANES)[: longest * tags * tags]
    weights = weights.reshape((longest, tags, tags))
    forward = np.empty((longest, tags + LANES))
    scales, shifts = np.empty(longest), np.empty(longest)
    top, backward = np.empty(tags + LANES), np.empty(tags + LANES)
    spare = np.empty((1, 1, 1), dtype=result.dtype)
    for b in range(start, stop):
        n = lengths[b]
        log_partition[b] = 0.0
        status[b] = FEASIBLE
        marginals = result[b] if operation != LOG_PARTITION else spare
        if operation != LOG_PARTITION:
            marginals[:1] = 0.0
            marginals[max(n, 1) :] = 0.0
        if n == 0:
            continue
        item = scores[b]
        total = weigh(item[0, 0], weights[0, 0])
        for i in range(1, n):
            total += weigh(item[i].reshape(-1), weights[i].reshape(-1))
        if math.isnan(total):
            status[b] = NOT_FINITE
            continue
        _forward(weights, n, forward, scales)
        if _backward(
            weights, n, forward, scales, backward, top, operation != LOG_PARTITION, marginals
        ):
            last = 0.0
            for i in range(n):
                total += math.log(scales[i])
            for t in range(tags):
                last += forward[n - 1, t]
            log_partition[b] = total + math.log(last)
            continue
        if not log_forward(item, n, forward, shifts, top):
            status[b] = INFEASIBLE
            continue
        log_partition[b] = shifts[:n].sum() + log_sum(forward[n - 1, :tags])
        if operation != LOG_PARTITION:
            log_marginals(item, n, forward, marginals)


@kernel(fastmath=ANY_ORDER)
def _expect_forward(marginals, along, n, tags, mean, weight):
    """Write to mean[i, t] the expected sum of ``along`` up to position i, given tag t there.

    It is 0 if the tag has probability 0. The expected sum over the whole chain is returned.
    """
    for t in range(tags):
        mean[0, t] = along[0, 0, t] if marginals[0, 0, t] > 0.0 else 0.0
        weight[t] = marginals[0, 0, t]
    for i in range(1, n):
        before, current = mean[i - 1], mean[i]
        for t in range(tags):
            current[t] = 0.0
            weight[t] = 0.0
        for p in range(tags):
            base, row, change = before[p], marginals[i, p], along[i, p]
            for t in range(tags):
                share = np.float64(row[t])
                value = share * (base + change[t])
                current[t] += value if share > 0.0 else 0.0
                weight[t] += share
        for t in range(tags):
            current[t] = current[t] / weight[t] if weight[t] > 0.0 else 0.0
    total, mass = 0.0, 0.0
    for t in range(tags):
        total += weight[t] * mean[n - 1, t]
        mass += weight[t]
    return total / mass


@kernel(fastmath=ANY_ORDER)
def _expect_backward(marginals, along, n, tags, mean, total, rest, result):
    """Write the Hessian product.

    Args:
        mean: from :func:`_expect_forward`; overwritten.
        total: the expected sum of ``along`` over the whole chain.
        rest: workspace of a row: the expected sum after a position given its tag, less ``total``.
    """
    for t in range(tags):
        rest[t] = -total
    for i in range(n - 1, 0, -1):
        before = mean[i - 1]
        for p in range(tags):
            base, row, change, target = before[p], marginals[i, p], along[i, p], result[i, p]
            value, mass = 0.0, 0.0
            for t in range(tags):
                share = np.float64(row[t])
                inner = share * (change[t] + rest[t])
                inner = inner if share > 0.0 else 0.0
                target[t] = inner + share * base
                value += inner
                mass += share
            # mean[i − 1, p] is not read any more.
            before[p] = value / mass if mass > 0.0 else 0.0
        for p in range(tags):
            rest[p] = before[p]
    for t in range(tags):
        share = np.float64(marginals[0, 0, t])
        value = share * (along[0, 0, t] + rest[t])
        result[0, 0, t] = value if share > 0.0 else 0.0


@kernel
def product_with_hessian(start, stop, batch, along, result, status):
    """Compute the Hessian product as ``Family.product`` of kernels.autograd.families.

    Its entry for a part is the covariance of this part and the sum of ``along`` over the parts of a
    chain: the probability of the part, times the expected sum given the part less the expected sum.
    """
    marginals, lengths, _ = batch
    longest, tags = longest_of(start, stop, lengths), marginals.shape[3]
    mean, rest = np.empty((longest, tags)), np.empty(tags)
    for b in range(start, stop):
        n = lengths[b]
        result[b, max(n, 1) :] = 0.0
        result[b, :1] = 0.0
        if n > 0:
            total = _expect_forward(marginals[b], along[b], n, tags, mean, rest)
            _expect_backward(marginals[b], along[b], n, tags, mean, total, rest, result[b])


# ------------------------------------------------------------------------------------ samples


@kernel
def sample_chains(start, stop, batch, seeds, samples, status):
    """Draw samples as ``Family.sample``: forward filtering, backward sampling.

    Tags are ``(S, B, N)``, −1 for padding.
    """
    scores, lengths, _ = batch
    longest, tags = longest_of(start, stop, lengths), scores.shape[3]
    forward, shifts = np.empty((longest, tags)), np.empty(longest)
    top, column = np.empty(tags), np.empty(tags)
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        status[b] = FEASIBLE
        if n == 0:
            continue
        if has_nan_or_inf(scores[b], n):
            status[b] = NOT_FINITE
            continue
        if not log_forward(scores[b], n, forward, shifts, top):
            status[b] = INFEASIBLE
            continue
        state = seeds[b : b + 1].copy()
        for k in range(samples.shape[0]):
            tag = choose(forward[n - 1], tags, uniform(state))
            samples[k, b, n - 1] = tag
            for i in range(n - 1, 0, -1):
                for p in range(tags):
                    column[p] = forward[i - 1, p] + scores[b, i, p, tag]
                tag = choose(column, tags, uniform(state))
                samples[k, b, i - 1] = tag


FAMILY = Family(
    name="LinearChain",
    best=best_chains,
    total=sum_over_chains,
    sample=sample_chains,
    product=product_with_hessian,
    same_dtype=True,
    best_shape=lambda shape: tuple(shape[:2]),
    # Measured with 20 tags, since costs depend on lengths alone.
    best_cost=lambda n: 300 + 170 * n,
    total_cost=lambda n: 500 + 330 * n,
    device=GpuKernels("linear_chain"),
)
