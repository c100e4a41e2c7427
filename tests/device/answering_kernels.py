"""Kernels for a simulated GPU that write results of the CPU.

They wait as real kernels do, and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd import batches, families
from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import Call, GpuKernels

FAMILIES = (
    "arborescences.matrix_tree",
    "spans.inside_outside",
    "spans.constituency",
    "chains.linear_chain",
)


def _held(value: Any) -> Any:
    return getattr(value, "held", value)


def answer(kernels: GpuKernels, operation: int, given: Call) -> None:
    """Compute the outputs of one launch on the CPU, and write them."""
    known = [families.family_of(f"spacy_latent.kernels.{name}:FAMILY") for name in FAMILIES]
    (family,) = (family for family in known if family.device == kernels)
    call = Call(*map(_held, given))
    scores, lengths, options = call.scores, call.lengths, call.options
    if operation == BEST:
        found = batches.find_best(family, scores, lengths, options)
    elif operation == HESSIAN_PRODUCT and family.product is not None:
        written = np.empty_like(scores.numpy())
        status = np.zeros(len(scores), dtype=np.int8)
        batch = scores.numpy(), lengths.numpy(), tuple(options)
        family.product(0, len(scores), batch, call.along.numpy(), written, status)
        call.result.copy_(torch.from_numpy(written))
        return
    else:
        nothing = np.empty((len(scores), 0))
        change = call.along if operation == HESSIAN_PRODUCT else None
        found = batches._total_on_cpu(family, scores, lengths, options, operation, nothing, change)
        assert isinstance(found.log_partition, Tensor)
        call.log_partition.copy_(found.log_partition)
    if found.result.numel():
        call.result.copy_(found.result)
    call.status.copy_(torch.from_numpy(dispatch.read_status(found.status)))


@contextmanager
def answering_kernels(after: Callable[[int], None] = lambda count: None) -> Iterator[list[Any]]:
    """Replace the kernels, and yield the list of kernels that were launched.

    Args:
        after: Called after each launch, with the number of launches so far. An error that it raises
            is an error of the launch.
    """
    launched: list[Any] = []

    def launch(kernels: GpuKernels, operation: int, call: Call) -> None:
        launched.append(kernels)
        answer(kernels, operation, call)
        after(len(launched))

    with (
        patch.object(dispatch, "on_device", lambda scores: scores.is_cuda),
        patch.object(dispatch, "LEAST_ITEMS", 1),
        patch.object(dispatch, "_failed", set()),
        patch.object(dispatch, "_confirmed", set()),
        patch.object(dispatch, "launch", launch),
    ):
        yield launched
