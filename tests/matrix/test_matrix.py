"""Every registered structure, estimator and composer train together, or are refused."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from spacy_latent.errors import IncompatiblePair
from spacy_latent.layers.base import PartScorer
from spacy_latent.layers.latent_layer import LatentLayer
from tests.matrix import registered

WIDTH = 6
# The longest item has more tokens than the default k of KOfN.
LENGTHS = torch.tensor([7, 3, 1])
# The lengths of both texts of each pair.
PAIRS = torch.tensor([[4, 3], [1, 2], [1, 1]])

STRUCTURES, ESTIMATORS = registered.structures(), registered.estimators()
COMPOSERS, SCORERS = registered.composers(), registered.scorers()
# The kind of parts of each structure, composer and scorer, by its registered name.
PARTS = {name: structure().parts for name, structure in STRUCTURES.items()}
PARTS |= {name: build()(WIDTH).parts for name, build in [*COMPOSERS.items(), *SCORERS.items()]}
# A composer of other parts is refused with any estimator, so that one estimator is enough.
TRIPLES = [
    (structure, estimator, composer)
    for structure, estimator, composer in itertools.product(STRUCTURES, ESTIMATORS, COMPOSERS)
    if PARTS[structure] == PARTS[composer] or "SparseMAP" in estimator
]


def scorers_for(structure: str) -> list[str]:
    return [scorer for scorer in SCORERS if PARTS[scorer] == PARTS[structure]]


def lengths_for(structure: str, estimator: str) -> torch.Tensor:
    """Return lengths of three items, which are short if the estimator enumerates structures."""
    if PARTS[structure] == "cells":
        return PAIRS.clamp_max(2) if "DenseMarginalization" in estimator else PAIRS
    short = "DenseMarginalization" in estimator and PARTS[structure] != "items"
    return torch.tensor([3, 2, 1]) if short else LENGTHS


def tokens_inside(lengths: torch.Tensor) -> torch.Tensor:
    """Return a mask ``(B, 7)`` of the tokens that are not padding."""
    return (
        torch.arange(7, device=lengths.device)[None]
        < lengths.view(len(lengths), -1).sum(1)[:, None]
    )


def build(structure: str, estimator: str, composer: str, scorer: str) -> LatentLayer:
    torch.manual_seed(0)
    return LatentLayer(
        SCORERS[scorer]()(WIDTH),
        STRUCTURES[structure](),
        registered.make_estimator(estimator).for_width(WIDTH),
        COMPOSERS[composer]()(WIDTH),
        # With sharp scores, SparseMAP would return a single tree, whose gradient is 0.
        temperature=10.0,
    )


def total_loss(layer: LatentLayer, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return a loss as in a component.

    It is computed from the composed vectors, or from the vectors of each structure if the estimator
    needs the loss of each.
    """
    generator = torch.Generator().manual_seed(1)
    readout = torch.randn(layer.composer.output_width, generator=generator).to(vectors.device)
    inside = tokens_inside(lengths)
    if not layer.estimator.needs_loss:
        composed = torch.where(inside[..., None], layer(vectors, lengths).vectors, 0.0)
        return (composed @ readout).square().sum()
    draw, _ = layer.read(vectors, lengths)
    each = torch.where(inside[..., None], layer.compose_each(vectors, draw, lengths), 0.0)
    losses = (each @ readout).square().sum(2)
    log_probs = torch.zeros_like(losses) if draw.log_probs is None else draw.log_probs
    features = vectors.detach().mean(1)
    return layer.estimator.objective(losses, draw.weights, log_probs, features, draw.extras).sum()


def check_training(layer: LatentLayer, lengths: torch.Tensor) -> None:
    """Take two training steps and check the gradients.

    All are finite. In the second step the input, the scorer and the composer have nonzero ones. A
    scorer that the estimator does not use has none.
    """
    vectors = torch.randn(3, 7, WIDTH, requires_grad=True)
    inside = tokens_inside(lengths)
    parameters = [vectors, *layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.001)
    for _ in range(2):
        optimizer.zero_grad()
        # Estimators with a target step need a gradient large enough to change the structure.
        loss = 10 * total_loss(layer, vectors, lengths)
        loss.backward()
        assert torch.isfinite(loss)
        for parameter in parameters:
            assert parameter.grad is None or torch.isfinite(parameter.grad).all()
        optimizer.step()
    assert vectors.grad is not None and vectors.grad.any()
    for module in (layer.scorer, layer.composer):
        weights = list(module.parameters())
        if module is layer.scorer and not layer.estimator.uses_scores:
            assert not any(p.grad is not None and p.grad.any() for p in weights)
            continue
        # A composer that only selects vectors has no weights.
        learns = weights or isinstance(module, PartScorer)
        assert not learns or any(p.grad is not None and p.grad.any() for p in weights)
    layer.eval()
    with torch.no_grad():
        first, second = layer(vectors, lengths).vectors, layer(vectors, lengths).vectors
    assert torch.isfinite(first[inside]).all()
    # Predictions have no noise. They are close and not equal, because the rounding of a matrix
    # product may depend on the alignment of its memory.
    torch.testing.assert_close(first[inside], second[inside])


def scorer_for(structure: str) -> str:
    # A structure whose parts no scorer has is tried, and refused, with another scorer.
    return next(iter([*scorers_for(structure), *SCORERS]))


def refused(structure: str, estimator: str, composer: str) -> tuple[str, str] | None:
    """Return the names of the two parts that do not fit each other, or None if all fit."""
    scorer = scorer_for(structure)
    chosen, gradient = STRUCTURES[structure](), registered.make_estimator(estimator)
    walks = COMPOSERS[composer]()(WIDTH)
    needs_hard = walks.requires_hard and not (gradient.hard and gradient.hard_at_prediction)
    if not registered.fits(gradient, chosen):
        return gradient.name, chosen.name
    if PARTS[scorer] != chosen.parts:
        return type(SCORERS[scorer]()(WIDTH)).__name__, chosen.name
    if walks.parts != chosen.parts or (walks.requires_hard and not chosen.acyclic):
        return type(walks).__name__, chosen.name
    return (type(walks).__name__, gradient.name) if needs_hard else None


@pytest.mark.parametrize("structure, estimator, composer", TRIPLES)
def test_pairs_train_or_are_refused(structure: str, estimator: str, composer: str) -> None:
    scorer, both = scorer_for(structure), refused(structure, estimator, composer)
    if both is None:
        layer = build(structure, estimator, composer, scorer)
        check_training(layer, lengths_for(structure, estimator))
        return
    with pytest.raises(IncompatiblePair, match=".*".join(map(re.escape, both))):
        build(structure, estimator, composer, scorer)


@pytest.mark.parametrize("scorer", SCORERS)
def test_every_scorer_trains(scorer: str) -> None:
    decides = SCORERS[scorer]()(WIDTH).decides
    fitting = [name for name in STRUCTURES if PARTS[name] == PARTS[scorer]]
    if decides:
        fitting = [f"spacy-latent.{decides}.v1"]
    if not fitting:
        pytest.skip(f"there is no structure of {PARTS[scorer]} yet")
    structure = fitting[0]
    composer = next(
        name
        for name in COMPOSERS
        if PARTS[name] == PARTS[scorer] and (decides or not COMPOSERS[name]()(WIDTH).requires_hard)
    )
    estimator = "BestStraightThrough" if decides else "SparseMAP"
    layer = build(structure, f"spacy-latent.{estimator}.v1", composer, scorer)
    check_training(layer, lengths_for(structure, estimator))


def test_the_matrix_has_every_kind() -> None:
    assert "spacy-latent.SpanningTree.v1" in STRUCTURES and len(ESTIMATORS) >= 5
    assert COMPOSERS and SCORERS
