"""Speed of inference on structures, compared with other libraries: medians, both sides in turn.

    python -m benchmarks inference [--quick] [--rows WORDS ...] [--scales 1 5 20]

Each row runs at normal scores of scale 1, 5 and 20, where trained scorers are, in batches of 32
items of 10, 25 and 50 words and of 5 to 60 words, and in batches of 1 and of 256. Scores are
float32, the same for both sides, whose results are compared before anything is timed; at scale 1
they must agree, and at the larger scales, where the peers' float32 may be at its end, the table
says by how much they differ. Then each side in turn runs for 20 ms and once more, which is timed:
warm, and without the other side's threads, which libgomp lets spin for some milliseconds. torch and
our own kernels may use both threads; peers that take one sentence after another use one.

The table goes to the terminal and, of all rows at all scales and not --quick, to the section of
results/inference.md between this program's markers. A peer that is not installed leaves its cells
empty, and the header says so.

lp-sparsemap has no wheel for newer Pythons, its archive on PyPI lacks the Cython files, and its
source needs a setuptools and a Cython of its time, and <tuple> where it uses std::tie. From
https://github.com/deep-spin/lp-sparsemap, with the headers of Eigen 3 in EIGEN, in an environment
of the same Python with "setuptools<60", wheel and "Cython<3":

    EIGEN_DIR=EIGEN python setup.py build_clib
    EIGEN_DIR=EIGEN CFLAGS="-include tuple" python setup.py bdist_wheel

Then pip install dist/lp_sparsemap-*.whl into the environment of the other libraries. (Python 3.11,
gcc, setuptools 59.8, Cython 0.29.37.)
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
# Words of a ragged batch, each number as often.
SHORTEST, LONGEST = 5, 60
THREADS = 2
# Seconds, in which the other side's threads fall asleep.
WARM_UP = 0.02
SIZES = (10, 25, 50)
TAGS = 20
# Required ratio at other scales, as a share of the target at scale 1.
KEPT = 2 / 3
Run = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """Setting of the scores: items of n words, or of SHORTEST to n words."""

    n: int
    scale: float = 1.0
    batch: int = BATCH
    ragged: bool = False

    def draw(self, *shape: int) -> Tensor:
        """Scores: the first numbers after the seed."""
        torch.manual_seed(self.n)
        return torch.randn(*shape) * self.scale

    def lengths(self, items: int | None = None) -> Tensor:
        lengths = torch.full((items or self.batch,), self.n)
        if self.ragged:
            generator = torch.Generator().manual_seed(self.n)
            drawn = torch.randint(SHORTEST, self.n + 1, lengths.shape, generator=generator)
            # The first is the longest.
            lengths[1:] = drawn[1:]
        return lengths


@dataclass(frozen=True)
class Row:
    """work: what is timed. peer: its distribution. module: what to import of it. make: from the
    setting to both sides, the peer's from its module; their results are compared. target: ratio at
    the last of ``sizes`` and scale 1; elsewhere: at other scales, else two thirds of it. rounds:
    how often each side runs there. longest: of ragged batches. many: words in batches of other
    sizes. value: what to compare of a result, not timed. tolerance: of the comparison; larger for a
    peer that stops early.
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
    """To n rows and columns."""
    return torch.nn.functional.pad(item, (0, n - item.shape[1], 0, n - item.shape[0]))


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
    """Return arcs in the layout of the peer."""
    return _packed(result.arcs) if isinstance(result, Arcs) else result


def marginals(structure: Structure, name: str) -> Callable[[Setting, Any], tuple[Run, Run | None]]:
    def make(setting: Setting, peer: Any) -> tuple[Run, Run | None]:
        scores, lengths, upstream = _scores(setting)
        packed, packed_upstream = _packed(scores), _packed(upstream)
        # Without lengths it has nothing to mask.
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
    """Return scores, lengths, and the peer's potentials. These are [tag, previous tag] from the
    second position on, with the scores of the first tag added to the scores of the second.
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

    # Neither side copies or multiplies its 20 times larger scores: that would be half of the time.
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
    """Return the heads of arcs, or of the peer's lists; 0 in padding."""
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
    """The peer has no factor for assignments: there each row and each column is an Xor."""
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
    # Their projective tree has exactly one root.
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
    """Milliseconds: the median of each over rounds in which they take turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, own in zip(runs, times):
            # torch's threads spin for some milliseconds after their last work, and the other side's
            # threads hold a core until they sleep. In that time this side warms up.
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
        # A best structure is another one where it differs at all.
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
    """The peer's module, or None."""
    try:
        return import_module(row.module)
    except ImportError:
        return None


def versions() -> str:
    """Return the versions of this program's own libraries and of the peers."""
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
