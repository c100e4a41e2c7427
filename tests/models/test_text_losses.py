"""The loss of a single label for each text, against sums over the labels that a text may have."""

from __future__ import annotations

import math

import pytest
import torch

from spacy_latent.models.text_losses import exclusive_loss

UNKNOWN = None


@pytest.mark.parametrize(
    ("cats", "possible"),
    [
        ([1.0, 0.0, 0.0], [0]),
        ([UNKNOWN, 1.0, UNKNOWN], [1]),
        ([0.0, UNKNOWN, UNKNOWN], [1, 2]),
        ([0.0, UNKNOWN, 0.0], [1]),
        # Nothing is known, or nothing is left.
        ([UNKNOWN, UNKNOWN, UNKNOWN], [0, 1, 2]),
        ([0.0, 0.0, 0.0], [0, 1, 2]),
    ],
)
def test_the_loss_is_that_of_all_labels_that_a_text_may_have(cats, possible) -> None:
    logits = torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True)
    truths = torch.tensor([[value or 0.0 for value in cats]])
    known = torch.tensor([[float(value is not None) for value in cats]])
    loss = exclusive_loss(logits, truths, known)
    assert loss.shape == (2, 1)
    for row, found in zip(logits[:, 0].tolist(), loss[:, 0].tolist()):
        weights = [math.exp(score) for score in row]
        share = sum(weights[label] for label in possible) / sum(weights)
        assert found == pytest.approx(-math.log(share), abs=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert bool(gradient.isfinite().all())
    # Rounding errors would become whole steps of Adam.
    assert bool(gradient.any()) == (len(possible) < 3)
