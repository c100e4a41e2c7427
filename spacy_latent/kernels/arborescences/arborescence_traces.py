"""Random arborescences, drawn as traces of the algorithm of Chu and Liu and Edmonds.

Each arc has an exponential clock of rate exp(score). The algorithm of Chu and Liu (1965) and
Edmonds (1967) chooses, for each token, the arc whose clock rings first (Struminsky et al. 2021). An
arc rings first with a probability proportional to its rate. Given that, the remaining times of the
other clocks are again exponential with the same rates. So the arc into a token is an independent
draw from a softmax of its scores. After each contraction, the arc that enters the cycle is such a
draw, too. No clock has to be drawn.

The sequence of these draws is the trace. It determines the tree, but several traces may lead to the
same tree.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from spacy_latent.kernels.arborescences.arborescence import expand_cycles
from spacy_latent.kernels.autograd.arrays import read_float64
from spacy_latent.kernels.autograd.families import check
from spacy_latent.kernels.autograd.operators import draw_seeds
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import uniform
from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE
from spacy_latent.kernels.simd.arc_scores import read_arc_scores


@kernel
def _choose_entering(incoming, lowest, n, row, nodes, slopes, state, chosen):
    """Draw an arc that enters the node of ``row``.

    Args:
        incoming: scores, [modifier, head].
        lowest: the first node that may be a head.
        nodes: the row of each token, and the next token in its row, −1 after the last.
        slopes: [head, modifier]; the gradient of the log-probability is added.
        chosen: (2,), written: head and modifier.

    Returns:
        The log-probability, or 1 if no arc enters.
    """
    row_of, following = nodes
    top = -np.inf
    token = row
    while token != -1:
        for head in range(lowest, n + 1):
            if row_of[head] != row:
                top = max(top, incoming[token, head])
        token = following[token]
    if top == -np.inf:
        return 1.0
    total = 0.0
    token = row
    while token != -1:
        for head in range(lowest, n + 1):
            if row_of[head] != row:
                total += math.exp(incoming[token, head] - top)
        token = following[token]
    left, found = uniform(state) * total, False
    token = row
    while token != -1:
        for head in range(lowest, n + 1):
            if row_of[head] == row:
                continue
            weight = math.exp(incoming[token, head] - top)
            if weight == 0.0:
                continue
            slopes[head, token] -= weight / total
            if not found:
                # If rounding leaves a remainder, the last possible arc is drawn.
                chosen[0], chosen[1] = head, token
                left -= weight
                found = left < 0.0
        token = following[token]
    slopes[chosen[0], chosen[1]] += 1.0
    return incoming[chosen[1], chosen[0]] - top - math.log(total)


@kernel
def _reach(incoming, n, start, along, reached, stack):
    """Mark the tokens that can be reached from a token, and return the number of marked tokens.

    Arcs between tokens are followed from head to modifier if ``along``, else from modifier to head.
    """
    reached[start] = 1
    stack[0] = start
    waiting = 1
    while waiting:
        waiting -= 1
        token = stack[waiting]
        for other in range(1, n + 1):
            value = incoming[other, token] if along else incoming[token, other]
            if not reached[other] and value > -np.inf:
                reached[other] = 1
                stack[waiting] = other
                waiting += 1
    count = 0
    for token in range(1, n + 1):
        count += reached[token]
    return count


@kernel
def _roots(incoming, n, column, reached, stack):
    """Write the scores of possible single roots, and −inf for other tokens.

    A possible single root is a token that reaches all others. Without one, the result is
    INFEASIBLE.
    """
    column[:] = -np.inf
    reached[:] = 0
    last = 1
    for token in range(1, n + 1):
        if not reached[token]:
            last = token
            _reach(incoming, n, token, True, reached, stack)
    # If some token reaches all others, then so does the token from which the last search started.
    reached[:] = 0
    if _reach(incoming, n, last, True, reached, stack) < n:
        return INFEASIBLE
    reached[:] = 0
    _reach(incoming, n, last, False, reached, stack)
    status = INFEASIBLE
    for token in range(1, n + 1):
        if reached[token]:
            column[token] = incoming[token, 0]
            if column[token] > -np.inf:
                status = FEASIBLE
    return status


@kernel
def _choose_root(column, n, slopes, state, chosen):
    """Draw a single root, with the arguments and the result of :func:`_choose_entering`."""
    top = -np.inf
    for token in range(1, n + 1):
        top = max(top, column[token])
    total = 0.0
    for token in range(1, n + 1):
        total += math.exp(column[token] - top)
    left, found = uniform(state) * total, False
    for token in range(1, n + 1):
        weight = math.exp(column[token] - top)
        if weight == 0.0:
            continue
        slopes[0, token] -= weight / total
        if not found:
            chosen[0], chosen[1] = 0, token
            left -= weight
            found = left < 0.0
    slopes[0, chosen[1]] += 1.0
    return column[chosen[1]] - top - math.log(total)


@kernel
def sample_traces(start, stop, batch, seeds, samples, log_probs, slopes, status):
    """Draw trees of the items start .. stop−1, and compute the log-probabilities of their traces.

    With a single root, its child is drawn first, among the tokens that reach all others. The
    algorithm itself would draw it last, when all tokens are in one cycle, from the same softmax. It
    would also draw an arc into each cycle that contains this child, and then drop it. Without these
    draws the distribution of trees is the same.

    Args:
        seeds: ``(B,)`` uint64, not zero.
        samples, log_probs: see :func:`traces`; heads are −1 for the root and padding.
        slopes: zeros at the call; the gradients of log_probs are written.
    """
    scores, lengths, (direction, max_arc_length, single_root) = batch
    for b in range(start, stop):
        n = lengths[b]
        size = n + 1
        for k in range(samples.shape[0]):
            samples[k, b, :] = -1
            log_probs[k, b] = 0.0
        matrix = np.empty((size, size))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix)
        if status[b] != FEASIBLE or n == 0:
            continue
        incoming = matrix.T.copy()
        column = np.empty(size)
        reached = np.empty(size, dtype=np.int64)
        stack = np.empty(size, dtype=np.int64)
        if single_root:
            status[b] = _roots(incoming, n, column, reached, stack)
            if status[b] != FEASIBLE:
                continue
        lowest = 1 if single_root else 0
        draws = seeds[b : b + 1].copy()
        chosen = np.zeros(2, dtype=np.int64)
        # As in arborescence.py, a contracted cycle is stored in the row of one of its members.
        row_of = np.empty(size, dtype=np.int64)
        following = np.empty(size, dtype=np.int64)
        last = np.empty(size, dtype=np.int64)
        identity = np.empty(size, dtype=np.int64)
        position = np.empty(size, dtype=np.int64)
        path = np.empty(size, dtype=np.int64)
        state = np.empty(size, dtype=np.int64)  # 0 untouched, 1 on the path, 2 attached
        parent = np.empty(2 * size, dtype=np.int64)
        removed = np.empty(2 * size, dtype=np.int64)
        entering_head = np.empty(2 * size, dtype=np.int64)
        entering_modifier = np.empty(2 * size, dtype=np.int64)
        for k in range(samples.shape[0]):
            heads, slope = samples[k, b], slopes[k, b]
            total = 0.0
            for node in range(size):
                row_of[node] = last[node] = identity[node] = node
                following[node] = -1
                state[node] = 0
            for node in range(2 * size):
                parent[node] = entering_head[node] = -1
                removed[node] = 0
            state[0] = 2
            if single_root:
                total += _choose_root(column, n, slope, draws, chosen)
                state[chosen[1]] = 2
                entering_head[chosen[1]], entering_modifier[chosen[1]] = 0, chosen[1]
            count = size
            for first in range(1, size):
                if state[row_of[first]] != 0:
                    continue
                depth = 0
                path[0] = row_of[first]
                position[path[0]] = 0
                state[path[0]] = 1
                while True:
                    top = path[depth]
                    found = _choose_entering(
                        incoming, lowest, n, top, (row_of, following), slope, draws, chosen
                    )
                    if found > 0.0:
                        status[b] = INFEASIBLE
                        break
                    total += found
                    entering_head[identity[top]] = chosen[0]
                    entering_modifier[identity[top]] = chosen[1]
                    below = row_of[chosen[0]]
                    if state[below] == 2:
                        for i in range(depth + 1):
                            state[path[i]] = 2
                        break
                    if state[below] == 0:
                        depth += 1
                        path[depth] = below
                        position[below] = depth
                        state[below] = 1
                        continue
                    # The path has closed a cycle from row ``below`` to its end.
                    parent[identity[below]] = count
                    for i in range(position[below] + 1, depth + 1):
                        member = path[i]
                        parent[identity[member]] = count
                        following[last[below]] = member
                        last[below] = last[member]
                        token = member
                        while token != -1:
                            row_of[token] = below
                            token = following[token]
                    identity[below] = count
                    count += 1
                    depth = position[below]
                if status[b] != FEASIBLE:
                    break
            if status[b] != FEASIBLE:
                break
            expand_cycles(count, entering_head, entering_modifier, parent, removed, heads)
            log_probs[k, b] = total


def traces(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    options: list[int],
    num_samples: int,
    generator: torch.Generator | None,
    name: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sampled heads, with the log-probabilities of their traces and their gradients.

    The options are direction, max_arc_length and single_root as numbers.

    Returns:
        Heads ``(K, B, N+1)`` int32, log-probabilities ``(K, B)`` and their gradients ``(K, B, N+1,
        N+1)``, both float64. All are on the CPU and without gradient.

    Raises:
        InvalidScores: some items, which the message names, have invalid scores.
        InfeasibleError: some items have no tree.
    """
    array, sizes = read_float64(scores.detach()), fetch(lengths).contiguous().numpy()
    seeds = draw_seeds(len(array), generator).numpy().astype(np.uint64)
    heads = np.empty((num_samples, *array.shape[:2]), dtype=np.int32)
    log_probs = np.zeros((num_samples, len(array)))
    slopes = np.zeros((num_samples, *array.shape))
    status = np.zeros(len(array), dtype=np.int8)
    costs = 1_000 + num_samples * (500 + 40.0 * sizes.astype(np.float64) ** 2)
    batch = (array, sizes, tuple(options))
    spread(sample_traces, costs, (batch, seeds, heads, log_probs, slopes, status))
    check(name, status)
    return torch.from_numpy(heads), torch.from_numpy(log_probs), torch.from_numpy(slopes)
