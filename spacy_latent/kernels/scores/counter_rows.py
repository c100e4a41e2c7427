"""Kernels of the inputs and the outputs of the perceptron of counter_pairs, over rows of pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel

# Pairs in a block: their hidden layers take one or two megabytes.
PAIRS = 2048
# Input rows of each counter: the clipped ones, and all. The others say how near the difference of
# the ends is to 0, 1 and −1.
BOUNDED, SEEN = 5, 8
# In training, differences of counters are at most the depth of the training texts. Differences
# above the limit are clipped, so deeper texts look the same. With tanh, they would go on growing.
LIMIT = 1.0


class Rows(NamedTuple):
    """Pairs of positions i < j, in rows of pairs with the same item and the same i.

    Attributes:
        item, place: b and i of each row.
        begin: the number of pairs before each row, and after the last.
    """

    item: np.ndarray
    place: np.ndarray
    begin: np.ndarray

    @classmethod
    def of(cls, start: int, stop: int, lengths: np.ndarray) -> Rows:
        """Return the rows of the items start .. stop−1."""
        counts = np.maximum(lengths[start:stop] - 1, 0)
        item = np.repeat(np.arange(start, stop), counts)
        place = np.arange(len(item)) - np.repeat(np.cumsum(counts) - counts, counts)
        begin = np.zeros(len(item) + 1, dtype=np.int64)
        np.cumsum(lengths[item] - 1 - place, out=begin[1:])
        return cls(item, place, begin)

    def blocks(self) -> Iterator[Rows]:
        """Yield blocks of rows that together have at most :data:`PAIRS` pairs, or single rows."""
        start = 0
        while start < len(self.item):
            limit = self.begin[start] + PAIRS
            stop = max(int(np.searchsorted(self.begin, limit, side="right")) - 1, start + 1)
            begin = self.begin[start : stop + 1] - self.begin[start]
            yield Rows(self.item[start:stop], self.place[start:stop], begin)
            start = stop

    def most_pairs(self) -> int:
        """Return the largest number of pairs in a block."""
        return min(max(PAIRS, int(np.diff(self.begin).max(initial=0))), int(self.begin[-1]))


class Terms(NamedTuple):
    """The additions to the second layer for heads and modifiers, and the weights of its output.

    The gradient of each is a record of the same kind.
    """

    heads: np.ndarray
    modifiers: np.ndarray
    output: np.ndarray


@kernel
def differences(rows, values, lengths, inner, seen):
    """Write the inputs of the perceptron to ``seen`` (8·K + 2, pairs), before clipping and exp.

    Rows come in groups of K, one row for each counter. The groups are v_j − v_i, minimum − v_i,
    minimum − v_j, maximum − v_i and maximum − v_j; then v_j − v_i again, 2·(v_j − v_i − 1) and
    2·(v_j − v_i + 1). The last two rows are exp(i − j) and 1.

    Extremes are over v_i … v_{j−1}, without v_i if ``inner``. They are infinite over an empty
    range.
    """
    count = values.shape[2]
    infinite = values.dtype.type(np.inf)
    one, two = values.dtype.type(1), values.dtype.type(2)
    for r in range(len(rows.item)):
        b, i = rows.item[r], rows.place[r]
        for k in range(count):
            own = values[b, i, k]
            low, high = (infinite, -infinite) if inner else (own, own)
            p = rows.begin[r]
            for j in range(i + 1, lengths[b]):
                value = values[b, j, k]
                seen[k, p] = value - own
                seen[count + k, p] = low - own
                seen[2 * count + k, p] = low - value
                seen[3 * count + k, p] = high - own
                seen[4 * count + k, p] = high - value
                seen[5 * count + k, p] = value - own
                seen[6 * count + k, p] = two * (value - own - one)
                seen[7 * count + k, p] = two * (value - own + one)
                low = value if value < low else low
                high = value if value > high else high
                p += 1
        p = rows.begin[r]
        for j in range(i + 1, lengths[b]):
            seen[SEEN * count, p] = math.exp(i - j)
            seen[SEEN * count + 1, p] = 1.0
            p += 1


@kernel
def _within_limit(result, change):
    return change if -LIMIT < result < LIMIT else change - change


@kernel
def differences_gradient(rows, values, lengths, inner, seen, change, result):
    """Add the gradient of the values to ``result`` (B, n, K).

    Args:
        seen: the inputs of the perceptron, after clipping and exp.
        change: ``(8·K, pairs)``, the gradient of seen. The gradient of an extreme goes to the first
            of equal positions.
    """
    count = values.shape[2]
    infinite, one = values.dtype.type(np.inf), values.dtype.type(1)
    two, eight = values.dtype.type(2), values.dtype.type(8)
    for r in range(len(rows.item)):
        b, i = rows.item[r], rows.place[r]
        for k in range(count):
            own = values[b, i, k]
            low, high = (infinite, -infinite) if inner else (own, own)
            low_place, high_place = i, i
            of_own = own - own
            p = rows.begin[r]
            for j in range(i + 1, lengths[b]):
                value = values[b, j, k]
                low_first = _within_limit(seen[count + k, p], change[count + k, p])
                low_last = _within_limit(seen[2 * count + k, p], change[2 * count + k, p])
                high_first = _within_limit(seen[3 * count + k, p], change[3 * count + k, p])
                high_last = _within_limit(seen[4 * count + k, p], change[4 * count + k, p])
                equal = seen[5 * count + k, p] * change[5 * count + k, p]
                above = seen[6 * count + k, p] * change[6 * count + k, p]
                below = seen[7 * count + k, p] * change[7 * count + k, p]
                step = value - own
                ends = _within_limit(seen[k, p], change[k, p])
                ends -= two * step * equal
                ends -= eight * ((step - one) * above + (step + one) * below)
                of_own -= ends + low_first + high_first
                result[b, j, k] += ends - low_last - high_last
                result[b, low_place, k] += low_first + low_last
                result[b, high_place, k] += high_first + high_last
                if value < low:
                    low, low_place = value, j
                if value > high:
                    high, high_place = value, j
                p += 1
            result[b, i, k] += of_own


@kernel(fastmath=ANY_ORDER)
def outputs(rows, lengths, hidden, terms, scores):
    """Write scores[b, h, m] = Σ output · max(0, hidden + heads[b, h] + modifiers[b, m]).

    Args:
        hidden: ``(pairs, 1 or 2, H)``, first for h = i and m = j, then for h = j and m = i.
    """
    (orders, units), (heads, modifiers, output) = hidden.shape[1:], terms
    zero = hidden.dtype.type(0)
    for r in range(len(rows.item)):
        b, i = rows.item[r], rows.place[r]
        p = rows.begin[r]
        for j in range(i + 1, lengths[b]):
            for order in range(orders):
                h, m = (i, j) if order == 0 else (j, i)
                total = zero
                for u in range(units):
                    unit = hidden[p, order, u] + heads[b, h, u] + modifiers[b, m, u]
                    total += output[u] * max(unit, zero)
                scores[b, h, m] = total
            p += 1


@kernel(fastmath=ANY_ORDER)
def outputs_gradient(rows, lengths, hidden, terms, change, result):
    """Overwrite ``hidden`` with its gradient, and add to the gradients of the terms.

    Args:
        change: the gradient of the scores, ``(B, n, n)``.
        result: the gradients to add to.
    """
    (orders, units), (heads, modifiers, output) = hidden.shape[1:], terms
    of_heads, of_modifiers, of_output = result
    zero = hidden.dtype.type(0)
    for r in range(len(rows.item)):
        b, i = rows.item[r], rows.place[r]
        p = rows.begin[r]
        for j in range(i + 1, lengths[b]):
            for order in range(orders):
                h, m = (i, j) if order == 0 else (j, i)
                given = change[b, h, m]
                for u in range(units):
                    unit = hidden[p, order, u] + heads[b, h, u] + modifiers[b, m, u]
                    of_output[u] += given * max(unit, zero)
                    step = given * output[u] if unit > zero else zero
                    hidden[p, order, u] = step
                    of_heads[b, h, u] += step
                    of_modifiers[b, m, u] += step
            p += 1
