"""Speed of kernels for the GPU, compared with the path through the CPU and with other libraries.

The operations are MAP, marginals and the gradient of marginals. A call goes from scores on the GPU
to a result on the GPU, as for users. The other libraries are torch-struct if it is installed, and
for spanning trees the inverse of the Laplacian by torch.linalg in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu.answers import STRUCTURES
from benchmarks.gpu.machine import Machine, Record, fill
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.structures.base import Structure

# Pairs of batch size and words. These sizes have targets.
TARGETS = ((256, 32), (256, 64))
GRID = tuple((batch, n) for batch in (32, 128, 512) for n in (25, 50, 100))
# Sizes for which a kernel of the GPU may be slower.
FEW = tuple((batch, n) for batch in (1, 8) for n in (10, 25, 50))
SMALL = ((2, 4),)
OPERATIONS = ("best", "marginals", "gradient")
TAGS, ROUNDS = 20, 9
PEERS = {
    "linear chain": "LinearChainCRF",
    "projective tree": "DependencyCRF",
    "constituency tree": "TreeCRF",
    "spanning tree": "NonProjectiveDependencyCRF",
}
Runs = dict[str, Callable[[], Any]]


def own(structure: Structure, scores: Tensor, lengths: Tensor, along: Tensor) -> Runs:
    differentiable = scores.clone().requires_grad_()
    marginals = structure.marginals(differentiable, lengths)

    def gradient() -> Tensor:
        return torch.autograd.grad(marginals, differentiable, along, retain_graph=True)[0]

    return {
        "best": lambda: structure.map(scores, lengths),
        "marginals": lambda: structure.marginals(scores, lengths),
        "gradient": gradient,
    }


def torch_struct(name: str, scores: Tensor, along: Tensor) -> Runs:
    """Return the operations of torch-struct, on the same scores in its layout.

    ``benchmarks inference`` compares its results with ours.
    """
    import torch_struct as peer

    make = getattr(peer, PEERS[name])
    if name == "linear chain":
        given, change = scores[:, 1:].transpose(2, 3), along[:, 1:].transpose(2, 3)
    elif name == "constituency tree":
        given, change = scores[..., None], along[..., None]
    else:
        given, change = scores[:, 1:, 1:], along[:, 1:, 1:]
    given = given.contiguous()
    differentiable = given.clone().requires_grad_()
    options: dict[str, Any] = {"multiroot": True} if "tree" in name and "const" not in name else {}
    size = torch.full((len(given),), given.shape[1], device=given.device)
    lengths = size if name == "constituency tree" else None
    marginals = make(differentiable, lengths, **options).marginals

    def gradient() -> Tensor:
        return torch.autograd.grad(marginals, differentiable, change, retain_graph=True)[0]

    runs: Runs = {
        "marginals": lambda: make(given.requires_grad_(), lengths, **options).marginals,
        "gradient": gradient,
    }
    if name != "spanning tree":
        runs["best"] = lambda: make(given, lengths, **options).argmax
    return runs


def inverse_marginals(scores: Tensor) -> Tensor:
    """Return marginals of spanning trees with any number of roots (Koo et al. 2007, section 3).

    They are computed by torch.linalg in float64. The largest score of each word is subtracted from
    its scores. There is no other treatment of peaked scores.
    """
    shifted = scores.double() - scores.double().amax(1, keepdim=True).detach()
    weights = shifted.exp()
    weights = weights * (1 - torch.eye(weights.shape[1], device=weights.device)).double()
    inner = weights[:, 1:, 1:]
    laplacian = torch.diag_embed(weights[:, :, 1:].sum(1)) - inner
    inverse = torch.linalg.inv(laplacian)
    diagonal = inverse.diagonal(dim1=1, dim2=2)
    arcs = inner * (diagonal[:, None, :] - inverse.transpose(1, 2))
    roots = weights[:, :1, 1:] * diagonal[:, None, :]
    return torch.cat([roots, arcs], 1).to(scores.dtype)


def linalg(name: str, scores: Tensor, along: Tensor) -> Runs:
    if name != "spanning tree":
        return {}
    differentiable = scores.clone().requires_grad_()
    marginals = inverse_marginals(differentiable)
    change = along[:, :, 1:]

    def gradient() -> Tensor:
        return torch.autograd.grad(marginals, differentiable, change, retain_graph=True)[0]

    return {"marginals": lambda: inverse_marginals(scores), "gradient": gradient}


@contextmanager
def through_the_cpu() -> Iterator[None]:
    """Disable the kernels for the GPU, so that the CPU computes everything."""
    with patch.object(dispatch, "serves", lambda *_: False):
        yield


def sides(name: str, scores: Tensor, along: Tensor) -> dict[str, Callable[[], Runs]]:
    """Return functions that make the operations of our kernels and of each other library."""
    # The default settings allow any number of roots, as torch-struct does.
    structure = type(STRUCTURES[name])()
    size = scores.shape[1] - int(structure.parts == "arcs")
    # Components keep lengths on the CPU.
    lengths = torch.full((len(scores),), size)
    found: dict[str, Callable[[], Runs]] = {
        "kernel": partial(own, structure, scores, lengths, along)
    }
    if find_spec("torch_struct"):
        found["torch_struct"] = partial(torch_struct, name, scores, along)
    found["linalg"] = partial(linalg, name, scores, along)
    return found


def timed(machine: Machine, make: Callable[[], Runs], operation: str) -> float | None:
    """Return the milliseconds of an operation, or None if a library lacks it or fails."""
    try:
        runs = make()
        return machine.milliseconds(runs[operation], ROUNDS, 0.2) if operation in runs else None
    except Exception as error:
        print(f"{operation}: {error!r}")
        return None


def run(machine: Machine, record: Record) -> None:
    for batch, n in SMALL if machine.pretended else (*TARGETS, *FEW, *GRID):
        for name, structure in STRUCTURES.items():
            size = n + int(structure.parts == "arcs")
            tail = (TAGS, TAGS) if structure.parts == "transitions" else (size,)
            generator = torch.Generator().manual_seed(n)
            scores, along = (
                torch.randn(batch, size, *tail, generator=generator).to(machine.device)
                for _ in range(2)
            )
            made = sides(name, scores, along)
            for operation in OPERATIONS:
                # Batches that are left to the CPU are measured as well, since these figures decide
                # which batches are left to it.
                with patch.object(dispatch, "LEAST_ITEMS", 1):
                    found = {side: timed(machine, make, operation) for side, make in made.items()}
                with through_the_cpu():
                    found["cpu"] = timed(machine, made["kernel"], operation)
                record(structure=name, batch=batch, n=n, operation=operation, **found)


def report(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"Milliseconds, float32, by the clock; *kernel* is what a user gets on this GPU for "
        f"{dispatch.LEAST_ITEMS} items and more, *through the CPU* for fewer, and *times* what the "
        "faster of the peers on the GPU takes, divided by *kernel*.",
        "",
        "| structure | batch | n | operation | kernel | through the CPU | torch-struct | "
        "torch.linalg | times |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for line in records:
        peers = [line[key] for key in ("torch_struct", "linalg") if line.get(key)]
        ratio = min(peers) / line["kernel"] if peers and line["kernel"] else None
        names = [line["structure"], line["batch"], line["n"], line["operation"]]
        times = [line.get(key) for key in ("kernel", "cpu", "torch_struct", "linalg")]
        lines.append(fill("{:.2f}", [*names, *times, ratio]))
    return lines
