"""The distribution that an estimator declares in ``posterior`` is compared with enumeration.

A subclass inherits the declaration together with the code, so every registered class is tested.
"""

from __future__ import annotations

import pytest
import torch

from spacy_latent.estimators.base import Estimator
from spacy_latent.structures.base import Structure
from tests.matrix import registered
from tests.matrix.test_matrix import COMPOSERS, PARTS, STRUCTURES, WIDTH, build, scorers_for

DRAWS = 1000
# A larger error happens by chance once in 15,000 comparisons.
STANDARD_ERRORS = 4.0
SUMMED = [
    name
    for name, structure in STRUCTURES.items()
    if structure().linear and {"log_partition", "sample"} <= structure().tractable
]


def made(estimator: str) -> Estimator:
    torch.manual_seed(0)
    return registered.make_estimator(estimator).for_width(WIDTH)


JUDGED = {
    kind: [name for name in registered.estimators() if made(name).posterior == kind]
    for kind in ("scores", "weights")
}


def one_item(name: str) -> tuple[Structure, torch.Tensor, torch.Tensor]:
    """Return a structure, the scores of one item of a few words, and its length."""
    composer = next(
        composer
        for composer, make in COMPOSERS.items()
        if PARTS[composer] == PARTS[name] and not make()(WIDTH).requires_hard
    )
    layer = build(name, "spacy-latent.SparseMAP.v1", composer, scorers_for(name)[0])
    pair = PARTS[name] == "cells"
    lengths = torch.tensor([[2, 2]] if pair else [3])
    vectors = torch.randn(1, 4 if pair else 3, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        structure, scores = layer.score(vectors, lengths)
    drawn = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))
    return structure, torch.where(scores.isneginf(), scores, drawn), layer.sizes(scores, lengths)


def every(
    structure: Structure, scores: torch.Tensor, length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all structures ``(K, *parts)``, and the softmax of their total scores, ``(K,)``."""
    found = structure.top_k(scores, length, 1000)
    z = found.z[~found.scores.isneginf()[:, 0], 0]
    assert len(z) == pytest.approx(float(structure.log_count(scores, length).exp()), rel=1e-4)
    totals = torch.where(z > 0, z * scores, 0.0).flatten(1).sum(1)
    return z, totals.softmax(0)


@pytest.mark.parametrize("name", SUMMED)
def test_structures_are_drawn_by_the_softmax_of_their_scores(name: str) -> None:
    structure, scores, length = one_item(name)
    z, expected = every(structure, scores, length)
    tried = 0
    for estimator in map(made, JUDGED["scores"]):
        if not registered.fits(estimator, structure):
            continue
        tried += 1
        copies = scores.repeat(DRAWS, *[1] * (scores.dim() - 1))
        draw = estimator(structure, copies, length.repeat(DRAWS, *[1] * (length.dim() - 1)), True)
        found = torch.stack(
            [
                (draw.weights.detach() * (draw.z.detach() == one).flatten(2).all(2)).sum(0).mean()
                for one in z
            ]
        )
        error = (expected * (1 - expected) / DRAWS).sqrt()
        assert ((found - expected).abs() <= STANDARD_ERRORS * error + 1e-3).all(), estimator.name
    assert tried


@pytest.mark.parametrize("name", SUMMED)
def test_weights_are_a_learned_distribution_of_different_structures(name: str) -> None:
    structure, scores, length = one_item(name)
    z, softmax = every(structure, scores, length)
    scores.requires_grad_()
    tried = 0
    for estimator in map(made, JUDGED["weights"]):
        if not registered.fits(estimator, structure):
            continue
        tried += 1
        draw = estimator(structure, scores, length, True)
        weights = draw.weights[:, 0]
        same = (draw.z.detach() == z[:, None, None]).flatten(3).all(3)[..., 0].to(weights)
        used = weights.detach() > 0
        # Each draw with a weight is a structure of the set, and no structure occurs twice.
        assert (same.sum(0)[used] == 1).all(), estimator.name
        assert (same[:, used].sum(1) <= 1).all(), estimator.name
        assert float(weights.detach().sum()) == pytest.approx(1.0, abs=1e-5)
        assert weights.requires_grad
        if estimator.name == "DenseMarginalization":
            torch.testing.assert_close(same @ weights, softmax, atol=1e-5, rtol=0)
    assert tried


def test_there_are_such_estimators() -> None:
    assert len(JUDGED["scores"]) >= 4 and len(JUDGED["weights"]) >= 2 and len(SUMMED) >= 8
