"""Sums over spanning arborescences without subtraction.

Sums over arborescences are determinants of a Laplacian (Koo et al. 2007; Smith and Smith 2007). The
determinant loses all digits if two tokens prefer each other. The elimination of Grassmann, Taksar
and Heyman (1985) avoids this. It removes a token k and gives each arc k → m to the heads of k, in
shares f[h] = w[h, k] / d with the pivot d = Σ_h w[h, k]: w[h, m] += f[h]·w[k, m]. Self-loops are
dropped. Then log Z = Σ_k log d. Every number stays positive and accurate to its last digits. With a
single root, Z is the part of the determinant that is linear in the root's arcs. Pivots therefore
leave root arcs out. The last token to be eliminated is the exception: its pivot is its root arc
alone.

**Underflow.** Weights are exp(score − the column's best), and everything is float64. If
cancellation is strong, weights that underflowed could matter, or the adjoint could overflow. The
same elimination then runs on logarithms. The product of all pivots, each divided by the sum of its
token's weights, is the probability that independently chosen heads form a tree (SMALLEST_CHANCE).
The loss of a weight w changes Z by a share of at most w divided by this probability. If every arc
between tokens has a weight of at least SMALLEST_WEIGHT, no weight is lost: weights between tokens
only grow, and a summand that underflows is smaller than the other one by a factor of 1e-100. Sums
and marginals then need no logarithms, however improbable trees are.

**Marginals** are w[h, m]·B[m, m]·Q[h, m], with the inverse B of the Laplacian and the escape
probabilities Q of a walk over heads. kernels.arborescences.escape_probabilities computes both
without subtraction. Marginals then have a relative error of about 1e-14, however small they are,
also with a single root. It was at most 2e-14 for 12 and 30 tokens at scores of scale 1 to 40, with
2e-134 as the smallest marginal. Marginals below 1e-150 may be lost.

**Hessian products** take two matrix products with Q, and differences of entries of Q. Their error
grows with the *returns*: for a walk that starts at token m, the expected number of steps out of m,
before the root is reached, that do not take m's best arc. With a single root, the error grows with
that number times the largest Q of the token. For 12 and 50 tokens at scores of scale 5 to 40, the
error was at most a few 1e-15 and 2e-15 times that number, times the vector. If the number exceeds
LARGEST_RETURNS of the required precision, the product comes from the elimination and its adjoint.
The subtraction there, 1 − Σ_h f[h]·reach[h], has an error of a few 1e-15 for any scores. Marginals
are computed in the same way if weights are too small for
kernels.arborescences.escape_probabilities. Marginals below 1e-15 may then have no correct digit.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.arborescences.arborescence import best_arborescences
from spacy_latent.kernels.arborescences.elimination import sum_over_trees
from spacy_latent.kernels.arborescences.elimination_logarithms import sum_by_logarithms
from spacy_latent.kernels.arborescences.escape_sums import kept_size, sum_by_escapes
from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import choose
from spacy_latent.kernels.core.operations import LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, UNSOLVED
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.arc_scores import read_arc_scores


@kernel
def _marginals_alone(batch, result, flag):
    """Write the marginals of one item, by logarithms if needed."""
    item, no_along = np.zeros(1, np.int64), np.zeros((1, 1, 1))
    results = (np.empty(1), result, np.empty((1, 0)), flag)
    sum_over_trees(0, 1, item, batch, no_along, MARGINALS, results)
    if flag[0] == UNSOLVED:
        sum_by_logarithms(0, 1, item, batch, no_along, MARGINALS, results)


@kernel
def _has_tree(scores, n):
    """Return whether each of n tokens can be reached from the root by allowed arcs."""
    reached = np.zeros(n + 1, dtype=np.uint8)
    queue = np.zeros(n + 1, dtype=np.int64)
    reached[0] = 1
    first, end = 0, 1
    while first < end:
        head = queue[first]
        first += 1
        for token in range(1, n + 1):
            if not reached[token] and scores[head, token] > -np.inf:
                reached[token] = 1
                queue[end] = token
                end += 1
    return end == n + 1


@kernel
def _wilson(scores, n, root, heads, column, state, max_steps):
    """Draw a tree by Wilson's algorithm (1996): loop-erased random walks into the tree.

    The walks start from the tree that consists of ``root``, whose head is given. If ``root`` is a
    token, no other token attaches to node 0.

    Returns:
        Whether the walks ended within max_steps.
    """
    reached = np.zeros(n + 1, dtype=np.uint8)
    reached[0] = 1
    reached[root] = 1
    steps = 0
    for start in range(1, n + 1):
        node = start
        while not reached[node]:
            for head in range(n + 1):
                column[head] = scores[head, node]
            if root != 0:
                column[0] = -np.inf
            heads[node] = choose(column, n + 1, state)
            node = heads[node]
            steps += 1
            if steps > max_steps:
                return False
        node = start
        while not reached[node]:
            reached[node] = 1
            node = heads[node]
    return True


@kernel
def sample_trees(start, stop, batch, seeds, samples, status):
    """Draw exact samples for the items start .. stop−1.

    Walks take long if tokens prefer each other. If they do not end soon, the heads are drawn one
    token after another from their exact conditional distributions.

    Args:
        seeds: ``(B,)`` uint64, not zero.
        samples: ``(K, B, N+1)`` int32 heads.
    """
    scores, lengths, options = batch
    direction, max_arc_length, single_root = options
    for b in range(start, stop):
        n = lengths[b]
        for k in range(samples.shape[0]):
            samples[k, b, :] = -1
        matrix = np.empty((1, n + 1, n + 1))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix[0])
        if status[b] != FEASIBLE or n == 0:
            continue
        marginals, flag = np.empty((1, n + 1, n + 1)), np.empty(1, dtype=np.int8)
        size = np.full(1, n)
        if single_root:
            # The root's child is drawn from its marginals.
            _marginals_alone((matrix, size, options), marginals, flag)
            status[b] = flag[0]
        elif not _has_tree(matrix[0], n):
            status[b] = INFEASIBLE
        if status[b] != FEASIBLE:
            continue
        state = seeds[b : b + 1].copy()
        column = np.empty(n + 1)
        for k in range(samples.shape[0]):
            heads = samples[k, b]
            root = 0
            if single_root:
                for token in range(n + 1):
                    column[token] = -np.inf
                    if marginals[0, 0, token] > 0.0:
                        column[token] = math.log(marginals[0, 0, token])
                root = choose(column, n + 1, state)
                heads[root] = 0
            # This many steps take less than half of the time of the exact method below.
            steps = max(100 * (n + 1), (n + 1) ** 3 // 100)
            if _wilson(matrix[0], n, root, heads, column, state, steps):
                continue
            # Erased cycles are independent of the tree, so giving up on long walks does not bias
            # it. The drawn child of the root is kept, since walks are longer for some children than
            # for others.
            fixed = matrix.copy()
            if single_root:
                for token in range(1, n + 1):
                    if token == root:
                        fixed[0, 1:, token] = -np.inf
                    else:
                        fixed[0, 0, token] = -np.inf
            conditional = np.empty((1, n + 1, n + 1))
            for modifier in range(1, n + 1):
                _marginals_alone((fixed, size, options), conditional, flag)
                for head in range(n + 1):
                    column[head] = -np.inf
                    if conditional[0, head, modifier] > 0.0:
                        column[head] = math.log(conditional[0, head, modifier])
                heads[modifier] = choose(column, n + 1, state)
                for head in range(n + 1):
                    if head != heads[modifier]:
                        fixed[0, head, modifier] = -np.inf


FAMILY = Family(
    name="SpanningTree",
    best=best_arborescences,
    total=sum_over_trees,
    sample=sample_trees,
    best_shape=lambda shape: tuple(shape[:2]),
    best_cost=lambda n: 500 + 0.65 * n**2,
    total_cost=lambda n: 2_000 + 6.0 * n**2 + 0.1 * n**3,
    kept_size=lambda shape: kept_size(shape[1] - 1),
    fallback=sum_by_logarithms,
    before_total=sum_by_escapes,
    before_total_for=lambda operation, options: operation != LOG_PARTITION,
    same_dtype=True,
    device=GpuKernels("spanning_tree"),
)
