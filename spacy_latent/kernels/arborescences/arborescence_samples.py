"""Exact samples of spanning arborescences, by the elimination of their sums in reverse.

The elimination (see kernels.arborescences.matrix_tree) gives each arc k → m of an eliminated token
k to the heads of k, in shares f[h] = w[h, k] / d. In reverse, tokens are added in the order 1 .. n
to a tree of those before. Then an arc h → m of the tree stands for itself, with its own weight, or
for h → k → m, with weight f[h]·w[k, m]. Each arc is drawn among these, and let S be the modifiers
whose arcs stand for a path over k. They become modifiers of k.

The head of k is drawn with probability proportional to w[h, k] among the tokens that do not hang on
S. This is exact. Let the arcs outside of S be given, and let F[0] be the share of heads that do not
hang on S. Trees over k that complete these arcs have the total weight d·F[0]·Π w[k, m]. The
elimination gives them d·Π w[k, m] times the sum over all choices of heads of S that form a tree,
weighted by shares. This sum is F[0]·1^(|S|−1), the weighted form of Cayley's formula, since shares
sum to 1.

With a single root, the pivot d leaves root arcs out, so the shares of the other heads sum to 1. The
root's own share is f[0] = w[0, k] / d. If the arc of the root's child stands for a path over k, the
head of k is the root. Otherwise it is a token, as above.

An elimination takes O(n³) time for all samples of an item. A sample takes O(n²), plus O(n) for each
arc that is replaced.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.arborescences.arc_weights import loses_nothing
from spacy_latent.kernels.arborescences.elimination import (
    SMALLEST_CHANCE,
    eliminate,
    last_token,
    padded_shape,
    swap,
    workspace,
)
from spacy_latent.kernels.arborescences.elimination_logarithms import eliminate_logarithms
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import choose, uniform
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE
from spacy_latent.kernels.simd.arc_scores import read_arc_scores, subtract_best
from spacy_latent.kernels.simd.exponential import exponential


@kernel
def _eliminate(scores, n, first_node, logs):
    """Write the results of ``eliminate_logarithms``, from an elimination of plain weights.

    Scores are at most 0. The function returns whether weights that underflow have no effect.
    """
    rows, columns = padded_shape(n)
    own = workspace(np.zeros(4 * rows * columns), np.empty(n + 1), n)
    row, total = np.zeros(columns), np.nan
    for smallest_chance in (SMALLEST_CHANCE, 0.0):
        for h in range(n + 1):
            for m in range(n + 1):
                own.weights[h, m] = exponential(scores[h, m])
        # Improbable trees need no logarithms if no weight has underflowed.
        if smallest_chance == 0.0 and not loses_nothing(scores, own.weights, n, 0):
            return False
        total = eliminate(own, n, first_node, smallest_chance, row)
        if math.isfinite(total):
            break
    # A single root's weight is not among the chances.
    if not math.isfinite(total) or (first_node == 1 and own.pivots[1] < SMALLEST_CHANCE):
        return False
    for k in range(1, n + 1):
        for h in range(k):
            logs[k, h] = _logarithm(own.shares[k, h])
            logs[h, k] = _logarithm(own.weights[k, h])
    return True


@kernel
def _logarithm(x):
    return math.log(x) if x > 0.0 else -np.inf


@kernel
def _path(scores, logs, head, modifier, n, column, state):
    """Draw the token over which an arc among earlier tokens leads, 0 if it stands for itself."""
    first = max(head, modifier) + 1
    column[0] = scores[head, modifier]
    for k in range(first, n + 1):
        column[k - first + 1] = logs[k, head] + logs[modifier, k]
    place = choose(column, n - first + 2, uniform(state))
    return first + place - 1 if place > 0 else 0


@kernel
def _draw(scores, logs, n, first_node, heads, column, state):
    """Draw a tree from the results of the elimination."""
    # For each modifier the token over which its arc leads, 0 for none.
    paths, hangs = np.zeros(n + 1, np.int32), np.empty(n + 1, np.int32)
    for k in range(1, n + 1):
        split, root_arc = False, k == 1
        for m in range(1, k):
            if paths[m] == k:
                split = True
                root_arc |= heads[m] == 0
                heads[m] = k
        if first_node == 1 and root_arc:
            heads[k] = 0
        else:
            if split:
                _mark(heads, k, hangs)
            for h in range(k):
                allowed = h >= first_node and not (split and hangs[h] == k)
                column[h] = logs[k, h] if allowed else -np.inf
            heads[k] = choose(column, k, uniform(state))
        paths[k] = _path(scores, logs, heads[k], k, n, column, state)
        for m in range(1, k):
            if heads[m] == k:
                paths[m] = _path(scores, logs, k, m, n, column, state)


@kernel
def _mark(heads, k, hangs):
    """Write to ``hangs`` on which of the nodes 0 and k each token before k hangs."""
    hangs[0] = 0
    for token in range(1, k):
        hangs[token] = -1
    for token in range(1, k):
        node = token
        while node != k and hangs[node] < 0:
            node = heads[node]
        end = k if node == k else hangs[node]
        node = token
        while node != k and hangs[node] < 0:
            hangs[node] = end
            node = heads[node]


@kernel
def sample_trees(start, stop, batch, seeds, samples, status):
    """Draw exact samples as ``Family.sample``: heads ``(K, B, N+1)``."""
    scores, lengths, (direction, max_arc_length, single_root) = batch
    first_node = 1 if single_root else 0
    for b in range(start, stop):
        n = lengths[b]
        for k in range(samples.shape[0]):
            samples[k, b, :] = -1
        matrix, logs = np.empty((n + 1, n + 1)), np.empty((n + 1, n + 1))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix)
        if status[b] != FEASIBLE or n == 0:
            continue
        child = last_token(matrix, n, single_root)
        if child == 0:
            status[b] = INFEASIBLE
            continue
        subtract_best(matrix, n)
        swap(matrix, 1, child, n)
        if not _eliminate(matrix, n, first_node, logs):
            for h in range(n + 1):
                for m in range(n + 1):
                    logs[m, h] = matrix[h, m]
            eliminate_logarithms(logs, np.zeros((n + 1, n + 1)), n, first_node)
        heads, column = np.empty(n + 1, np.int32), np.empty(n + 1)
        state = seeds[b : b + 1].copy()
        for k in range(samples.shape[0]):
            _draw(matrix, logs, n, first_node, heads, column, state)
            for m in range(1, n + 1):
                samples[k, b, _swapped(m, child)] = _swapped(heads[m], child)


@kernel
def _swapped(node, child):
    """Return the node after 1 and ``child`` have been exchanged."""
    if node == 1:
        return child
    return 1 if node == child else node
