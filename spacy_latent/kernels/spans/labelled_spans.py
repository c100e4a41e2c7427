"""Sums over the classes of spans, for charts of trees whose spans have one class each.

Scores are ``(C, P, B)``, [class, cell, item]. Classes come first, so that a vector holds
neighbouring spans and needs no reduction. Cells are first all spans that begin with the first word,
the shortest first, then those that begin with the next word, and so on. ``starts`` has n + 1
numbers: the first cell of each row, and P. A row may end before the longest spans; these have no
class and score 0.

Charts are ``(B, n, n)`` float64, [item, first word, last word], for the kernels of trees without
classes. Sums are in the precision of the scores, relative to their largest term, so scores may be
large. Nothing of the size of the scores is saved for the backward pass, since computing
exponentials twice is faster than writing and reading them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.kernels.autograd import operators
from spacy_latent.kernels.autograd.arrays import read, read_float64
from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.spans.span_classes import (
    agreeing_rows,
    fold_rows,
    share_rows,
    subtract_agreeing_rows,
)

# Estimated nanoseconds of a span, and of one of its classes, for sharing rows among threads.
SPAN_COST, CLASS_COST = 1.5, 0.2
# The family of trees without classes.
FAMILY = "spacy_latent.kernels.spans.constituency:FAMILY"


class LabelledSpans:
    """Scores of labelled spans on the CPU, with the values that the gradient of their sums needs.

    Attributes:
        scores: ``(C, P, B)``, float32 or float64.
        lengths: ``(B,)`` int64, the number of words of each item.
        starts: see the module.
        tops, scales: ``(P · B,)``, see :func:`fold_rows`.

    Raises:
        InvalidScores: shapes do not match. Kernels do not check bounds.
    """

    def __init__(
        self,
        scores: np.ndarray,
        lengths: np.ndarray,
        starts: Sequence[int],
        tops: np.ndarray | None = None,
        scales: np.ndarray | None = None,
    ) -> None:
        self.shape = scores.shape
        classes, cells, batch = scores.shape
        n = len(starts) - 1
        if list(starts[-1:]) != [cells] or lengths.shape != (batch,):
            raise InvalidScores(
                f"Labelled spans: scores have shape {scores.shape}, lengths {lengths.shape}, and "
                f"starts end with {list(starts[-1:])}; expected (C, P, B), (B,) and P."
            )
        if ((lengths < 0) | (lengths > n)).any():
            raise InvalidScores(
                f"Labelled spans: lengths lie between {lengths.min()} and {lengths.max()}, but the "
                f"spans are of texts of 0 to {n} words."
            )
        self.scores = np.ascontiguousarray(scores).reshape(classes, cells * batch)
        self.lengths = lengths
        self.starts = np.array(starts, dtype=np.int64)
        self.costs = np.diff(self.starts) * (batch * (SPAN_COST + CLASS_COST * classes))
        size = cells * batch
        self.tops = np.empty(size, self.scores.dtype) if tops is None else tops
        self.scales = np.empty(size, self.scores.dtype) if scales is None else scales

    def _spread(self, kernel: Callable[..., None], *arguments: Any) -> None:
        spread(kernel, self.costs, ((self.starts, self.scores, self.lengths), *arguments))

    def fold(self, chart: np.ndarray) -> None:
        """Write the chart of sums over classes, ``(B, n, n)``; 0 for cells that are not spans."""
        folded = np.empty(len(self.tops))
        self._spread(fold_rows, self.tops, self.scales, folded, chart)

    def gradient(self, change: np.ndarray) -> np.ndarray:
        """Return the gradient of the scores ``(C, P, B)``, from that of the chart."""
        result = np.empty_like(self.scores)
        self._spread(share_rows, self.tops, self.scales, change, result)
        return result.reshape(self.shape)

    def fold_agreeing(self, cells: np.ndarray, classes: np.ndarray, chart: np.ndarray) -> None:
        """Write the chart of trees that agree with observed spans (see :func:`agreeing_rows`)."""
        self._spread(agreeing_rows, cells, classes, chart)

    def subtract_agreeing(
        self,
        cells: np.ndarray,
        classes: np.ndarray,
        chart: np.ndarray,
        marginals: np.ndarray,
        gradient: np.ndarray,
    ) -> None:
        """Subtract the gradient of agreeing trees (see :func:`subtract_agreeing_rows`)."""
        flat = gradient.reshape(self.scores.shape)
        self._spread(subtract_agreeing_rows, cells, classes, chart, marginals, flat)


@torch_operator("labelled_log_partition")
def _log_partition(
    scores: Tensor, lengths: Tensor, starts: Sequence[int], keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-partitions, and for the gradient the marginals of spans, tops and scales."""
    array, sizes = read(scores, lengths)
    spans = LabelledSpans(array, sizes, starts)
    n = len(starts) - 1
    values = np.empty((array.shape[2], n, n))
    spans.fold(values)
    chart, own = torch.from_numpy(values), torch.from_numpy(sizes)
    if keep:
        total, mean = operators.log_partition_and_marginals(chart, own, FAMILY, [])
    else:
        total = operators.log_partition(chart, own, FAMILY, [])
        mean = torch.empty(0, n, n, device="cpu")
    made = [total.to(scores.dtype), mean.double()]
    made += [torch.from_numpy(part) for part in (spans.tops, spans.scales)]
    total, mean, tops, scales = (send(part, scores.device) for part in made)
    return total, mean, tops, scales


@torch_operator("labelled_gradient")
def _gradient(
    scores: Tensor,
    lengths: Tensor,
    starts: Sequence[int],
    tops: Tensor,
    scales: Tensor,
    change: Tensor,
) -> Tensor:
    spans = LabelledSpans(*read(scores, lengths), starts, *read(tops, scales))
    found = spans.gradient(read_float64(change))
    return send(torch.from_numpy(found), scores.device)


def log_partition(scores: Tensor, lengths: Tensor, starts: Sequence[int]) -> Tensor:
    """Return log Σ exp(score) over binary trees with a class for each span, ``(B,)``.

    Scores are ``(C, P, B)``, and ``starts`` as in the module. The result is once differentiable. If
    it requires a gradient, the forward pass also computes the marginals.
    """
    keep = scores.requires_grad and torch.is_grad_enabled()
    total: Tensor = _log_partition(scores, lengths, list(starts), keep)[0]
    return total


@_log_partition.register_fake
def _(
    scores: Tensor, lengths: Tensor, starts: Sequence[int], keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, (_, cells, batch) = len(starts) - 1, scores.shape
    mean = scores.new_empty((batch if keep else 0, n, n), dtype=torch.float64)
    tops, scales = (scores.new_empty(cells * batch) for _ in range(2))
    return scores.new_empty(batch), mean, tops, scales


@_gradient.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:2], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.starts = inputs[2]


@last_derivative("the log-partition over labelled spans can be differentiated once")
def _log_partition_backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if gradient is None:
        return None, None, None, None
    scores, lengths, mean, tops, scales = ctx.saved_tensors
    change = gradient[:, None, None] * mean
    return _gradient(scores, lengths, ctx.starts, tops, scales, change), None, None, None


_log_partition.register_autograd(_log_partition_backward, setup_context=_keep)
