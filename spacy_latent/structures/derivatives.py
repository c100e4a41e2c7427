"""Derivatives that results are made of, in whatever mode of torch these are asked for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


@contextmanager
def recording() -> Iterator[None]:
    """Inside, operations are recorded, also under ``torch.no_grad`` and, which
    ``torch.enable_grad`` alone does not lift, ``torch.inference_mode``. Tensors that come from
    without go through :func:`recordable`."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def recordable(value: Value) -> Value:
    """Inside of :func:`recording`: a tensor that inference mode has made as a copy that may be
    saved for a backward, and a tuple, or a structure by what is bound to it, with such copies. What
    has none is given back itself."""
    found: Any = value
    if isinstance(value, Tensor):
        return found.clone() if value.is_inference() else found
    parts = {i: one for i, one in enumerate(found)} if type(value) is tuple else _bound(value)
    copies = {name: recordable(one) for name, one in parts.items()}
    if all(copies[name] is one for name, one in parts.items()):
        return found
    if type(value) is tuple:
        return type(found)(copies.values())
    found = copy.copy(value)
    vars(found).update(copies)
    return found


def _bound(structure: Any) -> dict[Any, Any]:
    own = getattr(structure, "__dict__", {})
    return {name: one for name, one in own.items() if isinstance(one, (Tensor, tuple))}
