"""Arrays of a pipeline that training changes: weights with their gradients, and buffers.

Their order is the order of ``Model.walk()`` over the components. It is the same on every rank and
in every process that creates a pipeline from the same config. The ids of Thinc's models differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from spacy.language import Language
from thinc.api import Model, xp2torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError


class ThincWeights:
    """Array of weights of a Thinc layer.

    Attributes:
        name: Name of the array, for messages.
        key: Key of the array in an optimizer.
    """

    def __init__(self, component: str, node: Model, parameter: str) -> None:
        self.component, self.node, self.parameter = component, node, parameter
        self.name, self.key = f"{node.name} {parameter}", (node.id, parameter)

    @property
    def values(self) -> Tensor:
        """Tensor that shares memory with the weights."""
        return _as_torch(self.node.get_param(self.parameter))

    @property
    def gradient(self) -> Tensor | None:
        """Tensor that shares memory with the gradient, or None.

        An optimizer does not change weights without a gradient.
        """
        if not self.node.has_grad(self.parameter):
            return None
        return _as_torch(self.node.get_grad(self.parameter))

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        own = self.gradient
        if own is None:
            like: Any = self.node.get_param(self.parameter)
            made = self.node.ops.alloc(like.shape, dtype=like.dtype)
            self.node.set_grad(self.parameter, made)
            own = self.gradient
        assert own is not None
        own.copy_(value.view_as(own))


class TorchWeights:
    """Parameter of a torch module, with the attributes of :class:`ThincWeights`."""

    def __init__(self, component: str, shim: Any, name: str, parameter: nn.Parameter) -> None:
        self.component, self.shim, self.parameter = component, shim, parameter
        self.name, self.key = name, (shim.id, name)

    @property
    def values(self) -> Tensor:
        """Tensor that shares memory with the weights."""
        return self.parameter.data

    @property
    def gradient(self) -> Tensor | None:
        """Tensor that shares memory with the gradient, or None."""
        return self.parameter.grad

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        if self.parameter.grad is None:
            self.parameter.grad = value.view_as(self.parameter).clone()
        else:
            self.parameter.grad.copy_(value.view_as(self.parameter))


Weights = ThincWeights | TorchWeights


def trained_components(nlp: Language, frozen: Collection[str]) -> list[tuple[str, Any]]:
    """Return the components whose weights spaCy's loop changes."""
    found = []
    for name, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        trained = getattr(pipe, "is_trainable", False) and model not in (True, False, None)
        if name not in frozen and trained:
            if not isinstance(model, Model):
                raise LatentError(
                    f"{name!r} is trained, and its model is a {type(model).__name__}; expected a "
                    "thinc.api.Model, whose gradients can be summed over processes. Freeze the "
                    f'component (training.frozen_components = ["{name}"]), or train on one '
                    "process."
                )
            found.append((name, pipe))
    return found


def shims_of(model: Model) -> list[Any]:
    """Return the shims with a torch module, without duplicates."""
    shims = [shim for node in model.walk() for shim in node.shims]
    having = [shim for shim in shims if isinstance(getattr(shim, "_model", None), nn.Module)]
    return list({id(shim): shim for shim in having}.values())


def weights_of(models: list[tuple[str, Model]]) -> list[Weights]:
    """Return each array once, under the first component that has it."""
    found: list[Weights] = []
    seen: set[Any] = set()
    for component, model in models:
        for node in model.walk():
            for shim in node.shims:
                module = getattr(shim, "_model", None)
                if not isinstance(module, nn.Module):
                    continue
                for name, parameter in module.named_parameters():
                    if parameter.requires_grad and id(parameter) not in seen:
                        seen.add(id(parameter))
                        found.append(TorchWeights(component, shim, name, parameter))
            for name in node.param_names:
                if node.has_param(name) and (node.id, name) not in seen:
                    seen.add((node.id, name))
                    found.append(ThincWeights(component, node, name))
    return found


def buffers_of(models: list[tuple[str, Model]]) -> list[Tensor]:
    """Return the buffers of torch modules, such as running means, each once."""
    shims = (shim for _, model in models for shim in shims_of(model))
    return list({id(buffer): buffer for shim in shims for buffer in shim._model.buffers()}.values())


def models_of(nlp: Language, frozen: Collection[str]) -> list[tuple[str, Model]]:
    """Return the name and the model of each component that is trained."""
    return [(name, pipe.model) for name, pipe in trained_components(nlp, frozen)]


def checksum(nlp: Language, frozen: Collection[str]) -> int:
    """Return a checksum of all bits of the trained arrays."""
    models = models_of(nlp, frozen)
    crc = 0
    for tensor in [*(weights.values for weights in weights_of(models)), *buffers_of(models)]:
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        crc = zlib.crc32(plain.numpy().data, crc)
    return crc


def labels_of(nlp: Language) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and the labels of each component; the labels may be empty."""
    for name, pipe in nlp.pipeline:
        yield name, tuple(getattr(pipe, "labels", ()))


def _as_torch(array: Any) -> Tensor:
    return xp2torch(array, device=None if hasattr(array, "toDlpack") else torch.device("cpu"))
