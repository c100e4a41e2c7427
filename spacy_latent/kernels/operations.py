"""Numbers of the operations of a family's kernels (see kernels.operators.Family)."""

from __future__ import annotations

# The best structures, from a GPU; the log-partition alone; the marginals too; the Hessian of the
# log-partition times a vector. Each sum costs about as much more as its number says.
BEST, LOG_PARTITION, MARGINALS, HESSIAN_PRODUCT = range(-1, 3)
