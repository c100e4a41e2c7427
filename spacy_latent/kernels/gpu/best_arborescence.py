"""The best spanning tree on a GPU: the algorithm of Chu and Liu (1965) and Edmonds (1967).

Paths are grown and cycles contracted as in Gabow et al. (1986). The steps, and the choice at ties,
are the same as in kernels.arborescences.arborescence.

The threads of a program hold its state in registers, as vectors over the nodes. Nodes are the
tokens and, after them, the contracted cycles. An entry of a vector is read as a masked sum over all
entries. Only the arcs into contracted cycles are in memory: for each head the best score, and the
token that the arc enters. A cycle is stored in the row of the member that closed it.
"""

import triton
import triton.language as tl

from spacy_latent.kernels.gpu.programs import (
    FEASIBLE,
    INFEASIBLE,
    MAXIMA,
    NOT_FINITE,
    Plan,
    kernel,
    not_finite,
    read_arcs,
)  # fmt: skip

# States of a row: new, on the path, attached to the root, merged into another row.
NEW, ON_PATH, ATTACHED, MERGED = (tl.constexpr(state) for state in range(4))


@triton.jit
def at(values, lane, index):
    """Return the entry of a vector at an index."""
    return tl.sum(tl.where(lane == index, values, 0), 0)


@triton.jit
def first_lane(condition, lane, NODES: tl.constexpr):
    """Return the first lane for which the condition holds, or NODES if there is none."""
    return tl.min(tl.where(condition, lane, NODES), 0)


@triton.jit
def arcs_into(row, contracted, scores, rows, lane, side, n, direction, longest):
    """Return the best arcs from all heads into the node of a row.

    Returns:
        The score of each arc, and the token that it enters.
    """
    token = tl.where(contracted, 0, row)
    score, keep = read_arcs(scores, lane, token, side, n, direction, longest)
    place, inside = row * side + lane, contracted & (lane <= n)
    best = tl.load(rows + place, inside, other=float("-inf"))
    entered = tl.load(rows + side * side + place, inside, other=0.0).to(tl.int32)
    score = tl.where(keep, score, float("-inf"))
    return tl.where(contracted, best, score), tl.where(contracted, entered, row)


@triton.jit
def solve(scores, rows, side, n, direction, longest, lowest, NODES: tl.constexpr):  # fmt: skip
    """Find the best tree among those with the fewest arcs from tokens below ``lowest``.

    Returns:
        The head of each token, and whether there is a tree.
    """
    lane = tl.arange(0, NODES)
    state = tl.where(lane == 0, ATTACHED, tl.where(lane <= n, NEW, MERGED))
    # For each token, its row. For each row, its position on the path, its node, whether that is
    # contracted, and the score of its best arc.
    row_of, place, node_of, contracted = lane, 0 * lane, lane, 0 * lane
    paid = tl.zeros((NODES,), tl.float64)
    # For each node, the node into which it was contracted, and the arc that enters it.
    parent, head_of, entered_at = 0 * lane - 1, 0 * lane, 0 * lane
    count, depth, top = n + 1, 0 * n, first_lane(state == NEW, lane, NODES)
    feasible = n > 0
    while (top < NODES) & feasible:
        state = tl.where(lane == top, ON_PATH, state)
        place = tl.where(lane == top, depth, place)
        inner = at(contracted, lane, top) > 0
        score, token = arcs_into(top, inner, scores, rows, lane, side, n, direction, longest)
        score = tl.where(row_of != top, score, float("-inf"))
        open_score = tl.where(lane >= lowest, score, float("-inf"))
        value = tl.max(open_score, 0)
        known = value > float("-inf")
        head = tl.where(known, first_lane(open_score == value, lane, NODES), 0)
        value = tl.where(known, value, at(score, lane, 0))
        feasible = value > float("-inf")
        paid = tl.where(lane == top, value, paid)
        node = at(node_of, lane, top)
        head_of = tl.where(lane == node, head, head_of)
        entered_at = tl.where(lane == node, at(token, lane, head), entered_at)
        below = at(row_of, lane, head)
        met = at(state, lane, below)
        if met == ATTACHED:
            state = tl.where(state == ON_PATH, ATTACHED, state)
            depth = 0 * depth
            top = first_lane(state == NEW, lane, NODES)
        elif met == NEW:
            depth = depth + 1
            top = below
        else:
            # The path has closed a cycle. Arcs into it are scored by their gain over the arc that
            # they would replace.
            since = at(place, lane, below)
            best, entered = tl.full((NODES,), float("-inf"), tl.float64), 0 * lane + below
            for step in range(since, depth + 1):
                row = first_lane((state == ON_PATH) & (place == step), lane, NODES)
                inner = at(contracted, lane, row) > 0
                gain, token = arcs_into(row, inner, scores, rows, lane, side, n, direction, longest)
                gain -= at(paid, lane, row)
                entered = tl.where(gain > best, token, entered)
                best = tl.where(gain > best, gain, best)
                parent = tl.where(lane == at(node_of, lane, row), count, parent)
                row_of = tl.where(row_of == row, below, row_of)
            state = tl.where((state == ON_PATH) & (place > since), MERGED, state)
            tl.debug_barrier()
            tl.store(rows + below * side + lane, best, lane <= n)
            tl.store(rows + side * side + below * side + lane, entered, lane <= n)
            tl.debug_barrier()
            contracted = tl.where(lane == below, 1, contracted)
            node_of = tl.where(lane == below, count, node_of)
            count = count + 1
            depth = since
            top = below
    # Expand the cycles, the last contracted first. The arc that enters a cycle breaks it.
    removed = 0 * lane
    for done in range(n + 1, count):
        node = count - 1 - (done - n - 1)
        if at(removed, lane, node) == 0:
            token = at(entered_at, lane, node)
            head_of = tl.where(lane == token, at(head_of, lane, node), head_of)
            while token >= 0:
                last = (at(removed, lane, token) > 0) | (token == node)
                removed = tl.where(lane == token, 1, removed)
                token = tl.where(last, -1, at(parent, lane, token))
    return head_of, feasible


@kernel
def best_arborescences(
    scores, lengths, along, workspace, log_partition, result, status,
    first, size, operation, side, tags, direction, longest, single_root,
    KIND: tl.constexpr, DERIVED: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the heads of the best tree of each item, −1 for the root and padding."""
    program = tl.program_id(0).to(tl.int64)
    item = first + program
    n = tl.load(lengths + item).to(tl.int32)
    if n > 0:
        scores += item * side * side
        lane = tl.arange(0, NODES)
        wrong = tl.zeros((ROWS, NODES), tl.int32)
        for start in range(0, n + 1, ROWS):
            head = start + tl.arange(0, ROWS)[:, None]
            score, _ = read_arcs(scores, head, lane[None, :], side, n, direction, longest)
            wrong = tl.maximum(wrong, not_finite(score))
        found = tl.where(tl.max(tl.max(wrong, 0), 0) > 0, NOT_FINITE, FEASIBLE)
        token, heads, lowest = (lane > 0) & (lane <= n), 0 * lane - 1, 0 * n
        # If several tokens are attached to the root and only one may be, solve again. Arcs from the
        # root are then used only if there are no others.
        while (lowest < 2) & (found == FEASIBLE):
            heads, feasible = solve(
                scores, workspace + program * size, side, n, direction, longest, lowest, NODES
            )
            roots = tl.sum(tl.where(token & (heads == 0), 1, 0), 0)
            many = (single_root > 0) & (roots > 1)
            found = tl.where(feasible & ((lowest == 0) | (roots < 2)), FEASIBLE, INFEASIBLE)
            lowest = tl.where(many, lowest + 1, 2)
        tl.store(result + item * side + lane, heads, token)
        tl.store(status + item, found)


def plan(shape: tuple[int, ...], operation: int) -> Plan:
    """Return the launch parameters for scores of this shape; BEST is the only operation."""
    side = shape[1]
    nodes = max(64, triton.next_power_of_2(2 * side))
    constants = {"NODES": nodes, "ROWS": 4}
    warps = {"num_warps": max(1, nodes // 512)}
    return Plan(best_arborescences, 2 * side * side, MAXIMA, constants, warps)
