"""Kernels for a pretended GPU that write what the CPU finds: what they ask and wait for is that of
real ones, and nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels import blocks, launch, operators
from spacy_latent.kernels.operations import HESSIAN_PRODUCT

FAMILIES = ("matrix_tree", "inside_outside", "constituency", "linear_chain")


def _held(value: Any) -> Any:
    return getattr(value, "held", value)


def answer(maker: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Write the outputs of a launch."""
    families = [operators.family_of(f"spacy_latent.kernels.{name}:FAMILY") for name in FAMILIES]
    family = next(f for f in families if f.device and maker in (f.device.best, f.device.total))
    scores, lengths, options, *outputs, status = map(_held, arguments)
    options = () if options == (0,) else options
    assert family.device is not None
    if maker is family.device.best:
        found = operators.find_best(family, scores, lengths, options)
        outputs[0].copy_(found.result)
    else:
        along, operation, log_partition, result = outputs
        if operation == HESSIAN_PRODUCT and family.product is not None:
            written = np.empty_like(scores.numpy())
            said = np.zeros(len(scores), dtype=np.int8)
            ranges = 0, len(scores)
            family.product(
                *ranges, scores.numpy(), lengths.numpy(), *options, along.numpy(), written, said
            )
            result.copy_(torch.from_numpy(written))
            return
        nothing = np.empty((len(scores), 0))
        change = along if operation == HESSIAN_PRODUCT else None
        found = operators._total_on_cpu(
            family, scores, lengths, options, operation, nothing, change
        )
        assert isinstance(found.log_partition, Tensor)
        log_partition.copy_(found.log_partition)
        if found.result.numel():
            result.copy_(found.result)
    status.copy_(torch.from_numpy(blocks.read_status(found.status)))


@contextmanager
def answering_kernels(after: Callable[[int], None] = lambda count: None) -> Iterator[list[Any]]:
    """The makers of the kernels that were launched. after: called with the number of launches
    behind each of them; what it raises is an error of the launch."""
    launched: list[Any] = []

    def run(maker: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
        launched.append(maker)
        answer(maker, arguments)
        after(len(launched))

    with (
        patch.object(blocks, "on_device", lambda scores: scores.is_cuda),
        patch.object(blocks, "LEAST_ITEMS", 1),
        patch.object(blocks, "_failed", set()),
        patch.object(blocks, "_confirmed", set()),
        patch.object(launch, "best_kernel", lambda maker: maker),
        patch.object(launch, "total_kernel", lambda maker: maker),
        patch.object(launch, "launch", run),
    ):
        yield launched
