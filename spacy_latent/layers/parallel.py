"""Independent parts of a torch computation, each on its own thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.kernels.core.pool import SERIAL_NANOSECONDS, one_torch_thread, spread

Call = Callable[..., Tensor]


def call_in_parallel(
    call: Call, inputs: Sequence[tuple[Tensor, ...]], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Return ``call(*part)`` for each part of the inputs; the gradients are also computed by parts.

    Args:
        call: differentiable function of its arguments and the parameters. It must not draw random
            numbers, since the order of the parts is undefined. Its gradients can be computed once,
            and have no gradients themselves.
        parameters: all other tensors that may get a gradient. Their gradients are summed in the
            order of the parts, and do not depend on the order of the threads.
    """
    parallel_call = _ParallelCall(call, len(inputs[0]), list(parameters))
    if not torch.is_grad_enabled():
        return parallel_call.run(inputs, grad=False)
    flat = [tensor for part in inputs for tensor in part]
    return list(_ParallelFunction.apply(parallel_call, *flat, *parameters))


class _ParallelCall:
    """A call, with the leaves and the result of each part in its last run with gradients."""

    def __init__(self, call: Call, arguments: int, parameters: list[Tensor]) -> None:
        self.call = call
        self.arguments = arguments
        self.parameters = parameters
        self.leaves: list[list[Tensor]] = []
        self.made: list[Tensor] = []

    def parts(self, tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return the inputs of each part.

        ``tensors`` are the inputs of all parts, followed by the parameters.
        """
        size, end = self.arguments, len(tensors) - len(self.parameters)
        return [tuple(tensors[i : i + size]) for i in range(0, end, size)]

    def run(self, inputs: Sequence[Sequence[Tensor]], grad: bool) -> list[Tensor]:
        results: list[Any] = [None] * len(inputs)

        def run_parts(start: int, stop: int) -> None:
            # A thread of the pool has a gradient mode of its own.
            with torch.set_grad_enabled(grad):
                for part in range(start, stop):
                    results[part] = self.call(*inputs[part])

        _spread(run_parts, len(inputs))
        return results

    def differentiate(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients in the order of the inputs of all parts and the parameters."""
        if not self.made:
            raise LatentError(
                "The gradient of a composition that runs in several threads can be computed only "
                "once, even with retain_graph. Compose again, or request all gradients in one call."
            )
        # The graphs are released, since they are not read again.
        results, self.made = self.made, []
        inputs, self.leaves = self.leaves, []
        found: list[Any] = [None] * len(results)

        def run_parts(start: int, stop: int) -> None:
            for part in range(start, stop):
                made, gradient = results[part], gradients[part]
                leaves = [*inputs[part], *self.parameters]
                wanted = [leaf for leaf in leaves if leaf.requires_grad]
                given: list[Tensor | None] = [None] * len(leaves)
                if gradient is not None and made.requires_grad and wanted:
                    slopes = torch.autograd.grad(made, wanted, gradient, allow_unused=True)
                    rest = iter(slopes)
                    given = [next(rest) if leaf.requires_grad else None for leaf in leaves]
                found[part] = given

        _spread(run_parts, len(results))
        of_inputs = [slope for given in found for slope in given[: self.arguments]]
        of_parameters = [_total(slopes) for slopes in zip(*(g[self.arguments :] for g in found))]
        return [*of_inputs, *of_parameters]


def _spread(run_parts: Callable[[int, int], None], parts: int) -> None:
    # The part on this thread must round in the same way as parts on threads of the pool.
    with one_torch_thread():
        spread(run_parts, np.full(parts, SERIAL_NANOSECONDS), ())


def _total(slopes: Sequence[Tensor | None]) -> Tensor | None:
    known = [slope for slope in slopes if slope is not None]
    return sum(known[1:], known[0]) if known else None


class _ParallelFunction(torch.autograd.Function):
    """Function whose parts have graphs of their own, with leaves that share the inputs' memory."""

    @staticmethod
    def forward(ctx: Any, parallel_call: _ParallelCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        parallel_call.leaves = [
            [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in part]
            for part in parallel_call.parts(tensors)
        ]
        parallel_call.made = parallel_call.run(parallel_call.leaves, grad=True)
        ctx.save_for_backward(*tensors)
        ctx.parallel_call = parallel_call
        return tuple(made.detach() for made in parallel_call.made)

    @staticmethod
    @last_derivative("a composition that is split into ranges of items can be differentiated once")
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.parallel_call.differentiate(gradients)
