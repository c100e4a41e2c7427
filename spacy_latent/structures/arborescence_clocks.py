"""Choices of Chu-Liu-Edmonds for a batch if each arc has an exponential clock.

The clocks are then drawn again given these choices (Struminsky et al. 2021).
``kernels/arborescences/arborescence_traces.py`` draws the same choices faster, but does not report
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spacy_latent.structures.clocks import free_draw, log_exponential, with_rest
from spacy_latent.structures.results import ReparameterizedTrace


class Round(NamedTuple):
    """A round, in which some nodes of R items each choose an arc.

    A node is a token or a contracted cycle, and has the number of one of its tokens. N is the
    number of tokens plus node 0.

    Attributes:
        rows: ``(R,)``, the items.
        arcs: ``(R, N, N)`` bool, [head, modifier], the arcs to choose from.
        nodes: ``(R, N)``, the node of each token.
        heads, modifiers: ``(R, N)``, ends of the arc that each node chose, at the node's token; 0
            if it chose no arc.
        log_rates: ``(R, N)``, log of the sum of the rates of all arcs into each node;
            differentiable.
    """

    rows: Tensor
    arcs: Tensor
    nodes: Tensor
    heads: Tensor
    modifiers: Tensor
    log_rates: Tensor


def reparameterize_trees(
    scores: Tensor,
    lengths: Tensor,
    single_root: bool,
    raise_infeasible: Callable[[list[int]], None],
) -> ReparameterizedTrace:
    """Return one tree of each item, as ``SpanningTree.sample_trace`` draws it.

    Args:
        scores: ``(B, N, N)``, −inf at entries that are no arc.
        lengths: ``(B,)``, on the same device.
        raise_infeasible: called with the items that have no tree.
    """
    allowed = ~scores.detach().isneginf()
    finite = scores.masked_fill(~allowed, 0.0)
    rounds = _rounds(finite, allowed, lengths, single_root, raise_infeasible)
    chosen = torch.zeros_like(allowed)
    log_probs = scores.new_zeros(len(scores))
    for each in rounds:
        row, node = each.modifiers.nonzero(as_tuple=True)
        arcs = each.rows[row], each.heads[row, node], each.modifiers[row, node]
        chosen[arcs] = True
        log_probs = log_probs.index_add(0, arcs[0], finite[arcs] - each.log_rates[row, node])
    z = _expand(rounds, allowed, single_root).to(scores.dtype)
    with torch.no_grad():
        first = _log_clocks(rounds, finite, chosen)
    noisy, redrawn = (
        each.masked_fill(~allowed, -torch.inf)
        for each in (free_draw(first, finite), -_log_clocks(rounds, finite, chosen))
    )
    return ReparameterizedTrace(z, noisy, redrawn, log_probs)


def _rounds(
    scores: Tensor,
    allowed: Tensor,
    lengths: Tensor,
    single_root: bool,
    raise_infeasible: Callable[[list[int]], None],
) -> list[Round]:
    """Return the rounds of choices: of each token, then of each cycle, until no cycle is left.

    With a single root, its child is drawn first, from the tokens that reach all others.
    """
    batch, size = scores.shape[:2]
    index = torch.arange(size, device=scores.device).expand(batch, size)
    waiting = (index > 0) & (index <= lengths[:, None])
    rows = torch.arange(batch, device=scores.device)
    nodes, found = index, []
    heads = torch.zeros_like(index)
    if single_root and size > 1:
        roots = torch.zeros_like(allowed)
        roots[:, 0] = allowed[:, 0] & _reaches_all(allowed, waiting)
        # The choice is for the root alone: all arcs from node 0 lead into one node.
        first = _choose(scores, roots, torch.ones_like(index), rows, index)
        _check(first, waiting.any(1)[:, None] & (index == 1), rows, raise_infeasible)
        found.append(first)
        waiting = waiting & (index != first.modifiers[:, 1:2])
        allowed = allowed & (index > 0)[:, :, None]
    # At least one round, so that an empty batch has a gradient, too.
    while len(rows) or not found:
        apart = nodes[:, :, None] != nodes[:, None, :]
        arcs = allowed & apart & waiting[:, None]
        each = _choose(scores[rows], arcs, nodes, rows, index)
        _check(each, waiting & (nodes == index), rows, raise_infeasible)
        found.append(each)
        heads = torch.where(each.modifiers > 0, each.heads, heads)
        merged, on_cycle = _cycles(nodes.gather(1, heads).masked_fill(nodes != index, 0), index)
        nodes, waiting = merged.gather(1, nodes), on_cycle.gather(1, nodes)
        left = waiting.any(1)
        rows, nodes, waiting, allowed, heads, index = (
            part[left] for part in (rows, nodes, waiting, allowed, heads, index)
        )
    return found


def _choose(scores: Tensor, arcs: Tensor, nodes: Tensor, rows: Tensor, index: Tensor) -> Round:
    """Choose an arc into each node that any of ``arcs`` enters.

    The token is drawn first, by the sum of the rates into it, and then its head.
    """
    # Relative to the largest rate, which is not part of the gradient.
    fixed = scores.detach()
    peak = _largest(fixed.masked_fill(~arcs, -torch.inf).amax(1), nodes)
    peak = peak.masked_fill(peak.isneginf(), 0.0)
    rates = torch.where(arcs, scores - peak.gather(1, nodes)[:, None], -torch.inf).exp()
    into = rates.sum(1)
    total = torch.zeros_like(peak).scatter_add(1, nodes, into)
    log_rates = torch.where(total > 0, total, 1.0).log() + peak
    # The first of the clocks with these rates.
    times = log_exponential(peak) - into.detach().log()
    top = _largest(-times, nodes)
    wins = (-times == top.gather(1, nodes)) & (into > 0)
    modifiers = torch.zeros_like(index).scatter_reduce(
        1, nodes, index.masked_fill(~wins, 0), "amax"
    )
    row, node = modifiers.nonzero(as_tuple=True)
    columns = rates.detach()[row, :, modifiers[row, node]]
    heads = torch.zeros_like(index)
    heads[row, node] = (log_exponential(columns) - columns.log()).argmin(1)
    return Round(rows, arcs, nodes, heads, modifiers, log_rates)


def _largest(of_tokens: Tensor, nodes: Tensor) -> Tensor:
    """Return the largest value over the tokens of each node."""
    lowest = torch.full_like(of_tokens, -torch.inf)
    return lowest.scatter_reduce(1, nodes, of_tokens, "amax")


def _check(
    found: Round, expected: Tensor, rows: Tensor, raise_infeasible: Callable[[list[int]], None]
) -> None:
    lacking = (expected & (found.modifiers == 0)).any(1)
    if bool(lacking.any()):
        raise_infeasible(rows[lacking].tolist())


def _cycles(above: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Find the cycles of nodes, given the node ``above`` ``(R, N)`` of each; 0 leads to itself.

    Returns:
        The first node on each node's cycle, or the node itself if it is on no cycle; and a mask of
        the nodes on a cycle. Both are ``(R, N)``.
    """
    end, first = above, index
    # Steps of doubling length, until each has passed more nodes than there are.
    for _ in range(max(above.shape[1] - 1, 1).bit_length()):
        first = torch.minimum(first, first.gather(1, end))
        end = end.gather(1, end)
    on_cycle = torch.zeros_like(above, dtype=torch.bool).scatter(1, end, True)
    on_cycle[:, 0] = False
    return torch.where(on_cycle, first, index), on_cycle


def _reaches_all(allowed: Tensor, tokens: Tensor) -> Tensor:
    """Return a mask of the tokens that reach all other tokens of the item, ``(B, N)``.

    Only arcs between tokens are followed.
    """
    pairs = tokens[:, :, None] & tokens[:, None]
    result = tokens.clone()
    same = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    rows = (pairs & ~allowed & ~same).flatten(1).any(1).nonzero().flatten()
    if not len(rows):
        return result
    reached = ((allowed & pairs) | same)[rows].float()
    for _ in range(tokens.shape[1].bit_length()):
        reached = (reached @ reached).clamp_max(1.0)
    result[rows] &= ((reached > 0) | ~tokens[rows, None]).all(2)
    return result


def _expand(rounds: list[Round], like: Tensor, single_root: bool) -> Tensor:
    """Return the trees, bool in the shape of ``like``.

    The rounds are read from the last one on. The arc into a cycle replaces the arc into its
    modifier, also in all cycles within it that hold this modifier.
    """
    z, entered = torch.zeros_like(like), torch.zeros_like(like[:, 0])
    for each in reversed(rounds):
        inside = torch.zeros_like(each.nodes).scatter_reduce(
            1, each.nodes, entered[each.rows].long(), "amax"
        )
        taken = each.modifiers > 0
        if each is not rounds[0] or not single_root:
            taken = taken & (inside == 0)
        row, node = taken.nonzero(as_tuple=True)
        item, modifier = each.rows[row], each.modifiers[row, node]
        z[item, each.heads[row, node], modifier] = True
        entered[item, modifier] = True
    return z


def _log_clocks(rounds: list[Round], scores: Tensor, chosen: Tensor) -> Tensor:
    """Return the logarithms of all clocks given the choices; differentiable in scores."""
    elapsed, running = torch.zeros_like(scores), torch.zeros_like(chosen)
    for each in rounds:
        log_times = log_exponential(each.log_rates.detach()) - each.log_rates
        times = log_times.gather(1, each.nodes)[:, None]
        before, some = elapsed[each.rows], running[each.rows]
        after = torch.where(some, torch.logaddexp(before, times), times)
        elapsed = elapsed.index_copy(0, each.rows, torch.where(each.arcs, after, before))
        running = running.index_copy(0, each.rows, some | each.arcs)
    return with_rest(elapsed, running, chosen, scores)
