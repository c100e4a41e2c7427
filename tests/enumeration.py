"""Enumerations of all structures of small sets, as a reference for exact inference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np


def is_tree(heads: tuple[int, ...]) -> bool:
    """Return whether the heads of tokens 1 to n form a tree. 0 is the root."""
    for modifier in range(1, len(heads) + 1):
        seen, node = set(), modifier
        while node != 0:
            if node in seen:
                return False
            seen.add(node)
            node = heads[node - 1]
    return True


def is_projective(heads: tuple[int, ...]) -> bool:
    """Return whether every token between a head and its modifier descends from that head."""
    n = len(heads)

    def descends(node: int, ancestor: int) -> bool:
        while node != 0 and node != ancestor:
            node = heads[node - 1]
        return node == ancestor

    for modifier in range(1, n + 1):
        head = heads[modifier - 1]
        low, high = min(head, modifier), max(head, modifier)
        if not all(descends(between, head) for between in range(low + 1, high)):
            return False
    return True


def dependency_trees(
    n: int,
    projective: bool = False,
    single_root: bool = False,
    direction: str = "any",
    max_arc_length: int | None = None,
) -> Iterator[tuple[int, ...]]:
    """Yield the heads of every dependency tree over n tokens that satisfies the constraints."""
    for heads in product(range(n + 1), repeat=n):
        if any(head == modifier for modifier, head in enumerate(heads, 1)):
            continue
        if single_root and sum(head == 0 for head in heads) != (1 if n else 0):
            continue
        arcs = [(head, modifier) for modifier, head in enumerate(heads, 1) if head != 0]
        if direction == "earlier" and any(head > modifier for head, modifier in arcs):
            continue
        if direction == "later" and any(head < modifier for head, modifier in arcs):
            continue
        if max_arc_length is not None and any(abs(h - m) > max_arc_length for h, m in arcs):
            continue
        if is_tree(heads) and (not projective or is_projective(heads)):
            yield heads


def arcs(heads: tuple[int, ...]) -> np.ndarray:
    """Return the 0/1 array ``(n+1, n+1)``, ``[head, modifier]``, of a tree."""
    n = len(heads)
    z = np.zeros((n + 1, n + 1))
    z[list(heads), range(1, n + 1)] = 1.0
    return z


def tag_sequences(n: int, num_tags: int) -> Iterator[tuple[int, ...]]:
    """Yield every sequence of n tags."""
    yield from product(range(num_tags), repeat=n)


def transitions(tags: tuple[int, ...], num_tags: int) -> np.ndarray:
    """Return the 0/1 array ``(n, K, K)``, ``[position, previous tag, tag]``, of a tag sequence.

    The previous tag of the first position is 0.
    """
    z = np.zeros((len(tags), num_tags, num_tags))
    for i, tag in enumerate(tags):
        z[i, tags[i - 1] if i else 0, tag] = 1.0
    return z


def constituency_trees(n: int) -> Iterator[np.ndarray]:
    """Yield every binary tree over n words as a 0/1 array ``(n, n)``, [first, last], of spans."""

    def below(first: int, last: int) -> list[list[tuple[int, int]]]:
        if first == last:
            return [[(first, last)]]
        return [
            [(first, last), *left, *right]
            for split in range(first, last)
            for left in below(first, split)
            for right in below(split + 1, last)
        ]

    if n == 0:
        yield np.zeros((0, 0))
        return
    for spans in below(0, n - 1):
        z = np.zeros((n, n))
        for first, last in spans:
            z[first, last] = 1.0
        yield z


def segmentations(
    n: int, longest: int, num_labels: int
) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Yield every sequence of segments that cover n positions.

    A segment is its first position, the position after its last one, and its label.
    """
    if n == 0:
        yield ()
    for length in range(1, min(longest, n) + 1):
        for before in segmentations(n - length, longest, num_labels):
            for label in range(num_labels):
                yield (*before, (n - length, n, label))


def warping_paths(rows: int, columns: int) -> Iterator[np.ndarray]:
    """Yield the cells of every path from the first cell to the last, as a 0/1 array.

    A step goes to the next row, to the next column, or to both.
    """
    if rows == 0 or columns == 0:
        yield np.zeros((rows, columns))
        return

    def before(i: int, j: int) -> Iterator[list[tuple[int, int]]]:
        if i == 0 and j == 0:
            yield [(0, 0)]
        for a, b in ((i - 1, j), (i, j - 1), (i - 1, j - 1)):
            if a >= 0 and b >= 0:
                for path in before(a, b):
                    yield [*path, (i, j)]

    for path in before(rows - 1, columns - 1):
        z = np.zeros((rows, columns))
        z[tuple(np.array(path).T)] = 1.0
        yield z


def monotone_matchings(rows: int, columns: int) -> Iterator[np.ndarray]:
    """Yield the cells of every matching in which later rows have later columns, as a 0/1 array."""
    for size in range(min(rows, columns) + 1):
        for chosen_rows in combinations(range(rows), size):
            for chosen_columns in combinations(range(columns), size):
                z = np.zeros((rows, columns))
                z[list(chosen_rows), list(chosen_columns)] = 1.0
                yield z
