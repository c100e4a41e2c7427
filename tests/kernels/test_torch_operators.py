from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, library

from spacy_latent.kernels.autograd.torch_operators import torch_operator


@torch_operator("test_scaled")
def scaled(values: Tensor, factor: float) -> Tensor:
    """Multiply in NumPy, which no compiler can trace."""
    return torch.from_numpy(values.detach().numpy() * factor)


@scaled.register_fake
def _(values: Tensor, factor: float) -> Tensor:
    return torch.empty_like(values)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.factor = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return gradient * ctx.factor, None


scaled.register_autograd(_backward, setup_context=_keep)


def test_operators_follow_the_rules_of_torch() -> None:
    library.opcheck(scaled.overload, (torch.randn(3, requires_grad=True), 2.0))


def test_compiled_code_calls_them_as_a_whole() -> None:
    values = torch.randn(3, requires_grad=True)
    compiled = torch.compile(
        lambda values: scaled(values.exp(), 2.0), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(values), 2 * values.exp())
    (found,) = torch.autograd.grad(compiled(values).sum(), values)
    torch.testing.assert_close(found, 2 * values.exp())


def test_no_structure_imports_the_compiler() -> None:
    """The import takes more than a second in every process."""
    code = """
import sys
import torch
from spacy_latent.structures.spanning_tree import SpanningTree

scores = torch.randn(1, 4, 4, requires_grad=True)
SpanningTree().log_partition(scores, torch.tensor([3])).sum().backward()
assert scores.grad.abs().sum() > 0
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
