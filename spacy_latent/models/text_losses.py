"""Losses of predictions for whole texts, one for each of K structures."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

# All map the logits ``(K, D, labels)``, the truths and a mask of the known ones, both
# ``(D, labels)``, to the losses ``(K, D)``.


def exclusive_loss(logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
    """Return −log of the probability of the label by the softmax, in nats.

    If a text's only known labels are wrong ones, it is −log of the sum of the probabilities of the
    other labels. It is 0 if no label is known, or if all labels are known to be wrong.
    """
    right = truths.bool() & known.bool()
    possible = torch.where(right.any(-1, keepdim=True), right, ~known.bool())
    # If all or no labels are possible, set the loss to 0: rounding errors would have a gradient.
    tells = possible.any(-1) & ~possible.all(-1)
    of_all = logits.log_softmax(-1).masked_fill(~(possible | ~tells[:, None]), -torch.inf)
    return torch.where(tells, -of_all.logsumexp(-1), 0.0)


def multilabel_loss(logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
    """Return the sum over the known labels of the binary cross-entropy, in nats."""
    each = binary_cross_entropy_with_logits(logits, truths.expand_as(logits), reduction="none")
    return (known * each).sum(-1)


def regression_loss(logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
    """Return half the squared error of sigmoid(logit), summed over the known labels.

    Truths are in [0, 1].
    """
    return 0.5 * (known * (torch.sigmoid(logits) - truths).square()).sum(-1)
