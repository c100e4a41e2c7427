"""One-to-one alignments: the best one beside scipy's, and SparseMAP beside lp-sparsemap's.

    python benchmarks/assignment_speed.py [--repeat 5] [--words 10 25 50]

Prints a Markdown table: medians in milliseconds of a batch of 32 square items with standard normal
scores in float32, both sides in turn in one process; SparseMAP forward and backward. lp-sparsemap
has no factor for assignments: a row or column there is an Xor, and its answer is that of ADMM at
its default tolerance. Its column is empty where it is not installed, and from 50 words on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment

try:
    from lpsmap import TorchFactorGraph, Xor
except ImportError:
    Xor = None

BATCH = 32
# The peer takes tens of seconds beyond.
PEER_WORDS = 25
STRUCTURE = OneToOneAlignment()


def peer_sparsemap(scores: Tensor) -> None:
    means = []
    for item in scores:
        graph = TorchFactorGraph()
        cells = graph.variable_from(item)
        for i in range(len(item)):
            graph.add(Xor(cells[i, :]))
            graph.add(Xor(cells[:, i]))
        graph.solve()
        means.append(cells.value)
    mean = torch.stack(means)
    (mean * mean.detach()).sum().backward()


def own_sparsemap(scores: Tensor, lengths: Tensor) -> None:
    mean = STRUCTURE.sparsemap(scores, lengths).mean
    (mean * mean.detach()).sum().backward()


def peer_best(scores: Tensor) -> None:
    for item in scores.numpy():
        linear_sum_assignment(item, maximize=True)


def measure(runs: list[Callable[[], object]], repeat: int) -> list[float]:
    """Milliseconds, medians of ``repeat`` rounds after one to warm up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeat + 1):
        for run, own in zip(runs, times):
            start = time.perf_counter()
            run()
            own.append(1e3 * (time.perf_counter() - start))
    return [median(own[1:]) for own in times]


def show(work: str, n: int, runs: list[Callable[[], object]], repeat: int) -> None:
    own, *peer = measure(runs, repeat)
    rest = f"{peer[0]:.2f} | {peer[0] / own:.1f}" if peer else " | "
    print(f"| {work} | {n} | {own:.2f} | {rest} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--words", type=int, nargs="+", default=[10, 25, 50])
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    print("| work | n | spacy-latent, ms | peer, ms | ratio |\n|---|---|---|---|---|")
    for n in arguments.words:
        scores, lengths = torch.randn(BATCH, n, n), torch.full((BATCH, 2), n)
        leaf = scores.clone().requires_grad_()
        best: list[Callable[[], object]] = [
            lambda s=scores, m=lengths: STRUCTURE.map(s, m),
            lambda s=scores: peer_best(s),
        ]
        # Single calls take a millisecond or less.
        show("best, scipy", n, best, 10 * arguments.repeat)
        mean: list[Callable[[], object]] = [lambda s=leaf, m=lengths: own_sparsemap(s, m)]
        if Xor is not None and n <= PEER_WORDS:
            mean.append(lambda s=leaf: peer_sparsemap(s))
        show("SparseMAP, lp-sparsemap", n, mean, arguments.repeat)


if __name__ == "__main__":
    main()
