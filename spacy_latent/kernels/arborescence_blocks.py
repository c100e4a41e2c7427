"""Maximum spanning arborescences, see kernels.blocks and kernels.arborescence, whose steps these
are: one thread grows the paths, and all of them find the best heads and merge the rows of a cycle,
a head each. All state is in ``room``: rows of N+1 numbers.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.inside_outside_blocks import make_arc_score
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, NOT_FINITE

# After the matrices of arcs into contracted cycles and of their modifiers; meanings as in
# kernels.arborescence._solve. The last four have room for the contracted nodes too.
PAID, BEST, BEST_HEAD, STATE, PATH, IDENTITY, ROW_OF, FOLLOWING, LAST, WRITTEN = range(10)
PARENT, ENTERING_HEAD, ENTERING_MODIFIER, REMOVED, MESSAGE = 10, 12, 14, 16, 18
ROWS = 19
DONE, FAILED = -1, -2


def make_best_arborescence(jit, sync):
    arc_score = make_arc_score(jit)

    @jit
    def begin(item, thread, threads, room, scores, options, n, lowest):
        """Find the best head of each token from ``lowest`` on, and start with no paths."""
        side = scores.shape[1]
        rows = 2 * side * side
        for m in range(thread, n + 1, threads):
            top, chosen = -np.inf, lowest
            for h in range(lowest, n + 1):
                score = arc_score(scores, item, h, m, options)
                if score > top:
                    top, chosen = score, h
            room[rows + BEST * side + m] = top
            room[rows + BEST_HEAD * side + m] = chosen
            room[rows + STATE * side + m] = 2 if m == 0 else 0
            room[rows + WRITTEN * side + m] = 0
            room[rows + IDENTITY * side + m] = m
            room[rows + ROW_OF * side + m] = m
            room[rows + LAST * side + m] = m
            room[rows + FOLLOWING * side + m] = -1
        for node in range(thread, 2 * n + 1, threads):
            room[rows + PARENT * side + node] = -1
            room[rows + REMOVED * side + node] = 0

    @jit
    def grow(item, room, scores, options, n, lowest, start, depth):
        """Follow best heads, until a cycle closes. depth: of the path, −1 for none. RETURNS: start,
        depth, and where the cycle begins on the path, or DONE, or FAILED."""
        side = scores.shape[1]
        incoming, modifiers, rows = 0, side * side, 2 * side * side
        path, state, row_of = rows + PATH * side, rows + STATE * side, rows + ROW_OF * side
        while True:
            if depth < 0:
                while start <= n and room[state + int(room[row_of + start])] > 0.0:
                    start += 1
                if start > n:
                    return start, depth, DONE
                depth = 0
                room[path] = start
                room[state + start] = 1
            top = int(room[path + depth])
            node = int(room[rows + IDENTITY * side + top])
            if room[rows + WRITTEN * side + top] > 0.0:
                row, head = incoming + top * side, lowest
                for h in range(lowest + 1, n + 1):
                    head = h if room[row + h] > room[row + head] else head
                head = head if room[row + head] > -np.inf else 0
                value, modifier = room[row + head], room[modifiers + top * side + head]
            else:
                value, head = room[rows + BEST * side + top], 0
                if value > -np.inf:
                    head = int(room[rows + BEST_HEAD * side + top])
                else:
                    value = arc_score(scores, item, 0, top, options)
                modifier = float(top)
            if value == -np.inf:
                return start, depth, FAILED
            room[rows + PAID * side + top] = value
            room[rows + ENTERING_HEAD * side + node] = head
            room[rows + ENTERING_MODIFIER * side + node] = modifier
            below = int(room[row_of + head])
            if room[state + below] == 2.0:
                for i in range(depth + 1):
                    room[state + int(room[path + i])] = 2
                depth = -1
            elif room[state + below] == 0.0:
                depth += 1
                room[path + depth] = below
                room[state + below] = 1
            else:
                first = depth
                while int(room[path + first]) != below:
                    first -= 1
                return start, depth, first

    @jit
    def merge(item, thread, threads, room, scores, options, n, first, last):
        """Put the best arc from each head into the cycle in the row of its first member."""
        side = scores.shape[1]
        modifiers, rows = side * side, 2 * side * side
        path = rows + PATH * side
        below = int(room[path + first])
        for h in range(thread, n + 1, threads):
            top, chosen = -np.inf, float(below)
            for i in range(first, last + 1):
                member = int(room[path + i])
                value, token = arc_score(scores, item, h, member, options), float(member)
                if room[rows + WRITTEN * side + member] > 0.0:
                    value = room[member * side + h]
                    token = room[modifiers + member * side + h]
                value -= room[rows + PAID * side + member]
                if i == first or value > top:
                    top, chosen = value, token
            room[below * side + h] = top
            room[modifiers + below * side + h] = chosen

    @jit
    def contract(room, side, first, last, count):
        """Make a node of the members of a cycle, after :func:`merge`."""
        rows = 2 * side * side
        path, identity, ends = rows + PATH * side, rows + IDENTITY * side, rows + LAST * side
        below = int(room[path + first])
        room[rows + WRITTEN * side + below] = 1
        for i in range(first, last + 1):
            member = int(room[path + i])
            if i > first:
                room[rows + FOLLOWING * side + int(room[ends + below])] = member
                room[ends + below] = room[ends + member]
            room[rows + PARENT * side + int(room[identity + member])] = count
        room[identity + below] = count
        token = below
        while token != -1:
            room[rows + ROW_OF * side + token] = below
            room[below * side + token] = -np.inf
            token = int(room[rows + FOLLOWING * side + token])

    @jit
    def expand(item, room, side, count, best):
        """Write the heads: the arc that enters a contracted cycle breaks it, the last one first."""
        rows = 2 * side * side
        removed, parent = rows + REMOVED * side, rows + PARENT * side
        for node in range(count - 1, 0, -1):
            if room[removed + node] > 0.0:
                continue
            modifier = int(room[rows + ENTERING_MODIFIER * side + node])
            best[item, modifier] = int(room[rows + ENTERING_HEAD * side + node])
            inner = modifier
            while inner != -1 and room[removed + inner] == 0.0:
                room[removed + inner] = 1
                if inner == node:
                    break
                inner = int(room[parent + inner])

    @jit
    def best_arborescence(item, thread, threads, room, scores, lengths, options, best, status):
        n, side = lengths[item], scores.shape[1]
        rows = 2 * side * side
        message = rows + MESSAGE * side
        for cell in range(thread, (n + 1) * (n + 1), threads):
            if not arc_score(scores, item, cell // (n + 1), cell % (n + 1), options) < np.inf:
                status[item] = NOT_FINITE
        sync()
        if status[item] != FEASIBLE or n == 0:
            return
        # Where more than one token is attached to the root and one may be: once more, with arcs
        # from the root only where there are no others.
        for lowest in range(2):
            begin(item, thread, threads, room, scores, options, n, lowest)
            sync()
            start, depth, count = 1, -1, n + 1
            while True:
                first = DONE
                if thread == 0:
                    start, depth, first = grow(item, room, scores, options, n, lowest, start, depth)
                    room[message], room[message + 1] = first, depth
                sync()
                first, last = int(room[message]), int(room[message + 1])
                if first < 0:
                    break
                merge(item, thread, threads, room, scores, options, n, first, last)
                sync()
                if thread == 0:
                    contract(room, side, first, last, count)
                    depth = first
                    count += 1
            sync()
            if thread == 0:
                roots = 0
                if first == DONE:
                    expand(item, room, side, count, best)
                    for m in range(1, n + 1):
                        roots += 1 if best[item, m] == 0 else 0
                again = first == DONE and options[2] == 1 and roots > 1
                room[message] = 1 if again and lowest == 0 else 0
                if first == FAILED or (again and lowest == 1):
                    status[item] = INFEASIBLE
            sync()
            if room[message] == 0.0:
                return

    return best_arborescence


def room_of(side: int) -> int:
    """Numbers of ``room`` for scores of N+1 = ``side`` nodes."""
    return (2 * side + ROWS) * side + 2
