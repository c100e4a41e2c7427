"""The k best monotone alignments: the recursion of the best one, keeping k at each point."""

from __future__ import annotations

import numpy as np

# States of matching. In "rows", rows of the first text may still be skipped, as in
# :mod:`spacy_latent.kernels.alignments.monotone_alignment`. So no alignment is found twice. Paths
# have this state alone.
ROWS, COLUMNS = 0, 1
# For each state, the moves that lead to a point of the grid: the state before, the numbers of rows
# and columns that are passed, and whether the move takes the cell between.
Moves = tuple[tuple[tuple[int, int, int, bool], ...], ...]
WARPING: Moves = (((ROWS, 1, 0, True), (ROWS, 0, 1, True), (ROWS, 1, 1, True)),)
MATCHING: Moves = (
    ((ROWS, 1, 0, False), (ROWS, 1, 1, True), (COLUMNS, 1, 1, True)),
    ((ROWS, 0, 1, False), (COLUMNS, 0, 1, False)),
)


def k_best_alignments(
    scores: np.ndarray, k: int, moves: Moves
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the cells ``(C, 2)`` of the at most k best alignments, best first, and their scores.

    It takes O(n·m·k log k), a diagonal of the grid at a time. If n or m is 0, there is the empty
    alignment.

    Args:
        scores: ``(n, m)`` float64, −inf at forbidden cells.
    """
    rows, columns = scores.shape
    if not scores.size:
        return [np.zeros((0, 2), dtype="int64")], np.zeros(1)
    states = range(len(moves))
    nowhere = np.full((rows + 1, k), -np.inf)
    start = nowhere.copy()
    start[0, 0] = 0.0
    row = np.arange(rows + 1)
    # For each diagonal, by state: values (rows + 1, k), and the candidate from which each came.
    reached = [[start, *(nowhere for _ in states[1:])]]
    came: list[list[np.ndarray]] = [[np.zeros((rows + 1, k), dtype="int32") for _ in states]]
    for diagonal in range(1, rows + columns + 1):
        column = diagonal - row
        inside = (column >= 0) & (column <= columns)
        cell = np.full(rows + 1, -np.inf)
        between = inside & (row > 0) & (column > 0)
        cell[between] = scores[row[between] - 1, column[between] - 1]
        values, sources = [], []
        for state in states:
            candidates = []
            for before, down, across, takes in moves[state]:
                known = diagonal >= down + across
                value = reached[diagonal - down - across][before] if known else nowhere
                if down:
                    value = np.concatenate([nowhere[:1], value[:-1]])
                candidates.append(value + cell[:, None] if takes else value)
            joined = np.concatenate(candidates, 1)
            joined[~inside] = -np.inf
            order = np.argsort(-joined, axis=1, kind="stable")[:, :k]
            values.append(np.take_along_axis(joined, order, 1))
            sources.append(order.astype("int32"))
        reached.append(values)
        came.append(sources)
    ends = np.concatenate([reached[-1][state][rows] for state in states])
    order = np.argsort(-ends, kind="stable")[:k]
    order = order[ends[order] > -np.inf]
    found = [_cells(came, rows, columns, *divmod(int(end), k), k, moves) for end in order]
    return found, ends[order]


def _cells(
    came: list[list[np.ndarray]], row: int, column: int, state: int, slot: int, k: int, moves: Moves
) -> np.ndarray:
    """Return the cells on the way back from a point, in a state, as the slot-th best there."""
    cells = []
    while row or column:
        source, slot = divmod(int(came[row + column][state][row, slot]), k)
        state, down, across, takes = moves[state][source]
        if takes:
            cells.append((row - 1, column - 1))
        row, column = row - down, column - across
    return np.asarray(cells[::-1], dtype="int64").reshape(-1, 2)
