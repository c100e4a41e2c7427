"""Transfers between the CPU and a GPU, batched and cached.

A transfer to the CPU waits for all pending work of the GPU, and so does a plain copy to the GPU.
Tensors are therefore sent to the GPU from pinned memory, without a wait. After a transfer in either
direction, the CPU values are cached while the tensor lives and is not written to. Tensors on the
CPU are returned unchanged and are not cached.

torch itself counts the writes to a tensor. If compiled code may write (see
:func:`writes_are_counted`), values that came from the GPU are not cached. If another library or the
replay of a CUDA graph writes to a tensor, pass a new tensor to the package: give it a ``clone()``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# Bytes: each of several tensors in one transfer begins where any type may.
ALIGNMENT = 16
# Of tensors on a GPU: their version when they were the same, and the tensor on the CPU.
_known = WeakTensorKeyDictionary()


def send(values: Tensor, device: torch.device) -> Tensor:
    """The tensor of the CPU on ``device``, differentiable; the CPU must not write to it later."""
    if device.type == "cpu":
        return values
    sent = _pinned(values).to(device, non_blocking=True)
    remember(sent, values)
    return sent


def send_together(values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """As :func:`send`, of several, by one transfer; differentiable once."""
    if device.type == "cpu":
        return list(values)
    if torch.is_grad_enabled() and any(part.requires_grad for part in values):
        sent = _SendTogether.apply(device, *values)
        assert isinstance(sent, tuple)
        for part, own in zip(sent, values):
            remember(part, own)
        return list(sent)
    sizes = [part.numel() * part.element_size() for part in values]
    starts = list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
    packed = torch.zeros(starts[-1], dtype=torch.uint8, device="cpu")

    def places(memory: Tensor) -> list[Tensor]:
        return [
            memory[start : start + size].view(part.dtype).view(part.shape)
            for part, start, size in zip(values, starts, sizes)
        ]

    for place, part in zip(places(packed), values):
        place.copy_(part.detach())
    sent = places(_pinned(packed).to(device, non_blocking=True))
    for place, part in zip(sent, values):
        remember(place, part)
    return sent


class _Bring(torch.autograd.Function):
    """Down, and its gradient up without a wait."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.device = values.device
        # Not what is remembered itself, which would get a history.
        return fetch(values).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return send(gradient, ctx.device)


class _SendTogether(torch.autograd.Function):
    """Up, and its gradients down by one transfer."""

    @staticmethod
    def forward(ctx: Any, device: torch.device, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        # Nobody may write to several views that one function gives.
        sent = tuple(part.clone() for part in send_together(values, device))
        fixed = [part for part in sent if not part.is_floating_point()]
        ctx.mark_non_differentiable(*fixed)
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        fetched = iter(fetch_together(given))
        return None, *(None if part is None else next(fetched) for part in gradients)


def bring(values: Tensor) -> Tensor:
    """As :func:`fetch`, differentiable."""
    if values.device.type == "cpu":
        return values
    brought = _Bring.apply(values)
    assert isinstance(brought, Tensor)
    return brought


def fetch(values: Tensor) -> Tensor:
    """The tensor on the CPU, without gradient and not to be written to; what is known is not
    fetched again."""
    if values.device.type == "cpu":
        return values.detach()
    known = known_of(values)
    if known is None:
        known = values.detach().cpu()
        if writes_are_counted():
            remember(values, known)
    return known


def writes_are_counted() -> bool:
    """Whether a tensor with the same version has the same numbers. torch's compiler lets one tensor
    take the place of another, and its kernels write to it without a word."""
    return "torch._inductor" not in sys.modules


def fetch_together(values: Sequence[Tensor]) -> list[Tensor]:
    """As :func:`fetch`, of several tensors of one type and device, by one transfer."""
    if len(values) < 2 or values[0].device.type == "cpu":
        return [fetch(part) for part in values]
    packed = torch.cat([part.detach().flatten() for part in values]).cpu()
    parts = packed.split([part.numel() for part in values])
    return [part.view(own.shape) for part, own in zip(parts, values)]


def known_of(values: Tensor) -> Tensor | None:
    """What :func:`fetch` gives, if it need not wait for it."""
    if values.device.type == "cpu":
        return values.detach()
    if torch.compiler.is_compiling() or values.is_inference():
        return None
    version, known = _known.get(values, (-1, None))
    return known if version == values._version else None


def remember(values: Tensor, known: Tensor) -> None:
    """Take ``known`` for the tensor on the CPU. Weights are not remembered: CuPy writes to them,
    and torch does not know."""
    if values.device.type == "cpu" or torch.compiler.is_compiling() or values.is_inference():
        return
    if isinstance(values, torch.nn.Parameter):
        return
    _known[values] = values._version, known.detach()


def derived(make: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """``make(*values)``; known on the CPU where these are, by doing it there as well. For what is
    small."""
    made = make(*values)
    if made.device.type != "cpu":
        known = [known_of(part) for part in values]
        if all(part is not None for part in known):
            remember(made, make(*known))
    return made


def places_of(mask: Tensor) -> list[Tensor]:
    """``mask.nonzero(as_tuple=True)``, without a wait where the mask is known."""
    known = known_of(mask)
    if known is None or mask.device.type == "cpu":
        return list(mask.nonzero(as_tuple=True))
    return send_together(known.nonzero(as_tuple=True), mask.device)


def _pinned(values: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return values
    try:
        return values.pin_memory()
    except RuntimeError:
        # No more memory can be pinned. Then the driver copies it to where it is.
        return values
