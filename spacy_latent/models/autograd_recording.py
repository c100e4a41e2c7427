"""Thinc models whose training records gradients in any mode of torch."""

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
    """Record operations in training, even under ``torch.no_grad()`` and ``torch.inference_mode()``.

    In prediction, nothing is recorded.
    """
    with recording() if is_train else torch.no_grad():
        yield


def recorded(forward: Forward) -> Forward:
    """Run a forward function and its callback as under :func:`recording_if`.

    All functions that make torch tensors from arrays need this: tensors made in inference mode
    never have a gradient.
    """

    @wraps(forward)
    def run(model: Model, inputs: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        with recording_if(is_train):
            made, backprop = forward(model, inputs, is_train)

        def backprop_recorded(*gradients: Any) -> Any:
            with recording():
                return backprop(*gradients)

        return made, backprop_recorded

    return run
