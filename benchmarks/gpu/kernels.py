"""Kernels for the GPU beside the path through the CPU and beside the peers on the same GPU.

The best member, the marginals and the gradient of the marginals; a call as a user makes it, from
scores on the GPU to a result there. Peers are torch-struct where it is installed, and for spanning
trees the inverse of the Laplacian by torch.linalg in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.answers import STRUCTURES
from benchmarks.gpu.machine import Machine, Record, fill
from spacy_latent.kernels import blocks
from spacy_latent.structures.base import Structure

# Batch and words: those of the targets come first.
TARGETS = ((256, 32), (256, 64))
GRID = tuple((batch, n) for n in (25, 50, 100) for batch in (32, 128, 512))
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
    """Its own layout of the same scores; whether it agrees is asked in ``inference``."""
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
    """Of spanning trees with any number of roots, by torch.linalg in float64 (Koo et al. 2007,
    section 3): scores are shifted by each word's largest, and no case of peaked ones is caught."""
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
def through_the_cpu() -> Any:
    """Nothing is given to a kernel of the GPU."""
    before = blocks.serves
    blocks.serves = lambda *_: False
    try:
        yield
    finally:
        blocks.serves = before


def timed(machine: Machine, runs: Callable[[], Runs], operation: str) -> float | None:
    """None where this side has no such operation, or cannot do it."""
    try:
        made = runs()
        return machine.milliseconds(made[operation], ROUNDS, 0.2) if operation in made else None
    except Exception as error:
        print(f"{operation}: {error!r}")
        return None


def run(machine: Machine, record: Record) -> None:
    for batch, n in SMALL if machine.pretended else (*TARGETS, *GRID):
        for name, structure in STRUCTURES.items():
            size = n + int(structure.parts == "arcs")
            chain = structure.parts == "transitions"
            shape = (batch, size, *((TAGS, TAGS) if chain else (size,)))
            generator = torch.Generator().manual_seed(n)
            scores = torch.randn(shape, generator=generator).to(machine.device)
            along = torch.randn(shape, generator=generator).to(machine.device)
            # Where the caller of a component has them.
            lengths = torch.full((batch,), n)
            # torch-struct has trees with any number of roots only.
            free = type(structure)()
            for operation in OPERATIONS:
                found: dict[str, float | None] = {}
                found["kernel"] = timed(
                    machine, lambda: own(free, scores, lengths, along), operation
                )
                with through_the_cpu():
                    found["cpu"] = timed(
                        machine, lambda: own(free, scores, lengths, along), operation
                    )
                if find_spec("torch_struct"):
                    found["torch_struct"] = timed(
                        machine, lambda: torch_struct(name, scores, along), operation
                    )
                found["linalg"] = timed(machine, lambda: linalg(name, scores, along), operation)
                record(structure=name, batch=batch, n=n, operation=operation, **found)


def report(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        "Milliseconds, float32, by the clock; *kernel* is what a user gets on this GPU, and *times* "
        "what the faster of the peers on the GPU takes, divided by it.",
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
