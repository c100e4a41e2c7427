"""Losses of predictions for whole texts, one for each of K structures."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

# All map the logits ``(K, D, labels)``, the truths and a mask of the known ones, both
# ``(D, labels)``, to the losses ``(K, D)``.


def exclusive_loss(logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
    """Return the cross-entropy of the softmax, in nats; 0 for a text without a label."""
    return -(truths * known * logits.log_softmax(-1)).sum(-1)


def multilabel_loss(logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
    """Return the sum over the known labels of the binary cross-entropy, in nats."""
    each = binary_cross_entropy_with_logits(logits, truths.expand_as(logits), reduction="none")
    return (known * each).sum(-1)


def regression_loss(logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
    """Return half the squared error of sigmoid(logit), summed over the known labels.

    Truths are in [0, 1].
    """
    return 0.5 * (known * (torch.sigmoid(logits) - truths).square()).sum(-1)
