"""SparseMAP of dependency trees, forward and backward, beside lp-sparsemap's.

    python benchmarks/sparsemap_speed.py [--repeat 5] [--tokens 10 25 50]

Prints a Markdown table: medians in milliseconds of a batch of 32 with standard normal scores in
float32, both sides in turn in one process. lp-sparsemap's column is empty where it is not
installed. Its projective tree has one root, so ours has one there, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from spacy_latent.structures.base import Structure
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

try:
    from lpsmap import DepTree, TorchFactorGraph
except ImportError:
    DepTree = None

BATCH = 32


def run_own(structure: Structure, n: int) -> Callable[[], None]:
    scores = torch.randn(BATCH, n + 1, n + 1, requires_grad=True)
    lengths = torch.full((BATCH,), n)

    def run() -> None:
        mean = structure.sparsemap(scores, lengths).mean
        (mean * mean.detach()).sum().backward()

    return run


def run_peer(projective: bool, n: int) -> Callable[[], None]:
    # [modifier, head] with the root on the diagonal.
    scores = torch.randn(BATCH, n, n, requires_grad=True)

    def run() -> None:
        means = []
        for item in scores:
            graph = TorchFactorGraph()
            arcs = graph.variable_from(item)
            graph.add(DepTree(arcs, packed=True, projective=projective))
            graph.solve()
            means.append(arcs.value)
        mean = torch.stack(means)
        (mean * mean.detach()).sum().backward()

    return run


def measure(runs: list[Callable[[], None]], repeat: int) -> list[float]:
    """Milliseconds, medians of ``repeat`` rounds after one to warm up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeat + 1):
        for run, own in zip(runs, times):
            start = time.perf_counter()
            run()
            own.append(1e3 * (time.perf_counter() - start))
    return [median(own[1:]) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[10, 25, 50])
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    print("| SparseMAP | n | spacy-latent, ms | lp-sparsemap, ms | ratio |\n|---|---|---|---|---|")
    for structure in (SpanningTree(), ProjectiveTree(single_root=True)):
        for n in arguments.tokens:
            runs = [run_own(structure, n)]
            if DepTree is not None:
                runs.append(run_peer(isinstance(structure, ProjectiveTree), n))
            own, *peer = measure(runs, arguments.repeat)
            rest = f"{peer[0]:.1f} | {peer[0] / own:.1f}" if peer else " | "
            print(f"| {structure.name} | {n} | {own:.2f} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
