"""Computation for some of the rows of tensors at a time, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Numbers that are kept at once, 64 MB.
MAX_NUMBERS = 1 << 24


def in_parts(call: Callable[..., Tensor], *rows: Tensor, numbers: int) -> Tensor:
    """Return ``call(*rows)``, computed for some of the rows at a time if they are many.

    The parts are computed again for the gradient, so that few numbers are kept at once.

    Args:
        call: function of rows that returns a row for each.
        rows: tensors with the same first axis.
        numbers: count of numbers that ``call`` needs for a row.
    """
    most = max(1, MAX_NUMBERS // max(1, numbers))
    if len(rows[0]) <= most:
        return call(*rows)
    parts = zip(*(tensor.split(most) for tensor in rows))
    return torch.cat([checkpoint(call, *part, use_reentrant=False) for part in parts])


def predict_in_parts(call: Callable[..., Tensor], *rows: Tensor, numbers: int) -> Tensor:
    """Return :func:`in_parts` if there are no gradients, else ``call(*rows)``.

    With gradients the numbers are kept, which is faster than computing them again.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return call(*rows)
    return in_parts(call, *rows, numbers=numbers)
