"""Numbers of the operations of a family's kernels (see kernels.autograd.operators.Family)."""

from __future__ import annotations

# BEST: the best structures, on a GPU. LOG_PARTITION: the log-partition alone. MARGINALS: the
# marginals too. HESSIAN_PRODUCT: the Hessian of the log-partition times a vector. The cost of each
# sum is about 1 + its number.
BEST, LOG_PARTITION, MARGINALS, HESSIAN_PRODUCT = range(-1, 3)
