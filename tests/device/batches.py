"""Batches for tests of kernels for a GPU, with or without one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

STRUCTURES: list[Structure] = [
    LinearChain(),
    ProjectiveTree(),
    ProjectiveTree(single_root=True),
    ProjectiveTree(direction="later", max_arc_length=2),
    ProjectiveTree(direction="earlier", single_root=True),
    ConstituencyTree(),
    SpanningTree(),
    SpanningTree(single_root=True),
    SpanningTree(direction="later", max_arc_length=2),
]
LENGTHS = [12, 0, 1, 31, 2, 12, 7, 3]
TAGS = 3


def batch(
    structure: Structure,
    dtype: torch.dtype,
    sizes: Sequence[int] = LENGTHS,
    scales: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return normal scores with NaN as padding, and lengths. Some are −inf, but leave a structure.

    Args:
        scales: The scale of the scores of each item.
    """
    lengths = torch.tensor(sizes)
    chain, nodes = isinstance(structure, LinearChain), int(structure.parts == "arcs")
    size = max(sizes) + 1 + nodes
    shape = (len(sizes), size, *((TAGS, TAGS) if chain else (size,)))
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if scales is not None:
        scores *= torch.tensor(scales, dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
    forbidden = torch.rand(shape, generator=generator) < 0.2
    forbidden[:, 0] = False
    for b, length in enumerate(sizes):
        last = length + nodes
        if not chain:
            # Leave a tree that branches to the right, and a path through the tokens.
            forbidden[b, :, last - 1] = False
            forbidden[b].diagonal().fill_(False)
            forbidden[b].diagonal(1).fill_(False)
            scores[b, :, last:] = torch.nan
        scores[b, last:] = torch.nan
    scores[forbidden] = -torch.inf
    return scores.to(dtype), lengths


def everything(structure: Structure, scores: Tensor, lengths: Tensor) -> list[Tensor]:
    """Return the best structures, log Z, marginals, and the product of their Jacobian with a
    vector.
    """
    scores = scores.clone().requires_grad_()
    upstream = torch.arange(scores.numel(), dtype=torch.float64).sin().to(scores)
    best = structure.map(scores.detach(), lengths)
    log_partition = structure.log_partition(scores, lengths)
    marginals = structure.marginals(scores, lengths)
    (product,) = torch.autograd.grad(marginals, scores, upstream.reshape(scores.shape))
    return [best, log_partition.detach(), marginals.detach(), product]
