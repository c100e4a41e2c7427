"""Transfers between the CPU and a GPU, batched and cached.

A transfer to the CPU waits for all pending work of the GPU, and so does a plain copy to the GPU.
Tensors are therefore sent to the GPU from pinned memory, without a wait. After a transfer in either
direction the CPU values are cached, as long as the tensor lives and is not written to. Tensors on
the CPU are returned unchanged and are not cached.

torch counts the writes to a tensor. If compiled code may write (see :func:`writes_are_counted`),
values that came from the GPU are not cached. Writes by another library, or by the replay of a CUDA
graph, are not counted. Give the package a ``clone()`` of such a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# Alignment in bytes of each tensor within one transfer, enough for any type.
ALIGNMENT = 16
# For tensors on a GPU: their version at the transfer, and the tensor on the CPU.
_known = WeakTensorKeyDictionary()


def send(values: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on ``device``, differentiable; the CPU must not write to it later."""
    if device.type == "cpu":
        return values
    sent = _pinned(values).to(device, non_blocking=True)
    remember(sent, values)
    return sent


def send_together(values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Send several tensors like :func:`send`, by one transfer; differentiable once."""
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
    """A transfer to the CPU; its gradient is sent back without a wait."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.device = values.device
        # A detached copy, since the cached tensor would get a history.
        return fetch(values).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return send(gradient, ctx.device)


class _SendTogether(torch.autograd.Function):
    """A transfer of several tensors to the GPU; its gradients come back by one transfer."""

    @staticmethod
    def forward(ctx: Any, device: torch.device, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        # Autograd forbids in-place writes to several views returned by one function, so they are
        # cloned.
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
    """Fetch a tensor like :func:`fetch`, differentiable."""
    if values.device.type == "cpu":
        return values
    brought = _Bring.apply(values)
    assert isinstance(brought, Tensor)
    return brought


def fetch(values: Tensor) -> Tensor:
    """Return the tensor on the CPU, without gradient; it must not be written to.

    A cached tensor is not fetched again.
    """
    if values.device.type == "cpu":
        return values.detach()
    known = known_of(values)
    if known is None:
        known = values.detach().cpu()
        if writes_are_counted():
            remember(values, known)
    return known


def writes_are_counted() -> bool:
    """Return whether equal versions of a tensor imply equal values.

    They do not with torch's compiler. It reuses the memory of tensors, and its kernels write to it
    without a new version.
    """
    return "torch._inductor" not in sys.modules


def fetch_together(values: Sequence[Tensor]) -> list[Tensor]:
    """Fetch several tensors of one type and device like :func:`fetch`, by one transfer."""
    if len(values) < 2 or values[0].device.type == "cpu":
        return [fetch(part) for part in values]
    packed = torch.cat([part.detach().flatten() for part in values]).cpu()
    parts = packed.split([part.numel() for part in values])
    return [part.view(own.shape) for part, own in zip(parts, values)]


def known_of(values: Tensor) -> Tensor | None:
    """Return the result of :func:`fetch` if it needs no wait, else None."""
    if values.device.type == "cpu":
        return values.detach()
    if torch.compiler.is_compiling() or values.is_inference():
        return None
    version, known = _known.get(values, (-1, None))
    return known if version == values._version else None


def remember(values: Tensor, known: Tensor) -> None:
    """Cache ``known`` as the CPU values of a tensor.

    Weights are not cached, since CuPy writes to them without torch's knowledge.
    """
    if values.device.type == "cpu" or torch.compiler.is_compiling() or values.is_inference():
        return
    if isinstance(values, torch.nn.Parameter):
        return
    _known[values] = values._version, known.detach()


def derived(make: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Return ``make(*values)``, and cache it on the CPU if the arguments are cached.

    The result is then also computed on the CPU, so it should be small.
    """
    made = make(*values)
    if made.device.type != "cpu":
        known = [known_of(part) for part in values]
        if all(part is not None for part in known):
            remember(made, make(*known))
    return made


def places_of(mask: Tensor) -> list[Tensor]:
    """Return ``mask.nonzero(as_tuple=True)``, without a wait if the mask is cached."""
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
        # No more memory can be pinned. The driver then copies from unpinned memory.
        return values
