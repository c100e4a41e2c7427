"""Codes of the operations of a family of kernels (see kernels.autograd.families.Family)."""

from __future__ import annotations

# BEST: the best structures, on a GPU. LOG_PARTITION: the log-partition alone. MARGINALS: also the
# marginals. HESSIAN_PRODUCT: the Hessian of the log-partition times a vector. The cost of a sum is
# about 1 + its code.
BEST, LOG_PARTITION, MARGINALS, HESSIAN_PRODUCT = range(-1, 3)
