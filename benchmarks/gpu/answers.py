"""Compare eight kernels with stored answers of a CPU.

With stored answers, no kernel is compiled for the CPU, and a wrong answer of this machine's CPU
cannot hide a wrong answer of its GPU. The answers are in answers.npz, which is written by

    python -m benchmarks.gpu.answers
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.machine import Machine, Record
from spacy_latent.errors import LatentWarning
from spacy_latent.kernels.autograd.families import family_of
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import Found
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

ANSWERS = Path(__file__).with_name("answers.npz")
STRUCTURES: dict[str, CompiledStructure] = {
    "linear chain": LinearChain(),
    "projective tree": ProjectiveTree(single_root=True),
    "constituency tree": ConstituencyTree(),
    "spanning tree": SpanningTree(single_root=True),
}
# Among the lengths are 0, and one with more words than a warp has threads.
LENGTHS = (12, 0, 1, 33, 7)
TAGS = 3
OPERATIONS = ("best", "log_partition", "marginals", "product")
# Tolerances of differences, as shares of the largest number.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def given(structure: CompiledStructure) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, lengths, and the vector that is multiplied with the Hessian.

    Some scores are −inf. The padding of the scores is NaN, since nothing may read it. Numbers are
    multiples of 1/16, which every dtype represents exactly and an archive compresses well.
    """
    generator = torch.Generator().manual_seed(3)
    chain, nodes = structure.parts == "transitions", int(structure.parts == "arcs")
    size = max(LENGTHS) + nodes
    shape = (len(LENGTHS), size, *((TAGS, TAGS) if chain else (size,)))
    scores = torch.randint(-96, 97, shape, generator=generator).double() / 16
    along = torch.randint(-32, 33, shape, generator=generator).double() / 16
    forbidden = torch.rand(shape, generator=generator) < 0.1
    if chain:
        forbidden[..., 0] = False
    else:
        # A chain of the words and right-branching brackets stay allowed: a structure exists.
        for offset in (0, 1):
            forbidden.diagonal(offset, dim1=1, dim2=2).fill_(False)
    for b, length in enumerate(LENGTHS):
        last = length + nodes
        if not chain:
            forbidden[b, :, last - 1] = False
        for numbers, padding in ((scores, torch.nan), (along, 0.0)):
            numbers[b, last:] = padding
            if not chain:
                numbers[b, :, last:] = padding
    return scores.masked_fill(forbidden, -torch.inf), torch.tensor(LENGTHS), along


def answers_of(structure: CompiledStructure) -> dict[str, np.ndarray]:
    """Return the results of the kernels for the CPU, in float64."""
    from spacy_latent.kernels.autograd import operators

    scores, lengths, along = given(structure)
    best = operators.best(scores, lengths, structure.family, structure._options(scores))
    differentiable = scores.clone().requires_grad_()
    log_partition = structure.log_partition(differentiable, lengths)
    marginals = structure.marginals(differentiable, lengths)
    (product,) = torch.autograd.grad(marginals, differentiable, along)
    found = (best, log_partition, marginals, product)
    return {name: value.detach().numpy() for name, value in zip(OPERATIONS, found)}


def load() -> dict[str, dict[str, np.ndarray]]:
    """Return the stored scores and answers, by the name of the structure."""
    with np.load(ANSWERS) as stored:
        parts = {key: stored[key] for key in stored.files}
    return {
        name: {key.split("/")[1]: v for key, v in parts.items() if key.split("/")[0] == name}
        for name in STRUCTURES
    }


def launched(
    structure: CompiledStructure,
    stored: dict[str, Tensor],
    operation: str,
    dtype: torch.dtype,
    device: str,
) -> Found | None:
    """Return the result of the GPU's kernel, or None if no kernel was launched or it failed.

    Args:
        stored: scores and results of the kernels for the CPU. The first launch of a kernel is
            compared with them.
    """
    family = family_of(structure.family)
    there = {key: stored[key].to(device, dtype) for key in ("scores", "along", "marginals")}
    scores, lengths = there["scores"], stored["lengths"]
    status = np.full(len(scores), FEASIBLE, dtype=np.int8)
    options = structure._options(scores)
    if operation == "best":
        answer = Found(stored["best"], None, status)
        shape = tuple(stored["best"].shape)
        return dispatch.best(family.device, scores, lengths, options, shape, lambda: answer)
    answer = Found(stored["product"].to(dtype), None, status)
    if operation == "product":
        asked = scores if family.product is None else there["marginals"]
        return dispatch.total(
            family.device, asked, lengths, options, HESSIAN_PRODUCT, lambda: answer, there["along"]
        )
    answer = Found(stored["marginals"].to(dtype), stored["log_partition"].to(dtype), status)
    return dispatch.total(family.device, scores, lengths, options, MARGINALS, lambda: answer)


def difference(own: Tensor, answer: Tensor) -> float:
    """Return the largest difference, as a share of the largest number."""
    own, answer = own.double().cpu(), answer.double().cpu()
    finite = answer.isfinite()
    if not torch.equal(own[~finite], answer[~finite]):
        return float("inf")
    largest = max(float(answer[finite].abs().max()), 1.0)
    return float((own[finite] - answer[finite]).abs().max()) / largest


def run(machine: Machine, record: Record) -> None:
    failures = 0
    for name, parts in load().items():
        structure = STRUCTURES[name]
        stored = {key: torch.from_numpy(v) for key, v in parts.items()}
        for dtype, tolerance in TOLERANCES.items():
            for operation in OPERATIONS:
                if operation == "log_partition":
                    # It is a result of the same kernel as the marginals.
                    continue
                kind = str(dtype).removeprefix("torch.")
                if machine.pretended:
                    record(structure=name, operation=operation, dtype=kind, apart=None)
                    continue
                # Without the patch, such small batches would be left to the CPU.
                with warnings.catch_warnings(), patch.object(dispatch, "LEAST_ITEMS", 1):
                    warnings.simplefilter("error", LatentWarning)
                    try:
                        found = launched(structure, stored, operation, dtype, machine.device)
                    except LatentWarning as warning:
                        record(structure=name, operation=operation, dtype=kind, failed=str(warning))
                        failures += 1
                        continue
                if found is None:
                    record(structure=name, operation=operation, dtype=kind, failed="not launched")
                    failures += 1
                    continue
                apart = difference(found.result, stored[operation])
                if operation == "marginals" and found.log_partition is not None:
                    sums = difference(found.log_partition, stored["log_partition"])
                    apart = max(apart, sums)
                record(structure=name, operation=operation, dtype=kind, apart=apart)
                failures += not apart <= tolerance
    if failures:
        raise SystemExit(f"{failures} kernels gave other answers, or none.")


def report(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        "The largest difference from the stored answer, as a share of its largest number.",
        "",
        "| structure | operation | float32 | float64 |",
        "|---|---|---:|---:|",
    ]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for line in records:
        apart = line.get("apart")
        said = "FAILED" if "failed" in line else "not run" if apart is None else f"{apart:.0e}"
        cells.setdefault((line["structure"], line["operation"]), {})[line["dtype"]] = said
    return lines + [
        f"| {name} | {operation} | {row.get('float32', '')} | {row.get('float64', '')} |"
        for (name, operation), row in cells.items()
    ]


def main() -> None:
    """Write the file of stored answers."""
    parts = {}
    for name, structure in STRUCTURES.items():
        scores, lengths, along = given(structure)
        parts[f"{name}/scores"] = scores.numpy()
        parts[f"{name}/lengths"] = lengths.numpy()
        parts[f"{name}/along"] = along.numpy()
        parts |= {f"{name}/{key}": value for key, value in answers_of(structure).items()}
    np.savez_compressed(ANSWERS, **parts)


if __name__ == "__main__":
    main()
