"""Support for torch.compile, torch.export and the transforms of torch.func, which trace operations.

A traced tensor has a shape and no values. Checks of values, such as errors that name an item, are
then part of an operator, and run with the compiled code. Without tracing they run at once, since
dispatching an operator takes as long as solving a few short sentences.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, NotTraceable, not_finite_message
from spacy_latent.kernels.autograd.derivatives import is_transformed, transforms
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.gpu_transfers import fetch

Given = ParamSpec("Given")
Result = TypeVar("Result")

NOT_FINITE, INFEASIBLE = "not finite", "infeasible"


def is_traced(values: Tensor) -> bool:
    """Return whether operators must be called, instead of the functions that implement them."""
    return type(values) is not Tensor or torch.compiler.is_compiling() or is_transformed()


def has_numbers(values: Tensor) -> bool:
    """Return whether Python may read the values of a tensor.

    The only transform of torch.func that hides them is vmap.
    """
    if torch.compiler.is_compiling():
        return False
    if not is_transformed():
        return True
    assert transforms is not None
    while transforms.is_functorch_wrapped_tensor(values):
        if transforms.is_batchedtensor(values):
            return False
        values = transforms.get_unwrapped(values)
    return True


def refuse_jit_trace(name: str) -> None:
    """Raise NotTraceable under torch.jit.trace.

    It would record the results of kernels and NumPy as constants, with only a warning.
    """
    if torch.jit.is_tracing():
        raise NotTraceable(
            f"{name} cannot be part of torch.jit.trace, which would keep the numbers of this call. "
            "Use torch.export.export or torch.compile."
        )


def not_traced(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function that cannot be traced, since its steps depend on values.

    torch.compile breaks the graph at the function. torch.export and torch.func raise NotTraceable.
    """
    name = function.__qualname__

    @wraps(function)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_compiling():
            # torch.export runs the function without tracing into it.
            raise NotTraceable(
                f"{name} cannot be part of torch.export.export: how long it takes, and the shape "
                "of what it gives, depend on the scores. Export map, log_partition, marginals, "
                "entropy or sample, or what comes before and after."
            )
        return function(*args, **kwargs)

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_compiling():
            # An import here would add more than a second to each process.
            dynamo: Any = sys.modules["torch._dynamo"]
            return dynamo.disable(alone)(*args, **kwargs)
        refuse_transforms(name, *args, *kwargs.values())
        return function(*args, **kwargs)

    # The attributes that torch.compiler.disable sets. If the graph may not break, torch's error
    # then names this function, and not one that it calls. The decorator itself would import the
    # compiler.
    reason = "it depends on the scores how long it takes; leave out fullgraph=True"
    vars(run).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    return run


def not_compiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function that differentiates in its forward pass.

    torch.compile breaks the graph at the function, and compiles nothing that it calls: compiled
    parts have no second derivative. Unlike with :func:`not_traced`, torch.func may transform it,
    and torch.export may run it if it does not compile (``strict=False``).
    """

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        dynamo: Any = sys.modules.get("torch._dynamo")
        if dynamo is None:
            return function(*args, **kwargs)
        result: Result = dynamo.disable(function)(*args, **kwargs)
        return result

    reason = "it differentiates in its forward pass; leave out fullgraph=True"
    vars(run).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    return run


def refuse_transforms(name: str, *values: object) -> None:
    """Raise NotTraceable if one of the values is wrapped by a transform of torch.func."""
    if not is_transformed():
        return
    assert transforms is not None
    if any(isinstance(v, Tensor) and transforms.is_functorch_wrapped_tensor(v) for v in values):
        raise NotTraceable(
            f"{name} cannot be part of torch.func.grad, vmap and the like. Use backward(), "
            "torch.autograd.grad, or torch.autograd.functional.jacobian."
        )


def source(generator: torch.Generator | None) -> dict[str, Any]:
    """Return the ``generator`` argument of torch's random functions.

    It is left out for torch's default generator, since torch cannot trace a generator of None.
    """
    return {} if generator is None else {"generator": generator}


# ------------------------------------------------------------------------------------ refusals


def refuse(values: Tensor, wrong: Tensor, reason: str, name: str) -> Tensor:
    """Return ``values``, or raise an error that names the items with a true entry in ``wrong``.

    Raises:
        InvalidScores: there are such items, and the reason is NOT_FINITE.
        InfeasibleError: there are such items, and the reason is INFEASIBLE.
    """
    if not has_numbers(wrong):
        return _refused(values, wrong, reason, name)
    _refuse(wrong, reason, name)
    return values


def _refuse(wrong: Tensor, reason: str, name: str) -> None:
    if not bool(wrong.any()):
        return
    items = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
    places = items.nonzero().flatten().tolist()
    if reason == NOT_FINITE:
        raise InvalidScores(not_finite_message(name, places))
    raise InfeasibleError(name, places)


@torch_operator("refused")
def _refused(values: Tensor, wrong: Tensor, reason: str, name: str) -> Tensor:
    _refuse(wrong, reason, name)
    # The output of an operator may not share memory with an input.
    return values.clone(memory_format=torch.contiguous_format)


@_refused.register_fake
def _(values: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _refused_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return gradient, None, None, None


_refused.register_autograd(_refused_backward, setup_context=lambda ctx, inputs, output: None)


def within_sizes(lengths: Tensor, sizes: Sequence[int], name: str, advice: str = "") -> Tensor:
    """Return ``lengths`` after a check that they are between 0 and the size of their axis.

    Args:
        lengths: ``(B,)``, or ``(B, axes)`` with as many axes as ``sizes``.
        advice: a sentence for the error if a length is too large.

    Raises:
        InvalidScores: a length is out of range.
    """
    if not has_numbers(lengths):
        return _within_sizes(lengths, sizes, name, advice)
    _check_lengths(lengths, sizes, name, advice)
    return lengths


def _check_lengths(lengths: Tensor, sizes: Sequence[int], name: str, advice: str) -> None:
    if not lengths.numel():
        return
    lengths = fetch(lengths)
    if lengths.dim() == 1:
        high = lengths.max().item()
        if min(sizes) < high <= max(sizes):
            # It fits one axis, so the lengths of the others may be missing.
            advice = (
                f"They have shape {tuple(lengths.shape)}, so each is the length of all axes of "
                f"its item; expected (B, {len(sizes)}), a length for each axis. Put them together "
                "with torch.stack([rows, columns], 1)."
            )
        _check_range(lengths.min().item(), high, min(sizes), f"{name}: lengths", advice)
        return
    for axis, (low, high, own) in enumerate(zip(lengths.amin(0), lengths.amax(0), sizes)):
        # Older versions of torch have no tolist in forward mode.
        _check_range(low.item(), high.item(), own, f"{name}: lengths[:, {axis}]", advice)


def _check_range(low: float, high: float, most: int, given: str, advice: str) -> None:
    if low >= 0 and high <= most:
        return
    given += f" are {low}" if low == high else f" lie between {low} and {high}"
    more = f" {advice}" if advice and high > most else ""
    raise InvalidScores(f"{given}, but the scores admit 0 to {most}.{more}")


# Exported programs hold the name of the operator.
@torch_operator("within_room")
def _within_sizes(lengths: Tensor, sizes: Sequence[int], name: str, advice: str) -> Tensor:
    _check_lengths(lengths, sizes, name, advice)
    return lengths.clone(memory_format=torch.contiguous_format)


@_within_sizes.register_fake
def _(lengths: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(lengths, memory_format=torch.contiguous_format)
