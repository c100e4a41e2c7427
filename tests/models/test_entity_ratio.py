"""The expected share of tokens in entities, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.entity_ratio import EntityRatio, add_ratio_loss, ratio_loss
from tests.models.test_crf_loss import TAGS, K, random_scores
from tests.models.test_tag_evidence import totals_of


def expected_loss(
    emissions: Tensor, transitions: Tensor, sizes: list[int], ratio: EntityRatio
) -> Tensor:
    inside, begin = torch.zeros((), dtype=torch.float64), 0
    for size in sizes:
        if size:
            every, totals = totals_of(transitions, emissions[begin : begin + size])
            inside = inside + (totals.softmax(0) * (every != 0).sum(1)).sum()
        begin += size
    distance = (inside / sum(sizes) - ratio.expected).abs() - ratio.tolerance
    return ratio.weight * len(sizes) * distance.clamp_min(0.0)


@pytest.mark.parametrize("expected", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_loss_and_gradient_are_those_of_expectations(expected: float, scale: float) -> None:
    sizes = [3, 0, 1, 2]
    for seed in range(3):
        emissions, transitions = (p.requires_grad_() for p in random_scores(6, seed, scale))
        ratio = EntityRatio(expected, 0.05, 10.0)
        wanted = expected_loss(emissions, transitions, sizes, ratio)
        found = ratio_loss(
            emissions.detach().numpy(), transitions.detach().numpy(), TAGS, sizes, ratio
        )
        assert found.loss == pytest.approx(wanted.item(), abs=1e-10)
        gradients = torch.autograd.grad(wanted, (emissions, transitions))
        np.testing.assert_allclose(found.emissions, gradients[0].numpy(), atol=1e-9)
        np.testing.assert_allclose(found.transitions, gradients[1].numpy(), atol=1e-9)


def test_inside_of_the_tolerance_and_without_texts_nothing_is_to_be_learned() -> None:
    emissions, transitions = (part.numpy() for part in random_scores(4, 0))
    share = ratio_loss(emissions, transitions, TAGS, [4], EntityRatio(0.0, 1.0, 1.0)).share
    found = ratio_loss(emissions, transitions, TAGS, [4], EntityRatio(share + 0.04, 0.05, 1.0))
    assert found.loss == 0.0 and not found.emissions.any() and not found.transitions.any()
    for sizes in ([], [0]):
        found = ratio_loss(emissions[:0], transitions, TAGS, sizes, EntityRatio(0.5, 0.0, 1.0))
        assert found.loss == 0.0 and found.emissions.shape == (0, K)


def test_it_is_added_for_the_texts_that_are_chosen() -> None:
    sizes, ratio = [2, 3, 1], EntityRatio(0.0, 0.0, 4.0)
    emissions, transitions = (part.numpy() for part in random_scores(6, 1))
    found = TagScores(emissions, transitions)  # type: ignore[arg-type]
    before = TagScores(np.ones_like(emissions), np.ones_like(transitions))  # type: ignore[arg-type]
    loss, gradient = add_ratio_loss(found, before, TAGS, sizes, [0, 2], ratio)
    rows = [0, 1, 5]
    alone = ratio_loss(emissions[rows], transitions, TAGS, [2, 1], ratio)
    assert loss == pytest.approx(alone.loss)
    np.testing.assert_allclose(gradient.emissions[rows], 1 + alone.emissions)
    np.testing.assert_allclose(gradient.emissions[2:5], 1.0)
    np.testing.assert_allclose(gradient.transitions, 1 + alone.transitions)
