"""The gradient of SparseMAP where structures tie, as equal words make them: on the whole face that
the solution lies in, and not on its support alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.polytopes import solve

SIZES: list[tuple[Structure, tuple[int, ...], Any]] = [
    (OneOfN(), (4,), 4),
    (KOfN(2), (4,), 4),
    (Runs(2, 2), (5,), 5),
    (TagSequence(), (3, 3), 3),
    (LinearChain(), (3, 2, 2), 3),
    (ConstituencyTree(), (4, 4), 4),
    (ProjectiveTree(), (4, 4), 3),
    (ProjectiveTree(single_root=True), (4, 4), 3),
    (SpanningTree(), (4, 4), 3),
    (OneToOneAlignment(), (3, 3), [3, 3]),
    (MonotoneAlignment(), (3, 3), [3, 3]),
]


def scores_of_equal_words(shape: tuple[int, ...], kind: str) -> Tensor:
    """All the same, a few values only, or rows that are equal as those of the same word are."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "all equal":
        return torch.full(shape, 0.7, dtype=torch.float64)
    if kind == "few values":
        return torch.randint(0, 2, shape, generator=generator).double() * 0.3
    scores[1:] = scores[:1]
    return scores


def structures_of(structure: Structure, shape: tuple[int, ...], lengths: Tensor) -> Tensor:
    """All of them ``(M, P)``: the best ones of random scores, more often than there are any."""
    count = 3000
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn((count, *shape), generator=generator, dtype=torch.float64)
    many = lengths.expand(count, *lengths.shape[1:])
    return structure.map(scores, many).flatten(1).unique(dim=0)


@pytest.mark.parametrize("kind", ["all equal", "few values", "equal rows"])
@pytest.mark.parametrize("structure, shape, size", SIZES, ids=lambda given: str(given)[:40])
def test_the_jacobian_is_that_of_the_face(
    structure: Structure, shape: tuple[int, ...], size: Any, kind: str
) -> None:
    lengths = torch.tensor([size])
    scores = scores_of_equal_words(shape, kind).requires_grad_()
    exact = solve(
        structures_of(structure, shape, lengths).numpy(), scores.detach().flatten().numpy()
    )
    mean = structure.sparsemap(scores[None], lengths).mean[0].flatten()
    torch.testing.assert_close(mean.detach(), torch.from_numpy(exact.mean), rtol=0, atol=1e-6)
    rows = [
        torch.autograd.grad(mean[part], scores, retain_graph=True)[0].flatten()
        for part in range(len(mean))
    ]
    assert exact.accepts(torch.stack(rows).numpy(), 1e-6)


def test_a_gradient_that_the_support_does_not_have() -> None:
    """Two sequences make up the mean of all four, and span less than they."""
    scores = torch.zeros(1, 2, 2, dtype=torch.float64, requires_grad=True)
    wanted = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    mean = TagSequence().sparsemap(scores, torch.tensor([2])).mean
    (gradient,) = torch.autograd.grad((mean - wanted).square().sum(), scores)
    expected = torch.tensor([[[-1.0, 1.0], [1.0, -1.0]]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)
