"""Models of Thinc whose training records gradients, whatever mode of torch is around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from thinc.api import Model

from spacy_latent.structures.derivatives import recording

Forward = Callable[[Model, Any, bool], tuple[Any, Callable[..., Any]]]


@contextmanager
def recording_if(is_train: bool) -> Iterator[None]:
    """In training, operations are recorded, also under ``torch.no_grad()`` and
    ``torch.inference_mode()``; in prediction none is."""
    with recording() if is_train else torch.no_grad():
        yield


def recorded(forward: Forward) -> Forward:
    """A forward function whose operations, and those of its callback, are as in
    :func:`recording_if`. For all that makes tensors of torch from arrays: those that inference mode
    has made have no gradient for ever."""

    @wraps(forward)
    def run(model: Model, inputs: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        with recording_if(is_train):
            made, backprop = forward(model, inputs, is_train)

        def backprop_recorded(*gradients: Any) -> Any:
            with recording():
                return backprop(*gradients)

        return made, backprop_recorded

    return run


__all__ = ["recorded", "recording_if"]
