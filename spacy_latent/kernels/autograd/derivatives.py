"""The derivatives that kernels have, and errors if torch asks for others.

torch treats everything that it has not recorded as constant. Without these errors, a missing second
derivative, or one in forward mode, would silently be 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from spacy_latent.errors import NotDifferentiable

Gradients = tuple[Any, ...]
Backward = Callable[..., Gradients]

MARGINALS_ONCE = (
    "marginals, and what is made of them as entropy and kl are, can be differentiated once, and "
    "log_partition and log_prob twice"
)
SPARSEMAP_ONCE = "sparsemap can be differentiated once"


def last_derivative(said: str) -> Callable[[Backward], Backward]:
    """Decorate the backward pass of a function or an operator that is only once differentiable.

    With ``create_graph``, the gradients depend on the incoming gradients and on the tensors that
    ``ctx`` has saved, which must include all differentiable inputs. Differentiating the gradients
    again raises NotDifferentiable. Without ``create_graph`` the decorator does nothing.

    Args:
        said: how often the function can be differentiated, as a sentence without a period.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def run(ctx: Any, *gradients: Tensor | None) -> Gradients:
            with torch.no_grad():
                found = backward(ctx, *gradients)
            # Saved tensors are only read if needed, since they may have been written to in place.
            if not torch.is_grad_enabled():
                return found
            given = (*ctx.saved_tensors, *gradients)
            sources = [one for one in given if one is not None and one.requires_grad]
            return tuple(part if part is None else _last(said, part, sources) for part in found)

        return run

    return decorate


def _last(said: str, gradient: Tensor, sources: list[Tensor]) -> Tensor:
    made = _Last.apply(said, gradient, *sources)
    assert isinstance(made, Tensor)
    return made


class _Last(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(said: str, gradient: Tensor, *sources: Tensor) -> Tensor:
        # Cloned, since autograd forbids to write to a returned input in place.
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.said = inputs[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_forward_over_reverse(ctx.said)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Gradients:
        raise NotDifferentiable(
            f"{ctx.said}: there is no further derivative. Leave out create_graph, or detach() what "
            "is not to be differentiated again."
        )


def differentiable_once(values: Tensor, said: str) -> Tensor:
    """Return the values, for a result that torch may differentiate in them only once.

    Use it if a function of the values is treated as a constant, such as the point at which a
    maximum is reached. The first derivative is then right, but the second would be too small.
    ``said`` is as in :func:`last_derivative`.
    """
    made = _DifferentiableOnce.apply(said, values)
    assert isinstance(made, Tensor)
    return made


class _DifferentiableOnce(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(said: str, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[str, Tensor], output: Tensor) -> None:
        ctx.said, values = inputs
        ctx.save_for_backward(values)

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor) -> Tensor:
        return tangent.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Gradients:
        if not torch.is_grad_enabled():
            return None, upstream
        sources = [one for one in (*ctx.saved_tensors, upstream) if one.requires_grad]
        return None, _last(ctx.said, upstream, sources)


# An internal module of torch.func, which has no public function for this. If it is missing, no
# tensor counts as transformed.
transforms = getattr(torch._C, "_functorch", None)


def is_transformed() -> bool:
    """Return whether a transform of torch.func is active outside of torch's compiler."""
    if transforms is None or torch.compiler.is_compiling():
        return False
    return transforms.maybe_current_level() is not None


def tangent_of(values: Tensor) -> Tensor | None:
    """Return the tangent of a tensor in forward mode, or None if it has none.

    It returns at once if forward mode is not active.
    """
    if getattr(forward_ad, "_current_level", 0) < 0:
        return None
    return forward_ad.unpack_dual(values).tangent


def refuse_tangents(name: str, *values: object) -> None:
    """Raise NotDifferentiable if a value has a tangent, for functions without a forward mode."""
    if any(isinstance(one, Tensor) and tangent_of(one) is not None for one in values):
        raise NotDifferentiable(
            f"{name} has no derivative in forward mode (torch.func.jvp, dual numbers). Take its "
            "gradient, by backward() or torch.autograd.grad."
        )


def refuse_forward_over_reverse(name: str) -> NoReturn:
    """Raise NotDifferentiable for forward mode over a function recorded in reverse mode."""
    raise NotDifferentiable(
        f"{name}: there is no derivative in forward mode of one in reverse mode, which "
        "torch.func.hessian takes. Use torch.func.jacrev twice, or "
        "torch.autograd.functional.hessian."
    )
