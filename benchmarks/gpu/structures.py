"""Compare every structure on the GPU with the CPU, and measure its time.

The operations are MAP, log-partition, marginals and SparseMAP, with their gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import scores_for, structures
from benchmarks.gpu.machine import Machine, Record, fill
from spacy_latent.structures.base import Structure

WORDS, BATCH, ROUNDS = 25, 32, 15
OPERATIONS = ("map", "log_partition", "marginals", "sparsemap")


def results(structure: Structure, operation: str, scores: Tensor, lengths: Tensor) -> list[Tensor]:
    """Return the result of an operation, and the gradient of the scores except for MAP."""
    if operation == "map":
        return [structure.map(scores, lengths)]
    given = scores.detach().requires_grad_()
    result = getattr(structure, operation)(given, lengths)
    result = result.mean if operation == "sparsemap" else result
    upstream = torch.ones_like(result) if result.dim() == 1 else scores
    return [result.detach(), *torch.autograd.grad(result, given, upstream)]


def measure(machine: Machine, structure: Structure, operation: str) -> float:
    """Compare the results with the CPU's results, and return the milliseconds of the operation."""
    words, batch = (4, 2) if machine.pretended else (WORDS, BATCH)
    scores, lengths = scores_for(structure, words, batch, machine.device)
    found = results(structure, operation, scores, lengths)
    expected = results(structure, operation, scores.cpu(), lengths.cpu())
    for own, reference in zip(found, expected):
        assert own.device == scores.device and own.dtype == scores.dtype
        torch.testing.assert_close(own.cpu(), reference, rtol=1e-4, atol=1e-4)
    return machine.milliseconds(lambda: results(structure, operation, scores, lengths), ROUNDS)


def run(machine: Machine, record: Record) -> None:
    failures = 0
    for structure in structures():
        found: dict[str, Any] = {}
        for operation in OPERATIONS:
            if {operation} - structure.tractable - {"map", "sparsemap"}:
                continue
            try:
                found[operation] = measure(machine, structure, operation)
            except Exception as error:
                print(f"{structure.name}.{operation}: {error!r}")
                found[operation] = "FAILED"
                failures += 1
        record(structure=structure.name, **found)
    if failures:
        raise SystemExit(f"{failures} operations failed.")


def report(records: list[dict[str, Any]]) -> list[str]:
    return [
        f"Milliseconds, with gradients; {BATCH} items of {WORDS} words.",
        "",
        f"| structure | {' | '.join(OPERATIONS)} |",
        f"|---|{'---:|' * len(OPERATIONS)}",
        *(
            fill("{:.2f}", [line["structure"], *(line.get(name) for name in OPERATIONS)])
            for line in records
        ),
    ]
