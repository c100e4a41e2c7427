"""Sums over trees in log space, as references for the kernels.

Outside passes go top-down, and divide the probability of each span among its splits.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from spacy_latent.kernels.spans.eisner import BETWEEN, LEFT, RIGHT, TO_LEFT, TO_RIGHT


@njit(nogil=True, fastmath=False)
def _log_sum_of_pairs(a, b, da, db):
    """Return log Σ exp(a + b), and its tangent: the mean of da + db weighted by the terms."""
    top = -np.inf
    for k in range(len(a)):
        top = max(top, a[k] + b[k])
    if top == -np.inf:
        return -np.inf, 0.0
    total, mean = 0.0, 0.0
    for k in range(len(a)):
        term = math.exp(a[k] + b[k] - top)
        total += term
        mean += term * (da[k] + db[k])
    return top + math.log(total), mean / total


@njit(nogil=True, fastmath=False)
def projective_inside(s, ds, n, first, charts, change):
    """Run the inside pass of projective trees in log space, with its tangents along ``ds``.

    Returns:
        log Z and its tangent.
    """
    charts[:, first : n + 2] = -np.inf
    change[:, first : n + 2] = 0.0
    to_right, to_left, right, left = charts[1], charts[2], charts[3], charts[4]
    d_to_right, d_to_left, d_right, d_left = change[1], change[2], change[3], change[4]
    for i in range(n, first - 1, -1):
        right[i, i] = 0.0
        left[i, i] = 0.0
        for j in range(i + 1, n + 1):
            reach, d_reach = _log_sum_of_pairs(
                right[i, i:j], left[i + 1 : j + 1, j], d_right[i, i:j], d_left[i + 1 : j + 1, j]
            )
            charts[BETWEEN, i, j], change[BETWEEN, i, j] = reach, d_reach
            to_right[i, j], d_to_right[i, j] = reach + s[i, j], d_reach + ds[i, j]
            if i > 0:
                to_left[i, j], d_to_left[i, j] = reach + s[j, i], d_reach + ds[j, i]
            low, high = i + 1, j + 1
            right[i, j], d_right[i, j] = _log_sum_of_pairs(
                to_right[i, low:high],
                right[low:high, j],
                d_to_right[i, low:high],
                d_right[low:high, j],
            )
            left[i, j], d_left[i, j] = _log_sum_of_pairs(
                left[i, i:j], to_left[i:j, j], d_left[i, i:j], d_to_left[i:j, j]
            )
    if first == 0:
        return right[0, n], d_right[0, n]
    for r in range(1, n + 1):
        charts[BETWEEN, 0, r] = left[1, r] + s[0, r]
        change[BETWEEN, 0, r] = d_left[1, r] + ds[0, r]
    return _log_sum_of_pairs(
        charts[BETWEEN, 0, 1 : n + 1],
        right[1 : n + 1, n],
        change[BETWEEN, 0, 1 : n + 1],
        d_right[1 : n + 1, n],
    )


@njit(nogil=True, fastmath=False)
def _hand_down(parent, d_parent, q, dq, a, b, da, db, qa, qb, dqa, dqb):
    """Divide the probability of a span among its splits, and add each share to both parts."""
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
    """Write the marginals and their directional derivatives, from the charts of
    ``projective_inside``.

    Args:
        q, dq: shaped like the charts; written: the probability that a span is part of the tree, and
            its tangent.
    """
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
def constituency_inside(s, ds, n, inside, dinside, turned, dturned):
    """Run the inside pass in log space, with tangents along ``ds``. Single words have score 0.

    Args:
        turned, dturned: written: the transposed charts, [last, first].
    """
    for i in range(n - 1, -1, -1):
        inside[i, i] = turned[i, i] = 0.0
        dinside[i, i] = dturned[i, i] = 0.0
        for j in range(i + 1, n):
            value, change = _log_sum_of_pairs(
                inside[i, i:j],
                turned[j, i + 1 : j + 1],
                dinside[i, i:j],
                dturned[j, i + 1 : j + 1],
            )
            inside[i, j] = turned[j, i] = value + s[i, j]
            dinside[i, j] = dturned[j, i] = change + ds[i, j]


@njit(nogil=True, fastmath=False)
def constituency_outside(s, ds, n, inside, dinside, turned, dturned, marginals, changes):
    """Write the marginals and their directional derivatives, from the longest span to the shortest.

    Each span divides its probability among its splits, in proportion to their weights.
    """
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
