"""Kernels for a GPU give what those for the CPU give: with one thread, compiled for the CPU; in a
process of its own, with several under the simulator of numba.cuda; and on a GPU, where there is
one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numba import config
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentWarning
from spacy_latent.kernels import blocks, just_in_time, launch
from spacy_latent.kernels.status import TOO_LARGE
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.emulated_gpu import COMPILER

SIMULATED = bool(config.ENABLE_CUDASIM)
STRUCTURES: list[Structure] = [
    LinearChain(),
    ProjectiveTree(),
    ProjectiveTree(single_root=True),
    ConstituencyTree(),
    SpanningTree(),
    SpanningTree(single_root=True),
]
if not SIMULATED:
    # No step of several threads depends on these.
    STRUCTURES += [
        ProjectiveTree(direction="later", max_arc_length=2),
        ProjectiveTree(direction="earlier", single_root=True),
        SpanningTree(direction="later", max_arc_length=2),
    ]
# Their very code runs in tests/device, with several threads, where there is a C compiler. Then one
# of them is enough here: compiling bodies for one thread takes longer than all else.
IN_FULL = COMPILER is None or bool(os.environ.get("SPACY_LATENT_ALL_KERNELS"))
HERE = STRUCTURES if IN_FULL else STRUCTURES[:1]
# The simulator takes a millisecond for each step.
LENGTHS = [4, 0, 1, 5, 2] if SIMULATED else [12, 0, 1, 31, 2, 12, 7, 3]
# Each takes seconds to compile, but for the simulator.
DTYPES = [torch.float64, torch.float32] if SIMULATED else [torch.float64]
TAGS = 3


class _OneThread:
    """A kernel that does one block after the other on the CPU."""

    def __init__(self, maker: blocks.Maker) -> None:
        self.body = blocks.alone(maker)

    def __getitem__(self, configuration: tuple[int, int, int]) -> Callable[..., None]:
        def run(start: int, room: np.ndarray, *arguments: Any) -> None:
            for block in range(configuration[0]):
                self.body(start + block, 0, 1, room[block], *arguments)

        return run


class _EmptyRoom:
    """A kernel whose room holds nothing that it may read before it is written."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, configuration: tuple[int, int, int]) -> Callable[..., None]:
        def run(start: int, room: np.ndarray, *arguments: Any) -> None:
            room[:] = np.nan
            self.kernel[configuration](start, room, *arguments)

        return run


@pytest.fixture()
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Tensors on the CPU are taken for such on a GPU. The threads of each launch."""
    counts: list[int] = []
    launch_kernel, interval = launch.launch, sys.getswitchinterval()

    def count(kernel: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
        launch_kernel(kernel, threads, room, arguments)
        counts.append(threads)

    sync = just_in_time.sync

    def dawdle() -> None:
        """So that none relies on the others' keeping step between two calls."""
        sync()
        time.sleep(0.001 * random.random())

    for name in ("best_kernel", "total_kernel"):
        compiled = getattr(just_in_time, name) if SIMULATED else _OneThread
        monkeypatch.setattr(launch, name, lambda maker, of=compiled: _EmptyRoom(of(maker)))
    if SIMULATED:
        sys.setswitchinterval(1e-5)
        monkeypatch.setattr(just_in_time, "sync", dawdle)
        monkeypatch.setattr(blocks.Blocks, "block", lambda *_: 3)
    # Two items at once.
    monkeypatch.setattr(launch, "LARGEST_ROOM", 2 * 8 * 200)
    monkeypatch.setattr(launch, "launch", count)
    monkeypatch.setattr(blocks, "on_device", lambda scores: True)
    monkeypatch.setattr(blocks, "LEAST_ITEMS", 1)
    # Else a wrong result would be replaced by the CPU's.
    monkeypatch.setattr(blocks, "_failed", set())
    monkeypatch.setattr(blocks.Found, "agrees", lambda *_: True)
    yield counts
    sys.setswitchinterval(interval)


def batch(structure: Structure, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Normal scores, some of which are −inf but leave a structure; NaN in the padding."""
    lengths = torch.tensor(LENGTHS)
    chain, nodes = isinstance(structure, LinearChain), int(structure.parts == "arcs")
    size = max(LENGTHS) + 1 + nodes
    shape = (len(LENGTHS), size, *((TAGS, TAGS) if chain else (size,)))
    generator = torch.Generator().manual_seed(7)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    forbidden = torch.rand(shape, generator=generator) < 0.2
    forbidden[:, 0] = False
    for b, length in enumerate(LENGTHS):
        last = length + nodes
        if not chain:
            # One that branches to the right, and a path through the tokens.
            forbidden[b, :, last - 1] = False
            forbidden[b].diagonal().fill_(False)
            forbidden[b].diagonal(1).fill_(False)
            scores[b, :, last:] = torch.nan
        scores[b, last:] = torch.nan
    scores[forbidden] = -torch.inf
    return scores.to(dtype), lengths


def everything(structure: Structure, scores: Tensor, lengths: Tensor) -> list[Tensor]:
    """The best, log Z, marginals, and the product of their Jacobian with a vector."""
    scores = scores.clone().requires_grad_()
    upstream = torch.arange(scores.numel(), dtype=torch.float64).sin().to(scores)
    best = structure.map(scores.detach(), lengths)
    if "marginals" not in structure.tractable:
        return [best]
    log_partition = structure.log_partition(scores, lengths)
    marginals = structure.marginals(scores, lengths)
    (product,) = torch.autograd.grad(marginals, scores, upstream.reshape(scores.shape))
    return [best, log_partition.detach(), marginals.detach(), product]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", HERE, ids=repr)
def test_everything_is_what_the_cpu_gives(
    structure: Structure, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    scores, lengths = batch(structure, dtype)
    expected = everything(structure, scores, lengths)
    launched = request.getfixturevalue("launched")
    found = everything(structure, scores, lengths)
    assert len(launched) == len(expected)
    assert torch.equal(found[0], expected[0])
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for ours, theirs in zip(found[1:], expected[1:]):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("structure", HERE, ids=repr)
def test_scores_far_apart(structure: Structure, request: pytest.FixtureRequest) -> None:
    """Of which no float64 holds the exponentials."""
    scores, lengths = batch(structure, torch.float64, 1000.0)
    expected = everything(structure, scores, lengths)
    request.getfixturevalue("launched")
    for ours, theirs in zip(everything(structure, scores, lengths), expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("structure", HERE, ids=repr)
def test_equal_scores_give_the_same_best(
    structure: Structure, request: pytest.FixtureRequest
) -> None:
    scores, lengths = batch(structure, torch.float64)
    scores = scores.round()
    expected = structure.map(scores, lengths)
    request.getfixturevalue("launched")
    assert torch.equal(structure.map(scores, lengths), expected)


@pytest.mark.skipif(not IN_FULL, reason="its code runs in tests/device")
@pytest.mark.parametrize("single_root", [False, True])
def test_a_token_that_only_the_root_can_have(
    single_root: bool, request: pytest.FixtureRequest
) -> None:
    """Which is not the one that is eliminated last."""
    structure = SpanningTree(single_root=single_root)
    scores = torch.linspace(-1.0, 1.0, 25, dtype=torch.float64).reshape(1, 5, 5)
    scores[0, 1:, 3] = -torch.inf
    lengths = torch.tensor([4])
    expected = everything(structure, scores, lengths)
    request.getfixturevalue("launched")
    for ours, theirs in zip(everything(structure, scores, lengths), expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("structure", HERE, ids=repr)
def test_bad_items_are_named(structure: Structure, launched: list[int]) -> None:
    scores, lengths = batch(structure, torch.float64)
    bad = scores.clone()
    bad[3] = -torch.inf
    operations = [structure.map]
    if "marginals" in structure.tractable:
        operations += [structure.log_partition, structure.marginals]
    for operation in operations:
        with pytest.raises(InfeasibleError, match=r"item\(s\) 3 of"):
            operation(bad, lengths)
    for value in (torch.nan, torch.inf):
        bad[(0, 0, 1) if structure.parts == "arcs" else (0, 1, 2)] = value
        for operation in operations:
            with pytest.raises(InvalidScores, match=r"\[0\]"):
                operation(bad, lengths)
    assert launched


def test_what_a_kernel_cannot_do_the_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler")

    structure = LinearChain()
    scores, lengths = batch(structure, torch.float64)
    expected = everything(structure, scores, lengths)
    monkeypatch.setattr(blocks, "_failed", set())
    monkeypatch.setattr(blocks, "on_device", lambda scores: True)
    monkeypatch.setattr(blocks, "LEAST_ITEMS", 1)
    monkeypatch.setattr(launch, "launch", refuse)
    with pytest.warns(LatentWarning, match="no compiler") as warned:
        found = everything(structure, scores, lengths)
    assert len(warned) == 1
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours, theirs)


def test_a_kernel_that_is_wrong_is_found_out(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The first result of each is compared with the CPU's."""
    structure = LinearChain()
    scores, lengths = batch(structure, torch.float64)
    expected = everything(structure, scores, lengths)
    agrees = blocks.Found.agrees
    request.getfixturevalue("launched")
    monkeypatch.setattr(blocks.Found, "agrees", agrees)
    right = launch.launch

    def wrong(kernel: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
        right(kernel, threads, room, arguments)
        arguments[-2].flatten()[0] += 1

    monkeypatch.setattr(blocks, "_failed", set())
    monkeypatch.setattr(blocks, "_confirmed", set())
    monkeypatch.setattr(launch, "launch", wrong)
    with pytest.warns(LatentWarning, match="first result is not the CPU's"):
        found = everything(structure, scores, lengths)
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours, theirs)


def test_what_is_in_the_way_of_kernels_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str | None:
        return blocks.why_unusable.__wrapped__()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launch._config, "DISABLE_CUDA", 1)
    assert "NUMBA_DISABLE_CUDA" in str(said())
    monkeypatch.setattr(launch._config, "DISABLE_CUDA", 0)
    monkeypatch.setattr(torch, "zeros", fail)
    assert "no driver" in str(said())


def test_zeros_and_nan_confirm_nothing() -> None:
    def found(*values: float, status: int = 0) -> blocks.Found:
        return blocks.Found(torch.tensor([values]), None, np.full(1, status, dtype=np.int8))

    def agree(own: blocks.Found, other: blocks.Found, score: float = 1.0) -> bool | None:
        return own.agrees(other, torch.tensor([[[-torch.inf, 0.0], [torch.nan, score]]]))

    assert agree(found(5e-6, -3e-6), found(5e-6, -3e-6)) is True
    assert agree(found(5e-6, 0.0), found(-5e-6, 0.0)) is False
    assert agree(found(1.0), found(torch.nan)) is None
    assert agree(found(torch.nan, 1.0), found(2.0, 1.0)) is False
    assert agree(found(0.0), found(0.0)) is None
    assert agree(found(1.0, status=1), found(1.0)) is False
    assert agree(found(1.0, status=1), found(2.0, status=1)) is None
    # That scores are too large is believed only where they are large.
    assert agree(found(1.0, status=TOO_LARGE), found(2.0), 1e10) is None
    assert agree(found(1.0, status=TOO_LARGE), found(2.0), 1e3) is False


@pytest.mark.skipif(SIMULATED, reason="there the simulator is")
def test_without_a_gpu_nothing_is_launched() -> None:
    if not torch.cuda.is_available():
        assert not blocks.usable()
        assert blocks.why_unusable.__wrapped__() == "torch finds no GPU"
    assert not blocks.on_device(torch.zeros(1))


@pytest.mark.skipif(SIMULATED, reason="is what runs this")
def test_several_threads_under_the_simulator() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
