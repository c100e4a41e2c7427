"""Speed of inference on structures, compared with other libraries (peers).

    python -m benchmarks inference [--quick] [--rows WORDS ...] [--scales 1 5 20]

Each row is measured on normal scores of scale 1, 5 and 20, which is the range of trained scorers.
There are batches of 32 items of 10, 25 and 50 words and of 5 to 60 words, and batches of 1 and of
256 items. Both sides get the same float32 scores, and their results are compared before they are
timed. At scale 1 they must agree. At larger scales, float32 may be too imprecise for a peer, so the
table has the difference.

The two sides take turns, and times are medians. In its turn, a side runs for 20 ms, and then once
more, which is timed. By then it is warm, and the other side's threads no longer spin, as libgomp
lets them do for some milliseconds. torch and our kernels may use both threads. Peers that process
one sentence after another use one.

The table goes to the terminal. If it has all rows at all scales, without --quick, it also replaces
its section of results/inference.md. The cells of a peer that is not installed are empty, and the
header names such peers.

lp-sparsemap has no wheel for newer versions of Python, and its archive on PyPI lacks the Cython
files. Its source needs old versions of setuptools and Cython, and the header <tuple> for std::tie.
Take it from https://github.com/deep-spin/lp-sparsemap, with the headers of Eigen 3 in EIGEN, in an
environment of the same Python with "setuptools<60", wheel and "Cython<3":

    EIGEN_DIR=EIGEN python setup.py build_clib
    EIGEN_DIR=EIGEN CFLAGS="-include tuple" python setup.py bdist_wheel

Then pip install dist/lp_sparsemap-*.whl into the environment of the other libraries. This was tried
with Python 3.11, gcc, setuptools 59.8 and Cython 0.29.37.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.sections import write_section
from spacy_latent.kernels.choices.simplex import sparsemax
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

BATCH = 32
BATCHES = (1, 256)
SCALES = (1.0, 5.0, 20.0)
# Range of the number of words in a ragged batch, which is uniformly distributed.
SHORTEST, LONGEST = 5, 60
THREADS = 2
# Seconds after which the other side's threads have stopped to spin.
WARM_UP = 0.02
SIZES = (10, 25, 50)
TAGS = 20
# Required ratio at other scales, as a share of the target at scale 1.
KEPT = 2 / 3
Run = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """The scale and shape of scores: items of n words, or of SHORTEST to n words if ragged."""

    n: int
    scale: float = 1.0
    batch: int = BATCH
    ragged: bool = False

    def draw(self, *shape: int) -> Tensor:
        """Seed torch's generator by n, and draw scores as its first numbers."""
        torch.manual_seed(self.n)
        return torch.randn(*shape) * self.scale

    def lengths(self, items: int | None = None) -> Tensor:
        lengths = torch.full((items or self.batch,), self.n)
        if self.ragged:
            generator = torch.Generator().manual_seed(self.n)
            drawn = torch.randint(SHORTEST, self.n + 1, lengths.shape, generator=generator)
            # The first item has n words, so that the batch has no needless padding.
            lengths[1:] = drawn[1:]
        return lengths


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        work: the operation that is timed.
        peer: name of the peer's distribution.
        module: name of the peer's module.
        make: function from a setting and the peer's module to the runs of both sides. The second
            run is None without the peer.
        target: required ratio of times at the last of ``sizes`` and scale 1.
        rounds: number of timed runs of each side there.
        sizes: numbers of words in batches of 32 items.
        longest: greatest number of words in ragged batches.
        many: number of words in batches of 1 and 256 items.
        value: function from a result to the tensor that is compared. It is not timed.
        tolerance: absolute tolerance of the comparison, larger for a peer that stops early.
        elsewhere: required ratio at other scales. None stands for two thirds of ``target``.
    """

    work: str
    peer: str
    module: str
    make: Callable[[Setting, Any], tuple[Run, Run | None]]
    target: float
    rounds: int
    sizes: tuple[int, ...] = SIZES
    longest: int = LONGEST
    many: int = 25
    value: Callable[[Any], Tensor] = lambda result: result
    tolerance: float = 2e-3
    elsewhere: float | None = None

    def settings(self, scales: Sequence[float] = SCALES) -> Iterator[Setting]:
        for scale in scales:
            for n in self.sizes:
                yield Setting(n, scale)
            yield Setting(self.longest, scale, ragged=True)
            for batch in BATCHES:
                yield Setting(self.many, scale, batch)

    def target_at(self, setting: Setting) -> float | None:
        if setting.n != self.sizes[-1] or setting.batch != BATCH or setting.ragged:
            return None
        if setting.scale == 1.0:
            return self.target
        return KEPT * self.target if self.elsewhere is None else self.elsewhere


def _scores(setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    shape = (setting.batch, setting.n + 1, setting.n + 1)
    return setting.draw(*shape), setting.lengths(), torch.randn(shape)


def _padded(item: Tensor, n: int) -> Tensor:
    """Pad a matrix with zeros to n rows and columns."""
    return torch.nn.functional.pad(item, (0, n - item.shape[1], 0, n - item.shape[0]))


def _packed(scores: Tensor) -> Tensor:
    """Move the arcs of the root to the diagonal: ``(B, n, n)``, [head, modifier]."""
    packed = scores[:, 1:, 1:].clone()
    packed.diagonal(dim1=1, dim2=2).copy_(scores[:, 0, 1:])
    return packed


@dataclass(frozen=True)
class Arcs:
    """Arcs in our layout, in which the root is node 0."""

    arcs: Tensor


def arcs_of(result: Any) -> Tensor:
    """Return arcs in the peer's layout."""
    return _packed(result.arcs) if isinstance(result, Arcs) else result


def marginals(structure: Structure, name: str) -> Callable[[Setting, Any], tuple[Run, Run | None]]:
    def make(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
        scores, lengths, upstream = _scores(setting)
        packed, packed_upstream = _packed(scores), _packed(upstream)
        # A peer that gets no lengths need not mask anything.
        their_lengths = lengths if setting.ragged else None

        given = scores.clone().requires_grad_()
        their_given = packed.clone().requires_grad_()

        def own() -> Arcs:
            result = structure.marginals(given, lengths)
            torch.autograd.grad(result, given, upstream)
            return Arcs(result.detach())

        def theirs() -> Tensor:
            chosen = getattr(peer, name)(their_given, their_lengths, multiroot=True)
            result = chosen.marginals
            torch.autograd.grad(result, their_given, packed_upstream)
            return result.detach()

        return own, theirs if peer else None

    return make


def _chain(setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, lengths, and the peer's potentials.

    The potentials are [tag, previous tag] and begin at the second position. The scores of the first
    tag are added to them there.
    """
    scores = setting.draw(setting.batch, setting.n, TAGS, TAGS)
    edges = scores[:, 1:].clone()
    edges[:, 0] += scores[:, 0, 0, :, None]
    return scores, setting.lengths(), edges.transpose(2, 3).contiguous()


def chain_marginals(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    scores, lengths, potentials = _chain(setting)
    upstream = torch.randn_like(scores)
    upstream[:, 0] = 0.0
    of_edges = upstream[:, 1:].transpose(2, 3).contiguous()
    their_lengths = lengths if setting.ragged else None

    # With 20 × 20 scores for each word, a copy or a product of the scores would take half of the
    # time, so that neither side has one.
    def own() -> Tensor:
        given = scores.detach().requires_grad_()
        result = LinearChain().marginals(given, lengths)
        result.backward(upstream)
        return result.detach()[:, 1:]

    def theirs() -> Tensor:
        given = potentials.detach().requires_grad_()
        result = peer.LinearChainCRF(given, their_lengths).marginals
        result.backward(of_edges)
        return result.detach().transpose(2, 3)

    return own, theirs if peer else None


def chain_map(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    scores, lengths, potentials = _chain(setting)
    their_lengths = lengths if setting.ragged else None

    def own() -> Tensor:
        return LinearChain().map(scores, lengths)[:, 1:]

    def theirs() -> Tensor:
        return peer.LinearChainCRF(potentials, their_lengths).argmax.transpose(2, 3)

    return own, theirs if peer else None


def constituency_marginals(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    scores = setting.draw(setting.batch, setting.n, setting.n).triu()
    upstream, lengths = torch.randn_like(scores).triu(), setting.lengths()
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


def spanning_map(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    scores, lengths, _ = _scores(setting)
    items = [item[: n + 1, : n + 1].t().double().numpy().copy() for item, n in zip(scores, lengths)]

    def own() -> Tensor:
        return SpanningTree().map(scores, lengths)

    def theirs() -> list[Any]:
        return [peer.chu_liu_edmonds(item)[0] for item in items]

    return own, theirs if peer else None


def heads_of(result: Any) -> Tensor:
    """Return heads from arcs or from the peer's lists. They are 0 in padding."""
    if isinstance(result, Tensor):
        return result[:, :, 1:].argmax(1)
    return pad_sequence([torch.tensor(row[1:]) for row in result], batch_first=True)


def assignment_map(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    n = setting.n
    scores, lengths = setting.draw(setting.batch, n, n), setting.lengths()[:, None].repeat(1, 2)
    items = [item[:size, :size].numpy() for item, size in zip(scores, lengths[:, 0])]

    def own() -> Tensor:
        return OneToOneAlignment().map(scores, lengths)

    def theirs() -> list[Any]:
        return [peer.linear_sum_assignment(item, maximize=True)[1] for item in items]

    return own, theirs if peer else None


def columns_of(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result.argmax(2)
    return pad_sequence([torch.from_numpy(row) for row in result], batch_first=True)


def assignment_sparsemap(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    """Return both runs. The peer has no factor for assignments, but an Xor for a row or column."""
    n = setting.n
    scores, lengths = setting.draw(setting.batch, n, n), setting.lengths()[:, None].repeat(1, 2)
    upstream = torch.randn_like(scores)
    given = scores.clone().requires_grad_()

    def own() -> Tensor:
        mean = OneToOneAlignment().sparsemap(given, lengths).mean
        torch.autograd.grad(mean, given, upstream)
        return mean.detach()

    def theirs() -> Tensor:
        means = []
        for item, size in zip(given, lengths[:, 0].tolist()):
            graph = peer.TorchFactorGraph()
            cells = graph.variable_from(item[:size, :size].contiguous())
            for i in range(size):
                graph.add(peer.Xor(cells[i, :]))
                graph.add(peer.Xor(cells[:, i]))
            graph.solve()
            means.append(_padded(cells.value, n))
        mean = torch.stack(means)
        torch.autograd.grad(mean, given, upstream)
        return mean.detach()

    return own, theirs if peer else None


def sparsemax_rows(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
    n, rows = setting.n, setting.batch * setting.n
    scores, lengths = setting.draw(rows, n), setting.lengths(rows)
    upstream = torch.randn_like(scores)
    given = scores.clone().requires_grad_()
    masked = scores.masked_fill(torch.arange(n) >= lengths[:, None], -torch.inf)
    their_given = masked.requires_grad_()

    def own() -> Tensor:
        result = sparsemax(given, lengths, "sparsemax")
        torch.autograd.grad(result, given, upstream)
        return result.detach()

    def theirs() -> Tensor:
        result = peer.sparsemax(their_given, -1)
        torch.autograd.grad(result, their_given, upstream)
        return result.detach()

    return own, theirs if peer else None


def sparsemap(structure: Structure) -> Callable[[Setting, Any], tuple[Run, Run | None]]:
    def make(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
        scores, lengths, upstream = _scores(setting)
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
            for item, n in zip(their_given, lengths.tolist()):
                graph = peer.TorchFactorGraph()
                arcs = graph.variable_from(item[:n, :n].contiguous())
                graph.add(peer.DepTree(arcs, packed=True, projective=projective))
                graph.solve()
                means.append(_padded(arcs.value, setting.n))
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
        elsewhere=2,
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
        many=10,
        value=arcs_of,
    ),
    # The peer's projective tree has exactly one root.
    Row(
        "SparseMAP, projective tree, forward + backward",
        "lp-sparsemap",
        "lpsmap",
        sparsemap(ProjectiveTree(single_root=True)),
        25,
        3,
        many=10,
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
        longest=25,
        many=10,
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
        "sparsemax, n rows of n for each item, forward + backward",
        "entmax",
        "entmax",
        sparsemax_rows,
        2,
        15,
    ),
)


def measure(runs: list[Run], rounds: int) -> list[float]:
    """Return the median milliseconds of each run, over rounds in which the runs take turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, own in zip(runs, times):
            # torch's threads spin for some milliseconds after their last work, in which they occupy
            # a core. This side warms up until they have stopped.
            start = time.perf_counter()
            run()
            while time.perf_counter() - start < WARM_UP:
                run()
            start = time.perf_counter()
            run()
            own.append(1e3 * (time.perf_counter() - start))
    return [median(own) for own in times]


def measure_row(row: Row, setting: Setting, quick: bool = False) -> str:
    peer = find(row)
    own, theirs = row.make(setting, peer)
    first, difference = row.value(own()), ""
    runs = [own]
    if theirs is not None:
        other = row.value(theirs())
        if setting.scale == 1.0:
            torch.testing.assert_close(first, other, atol=row.tolerance, rtol=1e-3)
        # Best structures are 0/1, so that any difference between them is 1.
        difference = f"{(first - other).abs().max().item():.0e}"
        runs.append(theirs)
    longer = max(1, row.sizes[-1] // (2 * setting.n))
    rounds = max(3, row.rounds * longer * BATCH // max(BATCH, setting.batch))
    times = measure(runs, 3 if quick else rounds)
    cells = [f"{times[0]:.2f}"]
    cells += [f"{times[1]:.2f}", f"{times[1] / times[0]:.1f}"] if theirs else ["", ""]
    target = row.target_at(setting)
    words = f"{SHORTEST}–{setting.n}" if setting.ragged else str(setting.n)
    cells += [difference, "" if target is None else f"{target:.3g}"]
    place = f"{setting.batch} | {words} | {setting.scale:g}"
    return f"| {row.work} | {row.peer} | {place} | {' | '.join(cells)} |"


def find(row: Row) -> Any:
    """Return the peer's module, or None if it is not installed."""
    try:
        return import_module(row.module)
    except ImportError:
        return None


def versions() -> str:
    """Format the versions of torch, numba and the peers."""
    names = {"torch": True, "numba": True}
    names |= {row.peer: find(row) is not None for row in ROWS}
    found = []
    for name, present in names.items():
        try:
            found.append(f"{name} {version(name)}" if present else f"{name} not installed")
        except PackageNotFoundError:
            # A package that was built from source may have no metadata.
            found.append(name)
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks inference")
    parser.add_argument("--quick", action="store_true", help="three rounds each")
    parser.add_argument(
        "--rows",
        nargs="+",
        default=[""],
        help="only rows whose work or peer has one of these words",
    )
    parser.add_argument("--scales", nargs="+", type=float, default=list(SCALES))
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = [row for row in ROWS if any(word in f"{row.work} {row.peer}" for word in arguments.rows)]
    lines = [
        f"{date.today()}, {versions()}; {os.cpu_count()} cores, {THREADS} threads, load average "
        f"{os.getloadavg()[0]:.1f} before the first row. Milliseconds are medians; in the last "
        "column but one is the largest difference of the two results.",
        "",
        "| work | peer | batch | n | scale | ours, ms | peer, ms | peer / ours | difference "
        "| target |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    for row in rows:
        for setting in row.settings(arguments.scales):
            lines.append(measure_row(row, setting, arguments.quick))
            print(lines[-1], flush=True)
    if len(rows) == len(ROWS) and arguments.scales == list(SCALES) and not arguments.quick:
        write_section("inference", "Inference beside the peers", lines)
    else:
        print("The page of results is as it was: it takes all rows at all scales, without --quick.")


if __name__ == "__main__":
    main()
