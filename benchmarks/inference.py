"""Inference on structures beside the peers: medians of a batch of 32, both sides in turn.

    python -m benchmarks inference [--quick]

Scores are standard normal float32, the same for both sides, whose results are compared before
anything is timed. Then each side in turn runs for 20 ms and once more, which is timed: warm, and
without the other side's threads, which libgomp lets spin for some milliseconds. torch and our own
kernels may use both threads; peers that take one sentence after another use one. The table goes to
the terminal and to the section of RESULTS.md between this program's markers. A peer that is not
installed leaves its cells empty, and the header says so.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.sections import write_section
from spacy_latent.kernels.simplex import sparsemax
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

BATCH = 32
THREADS = 2
# Seconds, in which the other side's threads fall asleep.
WARM_UP = 0.02
SIZES = (10, 25, 50)
TAGS = 20
Run = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """work: what is timed. peer: its distribution. module: what to import of it. make: from n to
    both sides, the peer's from its module; their results are compared. target: ratio at the last of
    ``sizes``. rounds: how often each side runs there. value: what to compare of a result, not
    timed. tolerance: of the comparison; that of a peer that stops early."""

    work: str
    peer: str
    module: str
    make: Callable[[int, Any], tuple[Run, Run | None]]
    target: float
    rounds: int
    sizes: tuple[int, ...] = SIZES
    value: Callable[[Any], Tensor] = lambda result: result
    tolerance: float = 2e-3


def _scores(n: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(n)
    scores = torch.randn(BATCH, n + 1, n + 1)
    return scores, torch.full((BATCH,), n), torch.randn(BATCH, n + 1, n + 1)


def _packed(scores: Tensor) -> Tensor:
    """``(B, n, n)``, [head, modifier], with the root's arcs on the diagonal."""
    packed = scores[:, 1:, 1:].clone()
    packed.diagonal(dim1=1, dim2=2).copy_(scores[:, 0, 1:])
    return packed


@dataclass(frozen=True)
class Arcs:
    """Our results: with the root as node 0."""

    arcs: Tensor


def arcs_of(result: Any) -> Tensor:
    """As the peer has them."""
    return _packed(result.arcs) if isinstance(result, Arcs) else result


def marginals(structure: Structure, name: str) -> Callable[[int, Any], tuple[Run, Run | None]]:
    def make(n: int, peer: Any) -> tuple[Run, Run | None]:
        scores, lengths, upstream = _scores(n)
        packed, packed_upstream = _packed(scores), _packed(upstream)

        given = scores.clone().requires_grad_()
        their_given = packed.clone().requires_grad_()

        def own() -> Arcs:
            result = structure.marginals(given, lengths)
            torch.autograd.grad(result, given, upstream)
            return Arcs(result.detach())

        def theirs() -> Tensor:
            result = getattr(peer, name)(their_given, multiroot=True).marginals
            torch.autograd.grad(result, their_given, packed_upstream)
            return result.detach()

        return own, theirs if peer else None

    return make


def _chain(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, lengths, and the peer's potentials: [tag, previous tag] from the second position on,
    with the scores of the first tag added to those of the second."""
    torch.manual_seed(n)
    scores = torch.randn(BATCH, n, TAGS, TAGS)
    edges = scores[:, 1:].clone()
    edges[:, 0] += scores[:, 0, 0, :, None]
    return scores, torch.full((BATCH,), n), edges.transpose(2, 3).contiguous()


def chain_marginals(n: int, peer: Any) -> tuple[Run, Run | None]:
    scores, lengths, potentials = _chain(n)
    upstream = torch.randn_like(scores)
    upstream[:, 0] = 0.0
    of_edges = upstream[:, 1:].transpose(2, 3).contiguous()

    # Neither side copies or multiplies its 20 times larger scores: that would be half of the time.
    def own() -> Tensor:
        given = scores.detach().requires_grad_()
        result = LinearChain().marginals(given, lengths)
        result.backward(upstream)
        return result.detach()[:, 1:]

    def theirs() -> Tensor:
        given = potentials.detach().requires_grad_()
        result = peer.LinearChainCRF(given).marginals
        result.backward(of_edges)
        return result.detach().transpose(2, 3)

    return own, theirs if peer else None


def chain_map(n: int, peer: Any) -> tuple[Run, Run | None]:
    scores, lengths, potentials = _chain(n)

    def own() -> Tensor:
        return LinearChain().map(scores, lengths)[:, 1:]

    def theirs() -> Tensor:
        return peer.LinearChainCRF(potentials).argmax.transpose(2, 3)

    return own, theirs if peer else None


def constituency_marginals(n: int, peer: Any) -> tuple[Run, Run | None]:
    torch.manual_seed(n)
    scores, upstream = torch.randn(2, BATCH, n, n).triu()
    lengths = torch.full((BATCH,), n)
    given = scores.clone().requires_grad_()
    their_given = scores[..., None].clone().requires_grad_()

    def own() -> Tensor:
        result = ConstituencyTree().marginals(given, lengths)
        torch.autograd.grad(result, given, upstream)
        return result.detach()

    def theirs() -> Tensor:
        result = peer.TreeCRF(their_given, lengths).marginals
        torch.autograd.grad(result, their_given, upstream[..., None])
        return result.detach()[..., 0]

    return own, theirs if peer else None


def spanning_map(n: int, peer: Any) -> tuple[Run, Run | None]:
    scores, lengths, _ = _scores(n)
    items = [item.t().double().numpy().copy() for item in scores]

    def own() -> Tensor:
        return SpanningTree().map(scores, lengths)

    def theirs() -> list[Any]:
        return [peer.chu_liu_edmonds(item)[0] for item in items]

    return own, theirs if peer else None


def heads_of(result: Any) -> Tensor:
    """Of arcs, or of the peer's lists."""
    if isinstance(result, Tensor):
        return result[:, :, 1:].argmax(1)
    return torch.tensor([row[1:] for row in result])


def assignment_map(n: int, peer: Any) -> tuple[Run, Run | None]:
    torch.manual_seed(n)
    scores, lengths = torch.randn(BATCH, n, n), torch.full((BATCH, 2), n)
    items = list(scores.numpy())

    def own() -> Tensor:
        return OneToOneAlignment().map(scores, lengths)

    def theirs() -> list[Any]:
        return [peer.linear_sum_assignment(item, maximize=True)[1] for item in items]

    return own, theirs if peer else None


def columns_of(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result.argmax(2)
    return torch.tensor([row.tolist() for row in result])


def assignment_sparsemap(n: int, peer: Any) -> tuple[Run, Run | None]:
    """The peer has no factor for assignments: there each row and each column is an Xor."""
    torch.manual_seed(n)
    scores, lengths = torch.randn(BATCH, n, n), torch.full((BATCH, 2), n)
    upstream = torch.randn_like(scores)
    given = scores.clone().requires_grad_()

    def own() -> Tensor:
        mean = OneToOneAlignment().sparsemap(given, lengths).mean
        torch.autograd.grad(mean, given, upstream)
        return mean.detach()

    def theirs() -> Tensor:
        means = []
        for item in given:
            graph = peer.TorchFactorGraph()
            cells = graph.variable_from(item)
            for i in range(n):
                graph.add(peer.Xor(cells[i, :]))
                graph.add(peer.Xor(cells[:, i]))
            graph.solve()
            means.append(cells.value)
        mean = torch.stack(means)
        torch.autograd.grad(mean, given, upstream)
        return mean.detach()

    return own, theirs if peer else None


def sparsemax_rows(n: int, peer: Any) -> tuple[Run, Run | None]:
    torch.manual_seed(n)
    scores, upstream = torch.randn(2, BATCH * n, n)
    lengths = torch.full((BATCH * n,), n)
    given = scores.clone().requires_grad_()

    def own() -> Tensor:
        result = sparsemax(given, lengths, "sparsemax")
        torch.autograd.grad(result, given, upstream)
        return result.detach()

    def theirs() -> Tensor:
        result = peer.sparsemax(given, -1)
        torch.autograd.grad(result, given, upstream)
        return result.detach()

    return own, theirs if peer else None


def sparsemap(structure: Structure) -> Callable[[int, Any], tuple[Run, Run | None]]:
    def make(n: int, peer: Any) -> tuple[Run, Run | None]:
        scores, lengths, upstream = _scores(n)
        packed, packed_upstream = _packed(scores), _packed(upstream)
        projective = isinstance(structure, ProjectiveTree)
        given = scores.clone().requires_grad_()
        their_given = packed.transpose(1, 2).contiguous().requires_grad_()

        def own() -> Arcs:
            mean = structure.sparsemap(given, lengths).mean
            torch.autograd.grad(mean, given, upstream)
            return Arcs(mean.detach())

        def theirs() -> Tensor:
            means = []
            for item in their_given:
                graph = peer.TorchFactorGraph()
                arcs = graph.variable_from(item)
                graph.add(peer.DepTree(arcs, packed=True, projective=projective))
                graph.solve()
                means.append(arcs.value)
            mean = torch.stack(means).transpose(1, 2)
            torch.autograd.grad(mean, their_given, packed_upstream)
            return mean.detach()

        return own, theirs if peer else None

    return make


ROWS = (
    Row(
        "non-projective marginals, forward + backward",
        "torch-struct",
        "torch_struct",
        marginals(SpanningTree(), "NonProjectiveDependencyCRF"),
        2,
        15,
        value=arcs_of,
    ),
    Row(
        "projective marginals, forward + backward",
        "torch-struct",
        "torch_struct",
        marginals(ProjectiveTree(), "DependencyCRF"),
        40,
        7,
        value=arcs_of,
    ),
    Row(
        f"linear chain, {TAGS} tags, marginals, forward + backward",
        "torch-struct",
        "torch_struct",
        chain_marginals,
        80,
        5,
    ),
    Row(
        f"linear chain, {TAGS} tags, MAP",
        "torch-struct",
        "torch_struct",
        chain_map,
        100,
        15,
    ),
    Row(
        "binary constituency marginals, forward + backward",
        "torch-struct",
        "torch_struct",
        constituency_marginals,
        15,
        7,
    ),
    Row(
        "non-projective MAP",
        "ufal.chu_liu_edmonds",
        "ufal.chu_liu_edmonds",
        spanning_map,
        20,
        30,
        value=heads_of,
    ),
    Row(
        "SparseMAP, non-projective tree, forward + backward",
        "lp-sparsemap",
        "lpsmap",
        sparsemap(SpanningTree()),
        50,
        3,
        value=arcs_of,
    ),
    # Their projective tree has exactly one root.
    Row(
        "SparseMAP, projective tree, forward + backward",
        "lp-sparsemap",
        "lpsmap",
        sparsemap(ProjectiveTree(single_root=True)),
        25,
        3,
        value=arcs_of,
    ),
    # The peer takes tens of seconds with 50 words.
    Row(
        "SparseMAP, one-to-one alignment, forward + backward",
        "lp-sparsemap",
        "lpsmap",
        assignment_sparsemap,
        50,
        3,
        sizes=(10, 25),
        tolerance=5e-2,
    ),
    Row(
        "assignment MAP",
        "scipy",
        "scipy.optimize",
        assignment_map,
        1.5,
        30,
        value=columns_of,
    ),
    Row(
        f"sparsemax, {BATCH}·n rows of n, forward + backward",
        "entmax",
        "entmax",
        sparsemax_rows,
        2,
        15,
    ),
)


def measure(runs: list[Run], rounds: int) -> list[float]:
    """Milliseconds: the median of each over rounds in which they take turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, own in zip(runs, times):
            # torch's threads spin for some milliseconds after their last work, and until those of
            # the other side sleep they hold a core. In that time this side warms up.
            start = time.perf_counter()
            run()
            while time.perf_counter() - start < WARM_UP:
                run()
            start = time.perf_counter()
            run()
            own.append(1e3 * (time.perf_counter() - start))
    return [median(own) for own in times]


def measure_row(row: Row, n: int, quick: bool) -> str:
    peer = find(row)
    own, theirs = row.make(n, peer)
    first = row.value(own())
    runs = [own]
    if theirs is not None:
        torch.testing.assert_close(first, row.value(theirs()), atol=row.tolerance, rtol=1e-3)
        runs.append(theirs)
    times = measure(runs, 3 if quick else max(row.rounds, row.rounds * row.sizes[-1] // (2 * n)))
    cells = [f"{times[0]:.2f}"]
    cells += [f"{times[1]:.2f}", f"{times[1] / times[0]:.1f}"] if theirs else ["", ""]
    target = f"{row.target:g}" if n == row.sizes[-1] else ""
    return f"| {row.work} | {row.peer} | {n} | {' | '.join(cells)} | {target} |"


def find(row: Row) -> Any:
    """The peer's module, or None."""
    try:
        return import_module(row.module)
    except ImportError:
        return None


def versions() -> str:
    """Of this program's own libraries and of the peers."""
    names = {"torch": True, "numba": True}
    names |= {row.peer: find(row) is not None for row in ROWS}
    found = []
    for name, present in names.items():
        try:
            found.append(f"{name} {version(name)}" if present else f"{name} not installed")
        except PackageNotFoundError:
            # Built from source, without metadata.
            found.append(name)
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks inference")
    parser.add_argument("--quick", action="store_true", help="three rounds each")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    lines = [
        f"{date.today()}, {versions()}; {os.cpu_count()} cores, {THREADS} threads, load average "
        f"{os.getloadavg()[0]:.1f} before the first row. Milliseconds are medians.",
        "",
        "| work, batch of 32 | peer | n | ours, ms | peer, ms | peer / ours | target |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    for row in ROWS:
        for n in row.sizes:
            lines.append(measure_row(row, n, arguments.quick))
            print(lines[-1], flush=True)
    write_section("inference", "Inference beside the peers", lines)


if __name__ == "__main__":
    main()
