"""Labelled spans whose scores are on a GPU."""

from __future__ import annotations

import torch

from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.kernels.spans.labelled_spans import log_partition
from spacy_latent.layers.span_features import span_cells
from spacy_latent.models.found_spans import LikelySpans
from spacy_latent.models.span_losses import Gold, losses_and_gradient
from tests.device.pretended_gpu import CUDA, pretended_gpu

CELLS, LENGTHS = span_cells(6), torch.tensor([6, 2, 5])


def test_sums_over_classes_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, len(CELLS), 3, requires_grad=True)
    expected = log_partition(scores, LENGTHS, CELLS.starts)
    (wanted,) = torch.autograd.grad(expected.sum(), scores)
    with pretended_gpu():
        there = scores.detach().to(CUDA).requires_grad_()
        total = log_partition(there, LENGTHS.to(CUDA), CELLS.starts)
        (gradient,) = torch.autograd.grad(total.sum(), there)
        assert total.device == gradient.device == CUDA
        torch.testing.assert_close(fetch(total), expected.detach())
        torch.testing.assert_close(fetch(gradient), wanted)


def test_losses_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, len(CELLS), 3)
    scores[:, CELLS.last[:, None] >= LENGTHS] = torch.nan
    gold = Gold.of([[(0, 3, (1, 2)), (1, 3, (3,))], [], [(2, 4, (1,))]], CELLS, 4)
    losses, gradient = losses_and_gradient(scores, LENGTHS, gold, CELLS)
    likely = LikelySpans.of(scores, LENGTHS, CELLS, torch.eye(3), 0.05)
    with pretended_gpu(), torch.no_grad():
        there, lengths = scores.to(CUDA), LENGTHS.to(CUDA)
        found = losses_and_gradient(there, lengths, gold, CELLS)
        assert found[1].device == CUDA
        torch.testing.assert_close(fetch(found[0]), losses, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(fetch(found[1]), gradient)
        again = LikelySpans.of(there, lengths, CELLS, torch.eye(3).to(CUDA), 0.05)
        for name, value in vars(likely).items():
            torch.testing.assert_close(fetch(getattr(again, name)), value)
