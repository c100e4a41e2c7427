"""Every structure computes half precision in single precision, and returns half precision."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import scores_for, structures
from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.relaxation import project_simplex
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence

OPERATIONS = ("map", "log_partition", "marginals", "entropy", "sparsemap", "top_k")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("structure", structures(), ids=lambda structure: structure.name)
def test_half_precision_comes_back_as_it_was(structure: Structure, dtype: torch.dtype) -> None:
    scores, lengths = scores_for(structure, 6, 2)
    half = scores.to(dtype)
    for operation in OPERATIONS:
        if {operation} - structure.tractable - {"map", "sparsemap", "top_k"}:
            continue
        options = {"k": 2} if operation == "top_k" else {}
        own, single = (
            getattr(structure, operation)(given, lengths, **options)
            for given in (half, half.float())
        )
        if operation == "sparsemap":
            assert own.weights.dtype == own.atoms.dtype == dtype
        kind = {"sparsemap": "mean", "top_k": "z"}.get(operation, "")
        own, single = getattr(own, kind, own), getattr(single, kind, single)
        assert own.dtype == dtype
        torch.testing.assert_close(own, single.to(dtype), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "structure",
    [structure for structure in structures() if "entropy" in structure.tractable],
    ids=lambda structure: structure.name,
)
def test_differences_of_large_numbers_are_rounded_once(
    structure: Structure, dtype: torch.dtype
) -> None:
    scores, lengths = scores_for(structure, 14, 2)
    other = scores.flip(-1) * 3 + 20
    p, q = (30 * scores).to(dtype), (30 * other).to(dtype)
    z = structure.sample(p, lengths, 2, torch.Generator().manual_seed(0))
    arguments = {"entropy": (p,), "cross_entropy": (p, q), "kl": (p, q), "log_prob": (z, p)}
    for operation, given in arguments.items():
        own = getattr(structure, operation)(*given, lengths)
        exact = getattr(structure, operation)(*(value.double() for value in given), lengths)
        assert own.dtype == dtype
        torch.testing.assert_close(own, exact.to(dtype), rtol=0, atol=0)
        assert operation == "log_prob" or bool((own >= 0).all())
    # These distributions are nearly equal, so single precision would have no digits left.
    near = p.double() + 1e-4 * scores.double()
    expected = structure.kl(p.double(), near, lengths)
    found = structure.kl(p.float(), near.float(), lengths)
    rounded = structure.kl(p.double(), near.float().double(), lengths)
    torch.testing.assert_close(found, rounded.float(), rtol=1e-6, atol=0)
    assert bool((expected >= 0).all())


@pytest.mark.parametrize(
    "structure",
    [structure for structure in structures() if "entropy" in structure.tractable],
    ids=lambda structure: structure.name,
)
def test_an_infinite_divergence_has_no_gradient(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 6, 2)
    scores, other = scores.double().requires_grad_(), scores.double()
    mean = structure.marginals(other, lengths)[0]
    # A part that is neither certain nor impossible.
    part = ((mean > 0.01) & (mean < 0.99)).nonzero()[0].tolist()
    other[(0, *part)] = -torch.inf
    other.requires_grad_()
    for operation in (structure.kl, structure.cross_entropy):
        value = operation(scores, other, lengths)
        assert value[0] == torch.inf and value[1].isfinite()
        for gradient in torch.autograd.grad(value.sum(), (scores, other)):
            assert bool(gradient.isfinite().all()) and not gradient[0].any()


@pytest.mark.parametrize(
    "structure",
    [structure for structure in structures() if "log_partition" in structure.tractable],
    ids=lambda structure: structure.name,
)
def test_counting_refuses_what_is_no_number(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 4, 2)
    used = (structure.marginals(scores, lengths)[1] > 0).nonzero()[-1].tolist()
    for value in (torch.nan, torch.inf):
        given = scores.clone()
        given[(1, *used)] = value
        with pytest.raises(InvalidScores, match=r"\[1\]"):
            structure.log_count(given, lengths)
        # Invalid numbers in padding change nothing.
        shorter = lengths.clone()
        shorter[1] = shorter[1] - 2
        given = scores.clone()
        given[1][~structure.part_mask(scores, shorter).expand_as(scores)[1]] = value
        expected = structure.log_count(scores, shorter)
        torch.testing.assert_close(structure.log_count(given, shorter), expected)


LARGE = [
    ProjectiveTree(),
    ProjectiveTree(single_root=True),
    SpanningTree(),
    ConstituencyTree(),
    MonotoneAlignment(),
    MonotoneAlignment("needleman_wunsch"),
    MonotoneAlignment(window=2),
    LinearChain(),
    TagSequence(),
    SemiMarkov(),
    KOfN(3),
]


@pytest.mark.parametrize("structure", LARGE, ids=repr)
@pytest.mark.parametrize("size", [1e9, 1e12, 1e15, 1e16, 1e18, 1e30, 1e200])
def test_marginals_at_large_scores_are_probabilities_or_an_error(
    structure: Structure, size: float
) -> None:
    scores, lengths = scores_for(structure, 8, 3)
    mask = structure.part_mask(scores, lengths).expand_as(scores)
    large = size * scores.double()
    best = structure.map(large, lengths)
    # In the first case one structure is much better than the others. In the second many are equally
    # good. In the third one score is large, and the others are ordinary.
    ties = size * scores.round().double()
    one = scores.double()
    one[1][mask[1]] = torch.where(scores[1][mask[1]] > 1, size, scores[1][mask[1]].double())
    for given in (large, ties, one):
        try:
            found = structure.marginals(given, lengths)
        except InvalidScores as error:
            assert size >= 1e15 and "too large" in str(error) and "item(s) [" in str(error)
            continue
        assert bool((found >= 0).all() and (found <= 1 + 1e-6).all()), given
        if given is large:
            torch.testing.assert_close(found, best, rtol=0, atol=1e-6)
        value = structure.log_potential(structure.map(given, lengths), given, lengths)
        mean = torch.where(found > 1e-9, found * given, 0.0).flatten(1).sum(1)
        torch.testing.assert_close(mean, value, rtol=1e-3, atol=1e3)
    drawn = structure.sample(large, lengths, 3, torch.Generator().manual_seed(0))
    value = structure.log_potential(drawn, large, lengths)
    expected = structure.log_potential(best, large, lengths).expand_as(value)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("structure", LARGE, ids=repr)
def test_a_finite_mask_is_as_good_as_a_forbidden_part(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 6, 2)
    scores = scores.double()
    masked = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    masked &= structure.map(scores, lengths) == 0
    expected = structure.marginals(scores.masked_fill(masked, -torch.inf), lengths)
    for mask in (-1e9, -1e16, -1e30, float(torch.finfo(torch.float32).min)):
        given = scores.masked_fill(masked, mask)
        torch.testing.assert_close(structure.marginals(given, lengths), expected)


@pytest.mark.parametrize(
    "structure",
    [structure for structure in structures() if "marginals" in structure.tractable],
    ids=lambda structure: structure.name,
)
@pytest.mark.parametrize("size", [30.0, 300.0, 3000.0])
def test_gradients_of_marginals_at_large_scores(structure: Structure, size: float) -> None:
    """Scores that are products, as from biaffine scorers, have their best parts together."""
    scores, lengths = scores_for(structure, 9, 32)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(scores.shape[:-1], generator=generator).double()[..., None]
    columns = torch.rand(scores.shape[-1], generator=generator).double() * 5 + 1
    given = (size * rows * columns).requires_grad_()
    marginals = structure.marginals(given, lengths)
    assert bool((marginals >= 0).all() and (marginals <= 1 + 1e-9).all())
    along = torch.randn(scores.shape, generator=generator).double()
    (gradient,) = torch.autograd.grad(marginals, given, along)
    total = structure.log_partition(given, lengths).sum()
    (mean,) = torch.autograd.grad(total, given, create_graph=True)
    torch.testing.assert_close(mean, marginals, rtol=0.0, atol=1e-9)
    (again,) = torch.autograd.grad(mean, given, along)
    torch.testing.assert_close(again, gradient, rtol=0.0, atol=1e-8)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("offset", [-1e9, -1e7, 1e4, 1e7, 1e9])
def test_points_far_from_the_simplex_are_projected_on_it(offset: float) -> None:
    points = offset + torch.tensor([[0.0, 0.0, -1e30], [2048.0, 0.0, -torch.inf]])
    points.requires_grad_()
    shares = project_simplex(points)
    assert shares.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    (slope,) = torch.autograd.grad(shares[0, 0], points)
    assert slope.tolist() == [[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]
    half = torch.tensor([[300.0, 300.0, 1.0]], dtype=torch.bfloat16)
    assert project_simplex(half).tolist() == [[0.5, 0.5, 0.0]]
