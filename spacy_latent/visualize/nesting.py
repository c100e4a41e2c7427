"""Heights at which arcs and brackets over a row of words do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def levels(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """A level from 1 up for each interval, higher than that of any shorter one that it overlaps.

    intervals: (start, end) with start < end; those that only share an end do not overlap.
    """
    taken = np.zeros(max((end for _, end in intervals), default=0), dtype="int32")
    found = [0] * len(intervals)
    by_length = sorted(range(len(intervals)), key=lambda i: (_length(intervals[i]), intervals[i]))
    for i in by_length:
        start, end = intervals[i]
        found[i] = int(taken[start:end].max()) + 1
        taken[start:end] = found[i]
    return found


def _length(interval: tuple[int, int]) -> int:
    return interval[1] - interval[0]


def crossing(intervals: Sequence[tuple[int, int]]) -> list[bool]:
    """Whether each interval crosses another: they overlap and neither holds the other."""
    if not intervals:
        return []
    ends = np.array(intervals)
    start, end = ends[:, 0], ends[:, 1]
    crossed = np.zeros(len(ends), dtype=bool)
    # Row by row: all pairs at once would need gigabytes for a text of 10,000 words.
    for i in range(len(ends)):
        inside = (start[i] < start) & (start < end[i]) & (end[i] < end)
        crossed |= inside
        crossed[i] |= bool(inside.any())
    return crossed.tolist()
