"""The table in docs/training.md of the device on which each operation on a structure runs.

It follows from the log of the simulated GPU. Scores that are transferred down are solved on the
CPU, unless the structure has kernels.

    python -m tests.device.places
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases import scores_for, structures
from spacy_latent.kernels.autograd.families import family_of
from spacy_latent.structures.base import Structure
from tests.device.pretended_gpu import CUDA, Log, pretended_gpu

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
BEGIN = "<!-- where operations run: python -m tests.device.places -->"
END = "<!-- end of the table -->"
# Operations that the kernels of a structure run on a GPU.
BY_KERNELS = {"the best", "sums"}
OPERATIONS = ("the best", "sums", "SparseMAP", "samples", "k best")
TITLES = {
    "the best": "the best one",
    "sums": "log-partition, marginals, gradient",
    "SparseMAP": "SparseMAP",
    "samples": "samples",
    "k best": "k best",
}


def run(structure: Structure, operation: str, scores: Tensor, lengths: Tensor) -> None:
    if operation == "the best":
        structure.map(scores, lengths)
    elif operation == "SparseMAP":
        structure.sparsemap(scores, lengths)
    elif operation == "samples":
        structure.sample(scores, lengths)
    elif operation == "k best":
        structure.top_k(scores, lengths, 2)
    else:
        structure.log_partition(scores, lengths)
        differentiable = scores.detach().requires_grad_()
        marginals = structure.marginals(differentiable, lengths)
        torch.autograd.grad(marginals, differentiable, torch.ones_like(marginals))


def place(structure: Structure, operation: str, log: Log) -> str:
    needed = {"sums": "marginals", "samples": "sample"}.get(operation)
    if needed is not None and needed not in structure.tractable:
        return "–"
    family = getattr(structure, "family", None)
    if operation in BY_KERNELS and family is not None and family_of(family).device is not None:
        return "GPU, by kernels"
    scores, lengths = scores_for(structure, 5, 2, str(CUDA))
    log.clear()
    run(structure, operation, scores, lengths)
    return "CPU" if log.size("down") >= scores.numel() * scores.element_size() else "GPU"


def table() -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    with pretended_gpu() as log:
        for structure in structures():
            cells = tuple(place(structure, operation, log) for operation in OPERATIONS)
            rows.setdefault(cells, []).append(f"`{structure.name}`")
    lines = [
        f"| structure | {' | '.join(TITLES[operation] for operation in OPERATIONS)} |",
        f"|---|{'---|' * len(OPERATIONS)}",
    ]
    order = sorted(rows, key=lambda cells: (-"".join(cells).count("GPU"), cells))
    lines += [f"| {', '.join(rows[cells])} | {' | '.join(cells)} |" for cells in order]
    return "\n".join(lines)


def with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf8")), encoding="utf8")


if __name__ == "__main__":
    main()
