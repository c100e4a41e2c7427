"""Outside passes on logarithms, top-down by the probability of each split: the references of the
kernels, which work on numbers with exponents."""

from __future__ import annotations

import math

from numba import njit

from spacy_latent.kernels.spans.inside_outside import BETWEEN, LEFT, RIGHT, TO_LEFT, TO_RIGHT


@njit(nogil=True, fastmath=False)
def _hand_down(parent, d_parent, q, dq, a, b, da, db, qa, qb, dqa, dqb):
    """Give a span's probability to the two parts of each split, in proportion."""
    if q == 0.0 and dq == 0.0:
        return
    for k in range(len(a)):
        share = math.exp(a[k] + b[k] - parent)
        if share > 0.0:
            passed = q * share
            d_passed = dq * share + passed * (da[k] + db[k] - d_parent)
            qa[k] += passed
            qb[k] += passed
            dqa[k] += d_passed
            dqb[k] += d_passed


@njit(nogil=True, fastmath=False)
def projective_outside(s, ds, n, first, charts, change, total, d_total, q, dq, out, d_out):
    """Marginals and their directional derivatives, from what _log_inside left. q, dq: like charts,
    the probability that a span is part of the tree."""
    q[:, : n + 2] = 0.0
    dq[:, : n + 2] = 0.0
    to_right, to_left, right, left = charts[1], charts[2], charts[3], charts[4]
    d_to_right, d_to_left, d_right, d_left = change[1], change[2], change[3], change[4]
    if first == 0:
        q[RIGHT, 0, n] = 1.0
    else:
        a, b = slice(1, n + 1), n
        _hand_down(
            total,
            d_total,
            1.0,
            0.0,
            charts[BETWEEN, 0, a],
            right[a, b],
            change[BETWEEN, 0, a],
            d_right[a, b],
            q[BETWEEN, 0, a],
            q[RIGHT, a, b],
            dq[BETWEEN, 0, a],
            dq[RIGHT, a, b],
        )
        for r in range(1, n + 1):
            out[0, r] = q[BETWEEN, 0, r]
            d_out[0, r] = dq[BETWEEN, 0, r]
            q[LEFT, 1, r] += q[BETWEEN, 0, r]
            dq[LEFT, 1, r] += dq[BETWEEN, 0, r]
    for i in range(first, n + 1):
        for j in range(n, i, -1):
            low, high = i + 1, j + 1
            _hand_down(
                right[i, j],
                d_right[i, j],
                q[RIGHT, i, j],
                dq[RIGHT, i, j],
                to_right[i, low:high],
                right[low:high, j],
                d_to_right[i, low:high],
                d_right[low:high, j],
                q[TO_RIGHT, i, low:high],
                q[RIGHT, low:high, j],
                dq[TO_RIGHT, i, low:high],
                dq[RIGHT, low:high, j],
            )
            _hand_down(
                left[i, j],
                d_left[i, j],
                q[LEFT, i, j],
                dq[LEFT, i, j],
                left[i, i:j],
                to_left[i:j, j],
                d_left[i, i:j],
                d_to_left[i:j, j],
                q[LEFT, i, i:j],
                q[TO_LEFT, i:j, j],
                dq[LEFT, i, i:j],
                dq[TO_LEFT, i:j, j],
            )
            out[i, j], d_out[i, j] = q[TO_RIGHT, i, j], dq[TO_RIGHT, i, j]
            if i > 0:
                out[j, i], d_out[j, i] = q[TO_LEFT, i, j], dq[TO_LEFT, i, j]
            _hand_down(
                charts[BETWEEN, i, j],
                change[BETWEEN, i, j],
                q[TO_RIGHT, i, j] + q[TO_LEFT, i, j],
                dq[TO_RIGHT, i, j] + dq[TO_LEFT, i, j],
                right[i, i:j],
                left[low:high, j],
                d_right[i, i:j],
                d_left[low:high, j],
                q[RIGHT, i, i:j],
                q[LEFT, low:high, j],
                dq[RIGHT, i, i:j],
                dq[LEFT, low:high, j],
            )


@njit(nogil=True, fastmath=False)
def constituency_outside(s, ds, n, inside, dinside, turned, dturned, marginals, changes):
    """Marginals and their directional derivatives, from the widest span down: each gives its
    probability to the pairs of spans it may consist of, in proportion."""
    for i in range(n):
        for j in range(i, n):
            marginals[i, j] = 0.0
            changes[i, j] = 0.0
    marginals[0, n - 1] = 1.0
    for length in range(n - 1, 0, -1):
        for i in range(n - length):
            j = i + length
            q, dq = marginals[i, j], changes[i, j]
            if q == 0.0 and dq == 0.0:
                continue
            whole, dwhole = inside[i, j] - s[i, j], dinside[i, j] - ds[i, j]
            for k in range(i, j):
                share = math.exp(inside[i, k] + turned[j, k + 1] - whole)
                if share > 0.0:
                    given = q * share
                    change = dq * share
                    change += given * (dinside[i, k] + dturned[j, k + 1] - dwhole)
                    marginals[i, k] += given
                    marginals[k + 1, j] += given
                    changes[i, k] += change
                    changes[k + 1, j] += change
