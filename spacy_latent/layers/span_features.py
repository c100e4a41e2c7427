"""Features of all spans of a text: one hidden layer over their ends, content and length.

Spans are stored in rows of cells: the spans that begin with the first token, the shortest first,
then the spans that begin with the second. A square of first and last token would be half empty. A
row stays in the processor's cache while it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from spacy_latent.kernels.autograd.tracing import refuse_transforms
from spacy_latent.layers.encoded_scorer import distance_buckets


@dataclass(frozen=True)
class SpanCells:
    """Spans of up to ``bound`` tokens of a text of n tokens, P in all.

    Attributes:
        first, last: ``(P,)`` int64, the tokens of each.
        starts: n + 1 numbers, the first cell of each row and P.
    """

    n: int
    first: Tensor
    last: Tensor
    starts: tuple[int, ...]

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def flat(self) -> Tensor:
        """Index of each span in a flattened square ``(n, n)``, ``(P,)``."""
        return self.first * self.n + self.last

    def chart(self, values: Tensor) -> Tensor:
        """Scatter values of the P spans, ``(P, B)``, into charts ``(B, n, n)``, [first, last].

        The charts are in float64, and 0 at cells that are no span.
        """
        square = torch.zeros(values.shape[1], self.n**2, dtype=torch.float64, device=values.device)
        square.index_copy_(1, self.flat.to(values.device), values.t().double())
        return square.view(-1, self.n, self.n)

    def of_chart(self, chart: Tensor) -> Tensor:
        """Gather the values of the P spans, ``(P, B)``, from charts ``(B, n, n)``."""
        return chart.flatten(1).t()[self.flat.to(chart.device)]


@lru_cache(maxsize=256)
def span_cells(n: int, bound: int | None = None) -> SpanCells:
    """Return the spans of a text of n tokens.

    Args:
        bound: largest number of tokens of a span, None for all.
    """
    widest = n if bound is None else min(bound, n)
    # The result is cached for later calls, so it must not depend on torch's default device.
    with torch.device("cpu"):
        sizes = torch.tensor([min(widest, n - i) for i in range(n)], dtype=torch.int64)
        ends = sizes.cumsum(0)
        first = torch.repeat_interleave(torch.arange(n), sizes)
        last = first + torch.arange(int(sizes.sum())) - torch.repeat_interleave(ends - sizes, sizes)
    return SpanCells(n, first, last, (0, *ends.tolist()))


def span_features(roles: Tensor, width: Tensor, cells: SpanCells) -> Tensor:
    """Return relu(Fᵢ + Lⱼ + mean(Mᵢ … Mⱼ) + d[j − i + 1]), ``(P, B, h)``; differentiable.

    Args:
        roles: ``(n, B, 3h)``, F, L and M of each token.
        width: ``(buckets, h)``, d by the bucket of the number of tokens, see ``distance_buckets``.
    """
    refuse_transforms("span_features", roles, width)
    found: Any = _SpanFeatures.apply(roles, width, cells)
    return found


class _SpanFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, roles: Tensor, width: Tensor, cells: SpanCells) -> Tensor:
        first, last, inner = (part.contiguous() for part in roles.chunk(3, -1))
        n, batch, hidden = first.shape
        up_to = inner.cumsum(0)
        before = up_to - inner
        tokens = torch.arange(1, n + 1, device=roles.device)
        share = (1.0 / tokens).to(roles.dtype)[:, None, None]
        buckets = distance_buckets(tokens)
        of_width = width[buckets][:, None]
        made = roles.new_empty(len(cells), batch, hidden)
        for i in range(n):
            row = made[cells.starts[i] : cells.starts[i + 1]]
            size = len(row)
            torch.sub(up_to[i : i + size], before[i], out=row)
            row.mul_(share[:size]).add_(last[i : i + size]).add_(first[i]).add_(of_width[:size])
        made.relu_()
        ctx.save_for_backward(made, share, buckets)
        ctx.cells, ctx.width = cells, width.shape
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        made, share, buckets = ctx.saved_tensors
        cells = ctx.cells
        d_made = gradients[0].masked_fill(made == 0.0, 0.0)
        n, (_, batch, hidden) = cells.n, made.shape
        d_first, d_last, d_up_to, d_before = made.new_zeros(4, n, batch, hidden)
        by_width = made.new_zeros(n, hidden)
        for i in range(n):
            row = d_made[cells.starts[i] : cells.starts[i + 1]]
            size = len(row)
            d_first[i] = row.sum(0)
            d_last[i : i + size] += row
            by_width[:size] += row.sum(1)
            row *= share[:size]
            d_up_to[i : i + size] += row
            d_before[i] = row.sum(0)
        # Cumulative sums, including a token and before it.
        d_inner = (d_up_to - d_before).flip(0).cumsum(0).flip(0) + d_before
        d_width = made.new_zeros(ctx.width).index_add_(0, buckets, by_width)
        return torch.cat([d_first, d_last, d_inner], -1), d_width, None
