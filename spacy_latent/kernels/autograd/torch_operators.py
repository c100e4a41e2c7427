"""Functions registered with PyTorch as single operators.

:class:`TorchOperator` works like torch's ``custom_op``, with one difference: operators of
``custom_op`` import torch's compiler at their first call. That takes more than a second in each
process, even if nothing is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, library

from spacy_latent.kernels.autograd.derivatives import (
    is_transformed,
    refuse_forward_over_reverse,
    refuse_tangents,
)

NAMESPACE = "spacy_latent"
_LIBRARY = library.Library(NAMESPACE, "FRAGMENT")

Given = ParamSpec("Given")
Result = TypeVar("Result")


class TorchOperator(Generic[Given, Result]):
    """An operator that has one implementation for all devices and does not change its arguments.

    Instances are made by :func:`torch_operator`.
    """

    def __init__(self, name: str, function: Callable[Given, Result]) -> None:
        self.name = f"{NAMESPACE}::{name}"
        schema = library.infer_schema(function, mutates_args=())
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, _not_compiled(function), "CompositeExplicitAutograd")
        # The operator's name for torch's own functions, such as opcheck.
        self.overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        self._call = cast("Callable[Given, Result]", self.overload)
        self._transformed: type[torch.autograd.Function] | None = None
        library.register_vmap(self.name, self._one_by_one, lib=_LIBRARY)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Apply the operator, also under torch.func. Forward tangents raise an error."""
        # torch would drop tangents silently.
        refuse_tangents(self.name, *args)
        if self._transformed is not None and is_transformed():
            return cast("Result", self._transformed.apply(*args, *kwargs.values()))
        return self._call(*args, **kwargs)

    def _one_by_one(self, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """Implement torch.func.vmap as a loop, since kernels have only one batch dimension."""
        call: Any = self._call
        found: list[Any] = [
            call(
                *(
                    one.select(dim, i) if isinstance(one, Tensor) and dim is not None else one
                    for one, dim in zip(args, in_dims)
                )
            )
            for i in range(info.batch_size)
        ]
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        parts = [torch.stack(part) for part in zip(*found)]
        return tuple(parts), (0,) * len(parts)

    def register_fake(self, function: Callable[..., object]) -> Callable[..., object]:
        """Register ``function`` as the fake implementation.

        It gets arguments without values, and returns results with shapes, dtypes and devices only.
        """
        library.register_fake(self.name, function, lib=_LIBRARY)
        return function

    def register_autograd(
        self, backward: Callable[..., object], *, setup_context: Callable[..., None]
    ) -> None:
        """Register ``backward(ctx, *gradients)``, which returns the gradients of all arguments.

        ``setup_context(ctx, inputs, output)`` saves values for it. torch passes its arguments by
        name.
        """
        library.register_autograd(self.name, backward, setup_context=setup_context, lib=_LIBRARY)
        call: Any = self._call
        name = self.name

        class Transformed(torch.autograd.Function):
            """The same operator for torch.func, which cannot use the registration above."""

            generate_vmap_rule = True

            @staticmethod
            def forward(*args: Any) -> Any:
                return call(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                setup_context(ctx, inputs, output)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                return backward(ctx, *gradients)

            @staticmethod
            def jvp(ctx: Any, *tangents: Any) -> Any:
                refuse_forward_over_reverse(name)

        self._transformed = Transformed


def torch_operator(name: str) -> Callable[[Callable[Given, Result]], TorchOperator[Given, Result]]:
    """Make the decorated function the operator ``spacy_latent::name``.

    The types of its arguments and results are read from its annotations.
    """
    return lambda function: TorchOperator(name, function)


def _not_compiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return ``function`` excluded from tracing by torch's compiler, if that is loaded.

    The compiler would trace its NumPy code.
    """
    disabled: Callable[Given, Result] | None = None

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        nonlocal disabled
        if disabled is None:
            # The module has no "disable" while another thread is importing it.
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:
                return function(*args, **kwargs)
            disabled = cast("Callable[Given, Result]", disable(function))
        return disabled(*args, **kwargs)

    return run
