"""Maxima over linear chains (Viterbi 1967), and the k best. Other chains take its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_whole
from spacy_latent.kernels.autograd.arrays import read
from spacy_latent.kernels.autograd.families import Family, check
from spacy_latent.kernels.core import gpu_transfers
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.simd.vector import LANES, best_of_rows, scan


@kernel
def has_nan_or_inf(item, n):
    """Return whether an item of n > 0 positions has NaN or +inf among the entries that are read."""
    _, first = scan(item[0, 0])
    _, rest = scan(item[1:n].reshape(-1))
    return first or rest


@kernel
def best_step(previous, block, result):
    """Write result[t] = max over p of previous[p] + block[p, t].

    ``block`` and ``result`` must be followed by a vector of padding. The function returns whether
    ``block`` holds NaN or +inf.
    """
    total = best_of_rows(previous, block, result)
    if total < np.inf:
        return False
    # The sum may be NaN or +inf because of the padding alone.
    _, wrong = scan(block.reshape(-1))
    return wrong


@kernel
def previous_of(previous, block, tag, emission, value):
    """Return the first p for which previous[p] + block[p, tag] + emission is the best ``value``."""
    for p in range(len(block)):
        if previous[p] + block[p, tag] + emission == value:
            return p
    return 0


@kernel
def largest(row):
    """Return the first index of the largest number."""
    chosen = 0
    for t in range(1, len(row)):
        if row[t] > row[chosen]:
            chosen = t
    return chosen


@kernel
def longest_of(start, stop, lengths):
    """Return the largest length of the items start .. stop−1, at least 1."""
    longest = 1
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    return longest


@kernel
def table_of(tags):
    """Return a workspace for transitions, padded by a vector after the last row."""
    return np.zeros(tags * tags + LANES)[: tags * tags].reshape((tags, tags))


@kernel
def best_chains(start, stop, batch, tags, status):
    """Write the best tags as ``Family.best``: tags ``(B, N)``, −1 for padding."""
    scores, lengths, _ = batch
    longest, count = longest_of(start, stop, lengths), scores.shape[3]
    values = np.empty((longest, count + LANES))
    spare = np.zeros((count + LANES, count), dtype=scores.dtype)
    for b in range(start, stop):
        n = lengths[b]
        tags[b] = -1
        status[b] = FEASIBLE
        if n == 0:
            continue
        item = scores[b]
        _, wrong = scan(item[0, 0])
        values[0, :count] = item[0, 0]
        for i in range(1, n):
            block = item[i]
            if scores.size - (b * scores.shape[1] + i + 1) * count * count < LANES:
                # The last position has no padding after its rows, so they are copied.
                spare[:count] = block
                block = spare[:count]
            wrong |= best_step(values[i - 1], block, values[i])
        if wrong:
            status[b] = NOT_FINITE
            continue
        tag = largest(values[n - 1, :count])
        if values[n - 1, tag] == -np.inf:
            status[b] = INFEASIBLE
            continue
        for i in range(n - 1, 0, -1):
            tags[b, i] = tag
            tag = previous_of(values[i - 1], item[i], tag, 0.0, values[i, tag])
        tags[b, 0] = tag


@kernel
def insert(value, source, row, sources):
    """Insert a value and its source into a descending row, after equal values.

    The last value is dropped. The function returns whether the new value is larger than that.
    """
    place = len(row) - 1
    if not value > row[place]:
        return False
    while place > 0 and value > row[place - 1]:
        row[place] = row[place - 1]
        sources[place] = sources[place - 1]
        place -= 1
    row[place] = value
    sources[place] = source
    return True


@kernel
def k_best_step(previous, block, result, origin):
    """Write the k best sums of each tag, best first, from the k best of each previous tag.

    Ties go to the lower source.

    Args:
        previous, result: ``(K, k)``, −inf if there are fewer.
        origin: ``(K, k)``, written: previous tag · k + its rank.
    """
    tags, k = previous.shape
    result[:] = -np.inf
    origin[:] = -1
    # Along the rows of the block: with hundreds of tags its columns do not stay in the cache.
    for p in range(tags):
        for t in range(tags):
            for rank in range(k):
                value = previous[p, rank] + block[p, t]
                if not value > result[t, k - 1]:
                    break
                insert(value, p * k + rank, result[t], origin[t])


@kernel
def k_best_last(values, totals, places):
    """Write the k best of all ``values`` (K, k) to ``totals``, and tag · k + rank to ``places``."""
    tags, k = values.shape
    totals[:] = -np.inf
    places[:] = -1
    for t in range(tags):
        for rank in range(k):
            if not insert(values[t, rank], t * k + rank, totals, places):
                break


@kernel
def trace_k_best(places, origin, n, k, chosen):
    """Write the tags of the k best to ``chosen`` (k, N), from ``origin`` (n, K, k)."""
    for rank in range(k):
        place = places[rank]
        if place < 0:
            continue
        for i in range(n - 1, -1, -1):
            chosen[rank, i] = place // k
            place = origin[i, place // k, place % k]


@kernel
def k_best_chains(start, stop, batch, tags, totals, status):
    """Write the k best chains.

    Args:
        tags: ``(k, B, N)`` int32, −1 for padding and if there are fewer than k.
        totals: ``(k, B)`` float64, −inf if there are fewer than k.
    """
    scores, lengths, _ = batch
    longest, count, k = longest_of(start, stop, lengths), scores.shape[3], len(tags)
    values = np.empty((2, count, k))
    origin = np.empty((longest, count, k), dtype=np.int64)
    best, places = np.empty(k), np.empty(k, dtype=np.int64)
    for b in range(start, stop):
        n = lengths[b]
        tags[:, b] = -1
        totals[:, b] = -np.inf
        status[b] = FEASIBLE
        if n == 0:
            totals[0, b] = 0.0
            continue
        if has_nan_or_inf(scores[b], n):
            status[b] = NOT_FINITE
            continue
        values[0] = -np.inf
        values[0, :, 0] = scores[b, 0, 0]
        for i in range(1, n):
            k_best_step(values[(i - 1) % 2], scores[b, i], values[i % 2], origin[i])
        k_best_last(values[(n - 1) % 2], best, places)
        if best[0] == -np.inf:
            status[b] = INFEASIBLE
        else:
            totals[:, b] = best
            trace_k_best(places, origin, n, k, tags[:, b])


def k_best(
    scores: Tensor,
    lengths: Tensor,
    k: int,
    family: Family,
    kernel: Callable[..., None],
    options: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Return the tags of the k best structures, and their scores ``(k, B)``, float64.

    The tags are ``(k, *family.best_shape)`` int32. The kernel is like :func:`k_best_chains`.
    """
    check_whole(f"{family.name}.top_k", error=InvalidScores, k=k)
    array, sizes = read(scores, lengths)
    batch = (array, sizes, tuple(options))
    tags = np.empty((k, *family.best_shape(scores.shape)), dtype=np.int32)
    totals = np.empty((k, len(array)))
    status = np.zeros(len(array), dtype=np.int8)
    costs = family.best_cost(sizes) * (1 + 10 * k)
    spread(kernel, costs, (batch, tags, totals, status))
    check(family.name, status)
    made = [torch.from_numpy(tags), torch.from_numpy(totals)]
    tags_there, totals_there = gpu_transfers.send_together(made, scores.device)
    return tags_there, totals_there
