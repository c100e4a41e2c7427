"""Gradients of estimators if scores are equal, for example because words are equal.

The estimators solve for a structure, or weigh several structures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.constrained_sparsemax import ConstrainedSparsemax
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.entmax import Entmax
from spacy_latent.estimators.fusedmax import Fusedmax
from spacy_latent.estimators.oscarmax import Oscarmax
from spacy_latent.estimators.smoothed_dp import SmoothedDP
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.spigot import Spigot
from spacy_latent.estimators.spigot_marginals import SpigotMarginals
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.relaxation import project_relaxed
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.polytopes import nearest
from tests.structures.test_ties import KINDS, scores_of_equal_words, structures_of

STEP, ROUNDING, KINK = 1e-5, 1e-4, 1e-3

WEIGHTS = [[0.0] * 4, [0.7] * 3, [0.3, 0.3, 0.0, 0.0], [0.2, 0.2, 0.6, 0.6, 0.2], [1.0, 0.0, 0.0]]

SIZES: list[tuple[Structure, tuple[int, ...], Any]] = [
    (OneOfN(), (4,), 4),
    (KOfN(2), (4,), 4),
    (Bits(), (4,), 4),
    (Bits(budget=2), (4,), 4),
    (Runs(2, 2), (4,), 4),
    (TagSequence(), (2, 3), 2),
    (LinearChain(), (3, 2, 2), 3),
    (IndependentHeads(), (3, 3), 2),
    (ProjectiveTree(), (3, 3), 2),
    (SpanningTree(), (4, 4), 3),
    (ConstituencyTree(), (4, 4), 4),
    (OneToOneAlignment(), (3, 3), [3, 3]),
    (MonotoneAlignment(), (2, 2), [2, 2]),
]
STRUCTURES = pytest.mark.parametrize(
    "structure, shape, size", SIZES, ids=lambda given: str(given)[:40]
)


def of_item(function: Callable[[Tensor, Tensor], Tensor], size: Any) -> Callable[[Tensor], Tensor]:
    return lambda scores: function(scores[None], torch.tensor([size]))[0].flatten()


def check_slopes(function: Callable[[Tensor], Tensor], at: Tensor, along: Tensor) -> None:
    """Check the gradient along each direction.

    It must equal finite differences from both sides, or lie between them at a kink.
    """
    jacobian = torch.autograd.functional.jacobian(function, at).flatten(-at.dim())
    for direction in along:
        with torch.no_grad():
            here, step = function(at), STEP * direction
            after = (function(at + step) - here) / STEP
            before = (here - function(at - step)) / STEP
        found = jacobian @ direction.flatten()
        low, high = torch.minimum(before, after), torch.maximum(before, after)
        assert (low - ROUNDING <= found).all()
        assert (found <= high + ROUNDING).all()
        smooth = high - low < KINK
        assert ((found - 0.5 * (low + high)).abs() < ROUNDING)[smooth].all()


def each_part(shape: tuple[int, ...]) -> Tensor:
    count = int(torch.tensor(shape).prod())
    return torch.eye(count, dtype=torch.float64).view(count, *shape)


def random(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("row", WEIGHTS, ids=str)
@pytest.mark.parametrize(
    "estimator",
    [
        SparseMAP(),
        Entmax(1.5),
        Entmax(2.0),
        Entmax(3.0),
        Fusedmax(0.0),
        Fusedmax(0.1),
        Oscarmax(0.0),
        Oscarmax(0.01),
        Oscarmax(0.1),
        ConstrainedSparsemax(0.45),
    ],
    ids=lambda estimator: str(list(vars(estimator).values())[:1]) + estimator.name,
)
def test_attention_to_equal_words(estimator: Estimator, row: list[float]) -> None:
    def attend(scores: Tensor, lengths: Tensor) -> Tensor:
        return estimator(OneOfN(), scores, lengths, True).z[0]

    scores = torch.tensor(row, dtype=torch.float64)
    check_slopes(of_item(attend, len(row)), scores, each_part((len(row),)))


def test_no_penalty_keeps_no_equal_words_together() -> None:
    scores = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    for estimator in (Fusedmax(0.0), Oscarmax(0.0)):
        z = estimator(OneOfN(), scores, torch.tensor([3]), True).z[0]
        (gradient,) = torch.autograd.grad(z[0, 0], scores)
        expected = torch.tensor([[2.0, -1.0, -1.0]], dtype=torch.float64) / 3.0
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("kind", ["all equal", "equal words"])
@pytest.mark.parametrize(
    "estimator, structure, shape, size",
    [
        (estimator, *given)
        for estimator in (TopKSparsemax(200), DenseMarginalization(200))
        for given in SIZES
        if not given[0].lacks(estimator.needed())
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_the_loss_of_all_structures(
    estimator: Estimator, structure: Structure, shape: tuple[int, ...], size: Any, kind: str
) -> None:
    linear, squared = random(2, shape)

    def loss(scores: Tensor, lengths: Tensor) -> Tensor:
        draw = estimator(structure, scores, lengths, True)
        losses = (draw.z * linear).flatten(2).sum(2) + (draw.z * squared).flatten(2).sum(2) ** 2
        return (draw.weights * losses).sum(0)

    check_slopes(of_item(loss, size), scores_of_equal_words(shape, kind), random(3, shape, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "structure, shape, size",
    [
        (TagSequence(), (3, 3), 3),
        (LinearChain(), (3, 2, 2), 3),
        (MonotoneAlignment(), (3, 3), [3, 3]),
    ],
    ids=lambda given: str(given)[:20],
)
def test_smoothed_recursions(
    structure: Structure, shape: tuple[int, ...], size: Any, kind: str
) -> None:
    def mean(scores: Tensor, lengths: Tensor) -> Tensor:
        return SmoothedDP()(structure, scores, lengths, True).z[0]

    check_slopes(of_item(mean, size), scores_of_equal_words(shape, kind), random(3, shape, 1))


@pytest.mark.parametrize("kind", KINDS)
@STRUCTURES
def test_weights_of_sparsemap_change_along_their_support(
    structure: Structure, shape: tuple[int, ...], size: Any, kind: str
) -> None:
    """Only the structures of the support contribute to the gradient of the weights.

    A loss that is equal for all structures has no gradient, even if other structures tie. If scores
    move along a difference of two structures of the support, the mean moves by this difference.
    """
    lengths = torch.tensor([size])
    scores = scores_of_equal_words(shape, kind)[None].requires_grad_()
    draw = SparseMAP(marginalize=True)(structure, scores, lengths, True)
    weights, z = draw.weights[:, 0], draw.z[:, 0].detach().flatten(1)
    (of_nothing,) = torch.autograd.grad(weights.sum(), scores, retain_graph=True)
    torch.testing.assert_close(of_nothing, torch.zeros_like(of_nothing), rtol=0, atol=1e-9)
    linear = random(1, shape).flatten()
    (gradient,) = torch.autograd.grad(weights @ (z @ linear), scores)
    along = (z - z[:1])[weights > 0]
    torch.testing.assert_close(
        along @ gradient.flatten(), along @ linear, rtol=0, atol=1e-7 * len(along)
    )


@pytest.mark.parametrize("kind", KINDS)
@STRUCTURES
def test_projected_steps_are_exact(
    structure: Structure, shape: tuple[int, ...], size: Any, kind: str
) -> None:
    """SPIGOT is checked from the best structure and from the marginals, with gradients that have
    ties, too.
    """
    lengths = torch.tensor([size])
    listed = structures_of(structure, shape, lengths).numpy()
    given = scores_of_equal_words(shape, kind)
    parts = structure.part_mask(given[None], lengths)[0]
    upstream = torch.where(parts, given.flip(0) - 0.5, 0.0)

    def expected(start: Tensor) -> Tensor:
        point = (start - upstream).detach().flatten().numpy()
        projected = nearest(lambda direction: listed[(listed @ direction).argmax()], point)
        return start.detach() - torch.from_numpy(projected).view(shape)

    for estimator in (Spigot(), SpigotMarginals()):
        if structure.lacks(estimator.needed()):
            continue
        scores = given[None].clone().requires_grad_()
        z = estimator(structure, scores, lengths, True).z[0]
        (gradient,) = torch.autograd.grad(z, scores, upstream[None])
        start = z[0]
        if isinstance(estimator, SpigotMarginals):
            start = structure.marginals(scores, lengths)[0]
        torch.testing.assert_close(gradient[0], expected(start), rtol=0, atol=1e-6)


def test_the_relaxed_projection() -> None:
    structure = IndependentHeads()

    def project(points: Tensor, lengths: Tensor) -> Tensor:
        return project_relaxed(structure, points, lengths)

    for kind in KINDS:
        points = scores_of_equal_words((4, 4), kind)
        check_slopes(of_item(project, 3), points, each_part((4, 4)))
