"""Sums over spanning arborescences of a whole batch by decompositions of matrices, for long
sentences on a GPU (Koo et al. 2007, sections 3.1 and 3.2).

The Laplacian is inverted by torch, which subtracts: very unlike scores lose their digits. How far
each item's results can be off is bounded from its own numbers, and an item that could be wrong is
left to the kernel of matrix_tree_blocks, which works on logarithms, word by word, and takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spacy_latent.kernels.blocks import Batched
from spacy_latent.kernels.operations import HESSIAN_PRODUCT, LOG_PARTITION

# How far a probability or a log-partition may be off, or what marginals change by along a vector as
# a share of its largest number, for an item to be trusted.
TOLERANCES = {torch.float32: 1e-8, torch.float64: 1e-10}
# About so many matrices are there at once for each item; with more items than have room in so many
# bytes, they are done in parts.
MATRICES, LARGEST_ROOM = 16, 2**30
EPSILON = torch.finfo(torch.float64).eps


def sum_over_trees_of_a_batch(
    scores: Tensor, lengths: Tensor, options: Sequence[int], operation: int, along: Tensor
) -> Batched:
    """As ``Blocks.total``, for scores and lengths on one device, without a wait for it."""
    side = scores.shape[1]
    at_once = max(1, LARGEST_ROOM // (8 * MATRICES * side**2))
    parts = []
    for i in range(0, len(scores), at_once):
        here = slice(i, i + at_once)
        parts.append(_sum(scores[here], lengths[here], options, operation, along[here]))
    if len(parts) == 1:
        return parts[0]
    results = [part.result for part in parts if part.result is not None]
    return Batched(
        torch.cat(results) if results else None,
        torch.cat([part.log_partition for part in parts]),
        torch.cat([part.trusted for part in parts]),
    )


def _sum(
    scores: Tensor, lengths: Tensor, options: Sequence[int], operation: int, along: Tensor
) -> Batched:
    side, single_root = scores.shape[1], bool(options[2])
    arcs = allowed_arcs(side, lengths, *options[:2]) & (scores != -torch.inf)
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

    # What is decomposed differs from the Laplacian by so much at most, and the inverse then by its
    # product with it from either side (Higham 2002, theorems 9.3 and 14.1). Not by the Laplacian's
    # own size: with a root for a first row its factors can be far larger.
    permuted, lower, upper = torch.lu_unpack(decomposed, pivots)
    rounding = side * EPSILON * (permuted @ (lower.abs() @ upper.abs()))
    absolute = inverse.abs()
    relative = absolute @ rounding
    error = relative @ absolute
    # The logarithm of a determinant changes by the trace of inverse times change.
    off = relative.diagonal(dim1=1, dim2=2).sum(1)
    off = off.maximum(_largest(weights * _reach(error, single_root, torch.add)))
    # Rounding can leave a probability of nearly 0 below it.
    marginals = (weights * _reach(inverse, single_root, torch.sub)).clamp_min(0.0)
    result = marginals
    if operation == HESSIAN_PRODUCT:
        direction = along.double().masked_fill(~arcs, 0.0)
        change = _laplacian(weights * direction, single_root)
        moved = -(inverse @ change @ inverse)
        result = direction * marginals + weights * _reach(moved, single_root, torch.sub)
        of_moved = error @ change.abs() @ absolute + absolute @ change.abs() @ error
        # As a share of the largest, since gradients of a mean loss are small.
        largest = _largest(direction)
        share = _largest(weights * _reach(of_moved, single_root, torch.add)) / largest
        off = off + torch.where(largest > 0.0, share, 0.0)
    trusted = (failed == 0) & (off <= TOLERANCES[scores.dtype]) & log_partition.isfinite()
    if operation == LOG_PARTITION:
        return Batched(None, log_partition.to(scores.dtype), trusted)
    return Batched(result.to(scores.dtype), log_partition.to(scores.dtype), trusted)


def allowed_arcs(side: int, lengths: Tensor, direction: int, longest: int) -> Tensor:
    """``(B, N+1, N+1)``: those that status.is_arc allows, without padding."""
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
