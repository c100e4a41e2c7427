"""Heights at which arcs and brackets over a row of words do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def levels(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """Return a low level, from 1, for each interval.

    An interval is above all intervals that it contains. Intervals that cross have different levels.

    Args:
        intervals: (start, end) with start < end. Intervals that only share an end may have the same
            level.
    """
    if not intervals:
        return []
    ends = np.array(intervals)
    # The shortest first, so that the contents of an interval are placed before it.
    order = np.lexsort((ends[:, 0], ends[:, 1] - ends[:, 0]))
    start, end = ends[order, 0], ends[order, 1]
    found = np.zeros(len(ends), dtype="int64")
    for i in range(len(ends)):
        overlapping = (start[:i] < end[i]) & (start[i] < end[:i])
        held = overlapping & (start[i] <= start[:i]) & (end[:i] <= end[i])
        level = int(found[:i][held].max(initial=0)) + 1
        taken = np.bincount(found[:i][overlapping], minlength=level) > 0
        found[i] = level + np.argmin(np.append(taken[level:], False))
    by_interval = np.empty_like(found)
    by_interval[order] = found
    return by_interval.tolist()


def crossing(intervals: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each interval whether it crosses another.

    Two intervals cross if they overlap and neither contains the other.
    """
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
