"""Recording of gradients in Thinc models, whatever mode of torch the caller has set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from thinc.api import Model

from spacy_latent.structures.derivatives import recording

Forward = Callable[[Model, Any, bool], tuple[Any, Callable[..., Any]]]


@contextmanager
def recording_if(is_train: bool) -> Iterator[None]:
    """Record operations in training, even under ``torch.no_grad()`` and ``torch.inference_mode()``.

    In prediction, nothing is recorded. A surrounding ``torch.autocast`` has no effect, as in
    Thinc's own models.
    """
    with _without_autocast(), recording() if is_train else torch.no_grad():
        yield


def _without_autocast() -> ExitStack:
    """Return a context in which torch keeps the precision of its tensors."""
    stack = ExitStack()
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


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
            with _without_autocast(), recording():
                return backprop(*gradients)

        return made, backprop_recorded

    return run
