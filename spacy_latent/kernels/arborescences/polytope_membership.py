"""Membership of averages of heads in the arborescence polytope.

A point is an average of trees if a total of at least 1 enters each set of words from outside
(Edmonds 1967). Maximum flows from the root check this condition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spacy_latent.kernels.core.compilation import kernel

# A smaller residual capacity is rounding.
EMPTY = 1e-13


@kernel
def _set_distances(left, sink, distance, queue):
    """Write breadth-first distances from the root, up to the distance of ``sink``, else −1.

    The function returns whether ``sink`` is reached.
    """
    nodes = left.shape[0]
    distance[:] = -1
    distance[0] = 0
    for k in range(nodes):
        queue[k] = k
    # Nodes in the queue from ``last`` on have not been reached yet.
    first, last = 0, 1
    while first < last and distance[sink] < 0:
        node = queue[first]
        first += 1
        for i in range(last, nodes):
            k = queue[i]
            if left[node, k] > EMPTY:
                distance[k] = distance[node] + 1
                queue[i], queue[last] = queue[last], k
                last += 1
    return distance[sink] >= 0


@kernel
def _set_upstream(left, sink, upstream, queue):
    """Mark ``sink`` and all words from which the residual graph leads to it."""
    nodes = left.shape[0]
    upstream[:] = False
    upstream[sink] = True
    for k in range(nodes):
        queue[k] = k
    queue[0], queue[sink] = sink, 0
    first, last = 0, 1
    while first < last:
        node = queue[first]
        first += 1
        for i in range(last, nodes):
            k = queue[i]
            if left[k, node] > EMPTY:
                upstream[k] = True
                queue[i], queue[last] = queue[last], k
                last += 1


@kernel
def _flow_on(left, sink, distance, before, place):
    """Subtract a blocking flow to ``sink`` from the residual capacities, and return its amount."""
    nodes = left.shape[0]
    place[:] = 1
    flow, node = 0.0, 0
    while True:
        if node == sink:
            amount = np.inf
            while node:
                amount = min(amount, left[before[node], node])
                node = before[node]
            node = sink
            while node:
                left[before[node], node] -= amount
                # The residual capacity of the reverse arc.
                left[node, before[node]] += amount
                node = before[node]
            flow += amount
        onward = place[node]
        while onward < nodes and not (
            left[node, onward] > EMPTY and distance[onward] == distance[node] + 1
        ):
            onward += 1
        place[node] = onward
        if onward < nodes:
            before[onward] = node
            node = onward
        elif node == 0:
            return flow
        else:
            distance[node] = -1
            node = before[node]


@kernel
def entered_too_little(
    mean: NDArray[np.float64], tolerance: float, inside: NDArray[np.bool_]
) -> int:
    """Find sets of words that less than 1 enters, by maximum flows from the root.

    Flows are computed as blocking flows (Dinic 1970). If less than 1 can flow to a word, a minimum
    cut is such a set that contains the word. If 1 can flow to it, no such set contains it. It is
    then equivalent to the root for the remaining words, and merged with it (Padberg and Rinaldi
    1990). For each minimum cut, the smallest and the largest set are returned. If words are
    similar, there are many sets between these two.

    Args:
        mean: ``(n+1, n+1)``, ``[head, modifier]``, capacity of each arc, at least 0; column 0 and
            the diagonal are 0.
        tolerance: the allowed difference from 1.
        inside: ``(2n, n+1)``, written: the nodes of each set.

    Returns:
        The number of sets, 0 if the point is an average of trees. Words that are in a set already
        get no other.
    """
    nodes = mean.shape[0]
    arcs, left = mean.copy(), np.empty((nodes, nodes))
    of_root, in_set = np.zeros(nodes, dtype=np.bool_), np.zeros(nodes, dtype=np.bool_)
    of_root[0] = True
    distance, queue = np.empty(nodes, dtype=np.int64), np.empty(nodes, dtype=np.int64)
    before, place = np.empty(nodes, dtype=np.int64), np.empty(nodes, dtype=np.int64)
    count = 0
    while True:
        sink, most = 0, -1.0
        for k in range(1, nodes):
            if not of_root[k] and not in_set[k] and arcs[0, k] > most:
                sink, most = k, arcs[0, k]
        if sink == 0:
            return count
        # In most cases the root's own arc is enough.
        flow = most if most >= 1.0 - tolerance else 0.0
        if flow == 0.0:
            left[:] = arcs
        while flow < 1.0 - tolerance:
            if not _set_distances(left, sink, distance, queue):
                smallest, largest = inside[count], inside[count + 1]
                _set_upstream(left, sink, smallest, queue)
                count += 1
                for k in range(nodes):
                    largest[k] = distance[k] < 0 and not of_root[k]
                    in_set[k] |= largest[k]
                if not np.array_equal(smallest, largest):
                    count += 1
                break
            flow += _flow_on(left, sink, distance, before, place)
        if not in_set[sink]:
            of_root[sink] = True
            for k in range(nodes):
                arcs[0, k] += arcs[sink, k]
                arcs[sink, k] = arcs[k, sink] = 0.0
