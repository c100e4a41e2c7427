"""Status codes that kernels set for each item, and that Python turns into errors."""

from __future__ import annotations

FEASIBLE = 0
INFEASIBLE = 1
NOT_FINITE = 2
# To be solved by another kernel. A family's last kernel may not leave it.
UNSOLVED = 3
# Scores of such magnitude that rounding hides the differences that determine probabilities.
TOO_LARGE = 4
# Above this magnitude, differences of float64 have at most seven correct decimals.
LARGE = 1e9
