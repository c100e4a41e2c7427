"""Status codes that kernels set for each item, and that Python turns into errors."""

from __future__ import annotations

FEASIBLE = 0
INFEASIBLE = 1
NOT_FINITE = 2
# Left to another kernel.
UNSOLVED = 3
# Scores so large that sums of them have no digits left for probabilities.
TOO_LARGE = 4
# A difference of numbers above this has at most seven correct digits after the point.
LARGE = 1e9
