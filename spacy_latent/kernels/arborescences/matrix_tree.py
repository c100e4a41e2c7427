"""Sums over spanning arborescences without subtraction.

Sums over arborescences are determinants of a Laplacian (Koo et al. 2007; Smith and Smith 2007). The
determinant loses all digits if two tokens prefer each other. The elimination in this folder's
README avoids this: every number stays positive and accurate to its last digits. With a single root,
Z is the part of the determinant that is linear in the root's arcs. Pivots therefore leave root arcs
out. The last token to be eliminated is the exception: its pivot is its root arc alone.

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

from spacy_latent.kernels.arborescences.arborescence import best_arborescences
from spacy_latent.kernels.arborescences.arborescence_samples import sample_trees
from spacy_latent.kernels.arborescences.elimination import sum_over_trees
from spacy_latent.kernels.arborescences.elimination_logarithms import sum_by_logarithms
from spacy_latent.kernels.arborescences.escape_sums import kept_size, sum_by_escapes
from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.core.operations import LOG_PARTITION
from spacy_latent.kernels.gpu.dispatch import GpuKernels

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
