"""Recording of derivatives inside computations, in any of torch's gradient modes."""

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
    """Record operations inside the context, whatever the mode of the caller.

    This holds under ``torch.no_grad`` and under ``torch.inference_mode``, which
    ``torch.enable_grad`` alone does not lift. Tensors from outside go through :func:`recordable`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield


def recordable(value: Value) -> Value:
    """Return a value that may be saved for a backward, inside of :func:`recording`.

    A tensor that was made in inference mode is copied. A tuple, or a structure with bound tensors,
    gets such copies. Any other value is returned itself.
    """
    found: Any = value
    if isinstance(value, Tensor):
        return found.clone() if value.is_inference() else found
    parts: dict[Any, Any]
    if type(found) is tuple:
        parts = dict(enumerate(found))
    else:
        own = getattr(found, "__dict__", {})
        parts = {name: one for name, one in own.items() if isinstance(one, (Tensor, tuple))}
    copies = {name: recordable(one) for name, one in parts.items()}
    if all(copies[name] is one for name, one in parts.items()):
        return found
    if type(value) is tuple:
        return type(found)(copies.values())
    found = copy.copy(value)
    vars(found).update(copies)
    return found
