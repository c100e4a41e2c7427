"""Sums over spanning arborescences of a whole batch by decompositions of matrices, for long
sentences on a GPU (Koo et al. 2007, sections 3.1 and 3.2).

The Laplacian is inverted by torch, which subtracts: very unlike scores lose their digits. How far
each item's results can be off is bounded from its own numbers, and an item that could be wrong is
left to the kernel of matrix_tree_blocks, which works on logarithms, word by word, and takes two to
ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spacy_latent.kernels.blocks import Batched
from spacy_latent.kernels.operations import HESSIAN_PRODUCT, LOG_PARTITION

# Of an item, for what is allowed: a probability, or a derivative of one by a score.
TOLERANCES = {torch.float32: 1e-8, torch.float64: 1e-10}
# Bytes of the matrices at once, of which there are about so many.
LARGEST_ROOM, MATRICES = 2**30, 16


def sum_over_trees_of_a_batch(
    scores: Tensor, lengths: Tensor, options: Sequence[int], operation: int, along: Tensor
) -> Batched:
    """As ``Blocks.total``, for scores and lengths on one device, without a wait for it."""
    side = scores.shape[1]
    at_once = max(1, LARGEST_ROOM // (8 * MATRICES * side**2))
    parts = [
        _sum(scores[i : i + at_once], lengths[i : i + at_once], options, operation, change)
        for i in range(0, len(scores), at_once)
        for change in (along[i : i + at_once],)
    ]
    if len(parts) == 1:
        return parts[0]
    results, sums, trusted = zip(*parts)
    return Batched(torch.cat(results), torch.cat(sums), torch.cat(trusted))


def _sum(
    scores: Tensor, lengths: Tensor, options: Sequence[int], operation: int, along: Tensor
) -> Batched:
    side, single_root = scores.shape[1], bool(options[2])
    arcs = _arcs(side, lengths, options) & (scores != -torch.inf)
    known = scores.double().masked_fill(~arcs, -torch.inf)
    top = known.amax(1, keepdim=True)
    # A NaN or +inf stays, makes all of its item so, and is told of by the kernel.
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = (known - top).exp()
    padded = torch.arange(1, side, device=scores.device) > lengths[:, None]

    laplacian = _laplacian(weights, single_root) + torch.diag_embed(padded.double())
    decomposed, pivots, failed = torch.linalg.lu_factor_ex(laplacian)
    unit = torch.eye(side - 1, dtype=torch.float64, device=scores.device).expand_as(laplacian)
    inverse = torch.linalg.lu_solve(decomposed, pivots, unit)
    determinant = decomposed.diagonal(dim1=1, dim2=2).abs().log().sum(1)
    log_partition = top.sum((1, 2)) + determinant

    # Of the inverse, by the rounding of the decomposition (Higham 2002, section 14.1), and of what
    # follows from it.
    size = inverse.abs()
    condition = size @ laplacian.abs()
    error = (side * torch.finfo(torch.float64).eps) * (condition @ size)
    off = _largest(weights * _reach(error, single_root, torch.add))
    off = off.maximum(condition.diagonal(dim1=1, dim2=2).sum(1) * side * 2e-16)
    marginals = weights * _reach(inverse, single_root, torch.sub)
    result = marginals
    if operation == HESSIAN_PRODUCT:
        direction = along.double().masked_fill(~arcs, 0.0)
        change = _laplacian(weights * direction, single_root)
        moved = -(inverse @ change @ inverse)
        result = direction * marginals + weights * _reach(moved, single_root, torch.sub)
        of_moved = error @ change.abs() @ size
        of_moved = of_moved + size @ change.abs() @ error
        largest = _largest(direction)
        off = off * largest + _largest(weights * _reach(of_moved, single_root, torch.add))
        # A gradient counts by its own size.
        off = off / largest.clamp(min=1.0)
    trusted = (failed == 0) & (off <= TOLERANCES[scores.dtype]) & log_partition.isfinite()
    if operation == LOG_PARTITION:
        return Batched(None, log_partition.to(scores.dtype), trusted)
    return Batched(result.to(scores.dtype), log_partition.to(scores.dtype), trusted)


def _arcs(side: int, lengths: Tensor, options: Sequence[int]) -> Tensor:
    """``(B, N+1, N+1)``: those that status.is_arc allows, without padding."""
    direction, longest = options[0], options[1]
    node = torch.arange(side, device=lengths.device)
    head, modifier = node[:, None], node[None, :]
    allowed = (head != modifier) & (modifier > 0)
    if direction < 0:
        allowed &= head < modifier
    elif direction > 0:
        allowed &= (head > modifier) | (head == 0)
    if longest >= 0:
        allowed &= ((head - modifier).abs() <= longest) | (head == 0)
    inside = node <= lengths[:, None]
    return allowed & inside[:, :, None] & inside[:, None, :]


def _laplacian(weights: Tensor, single_root: bool) -> Tensor:
    """``(B, N, N)`` [head, modifier] from weights with the root; linear in them. Its determinant is
    the sum over trees."""
    root, between = weights[:, 0, 1:], weights[:, 1:, 1:]
    if not single_root:
        return torch.diag_embed(root + between.sum(1)) - between
    found = torch.diag_embed(between.sum(1)) - between
    return torch.cat([root[:, None], found[:, 1:]], 1)


def _reach(inverse: Tensor, single_root: bool, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Derivatives of the log-determinant by the weights, ``(B, N+1, N+1)``; linear in the inverse
    where ``join`` subtracts, and a bound of their errors from its own where ``join`` adds."""
    turned = inverse.transpose(1, 2)
    own = turned.diagonal(dim1=1, dim2=2)
    root = own
    if single_root:
        # The row of the first word has become the root's.
        root = turned[:, 0]
        own = torch.cat([torch.zeros_like(own[:, :1]), own[:, 1:]], 1)
        turned = torch.cat([torch.zeros_like(turned[:, :1]), turned[:, 1:]], 1)
    between = join(own[:, None].expand_as(turned), turned)
    found = torch.cat([root[:, None], between], 1)
    return torch.nn.functional.pad(found, (1, 0))


def _largest(numbers: Tensor) -> Tensor:
    return numbers.abs().flatten(1).amax(1)
