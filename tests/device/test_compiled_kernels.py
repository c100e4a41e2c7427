"""Kernels that come compiled with the package: made from these sources, given their arguments as
they take them, without races, and equal to those for the CPU. Their PTX runs on the CPU, launched
by the package through a CuPy that is not there.

SPACY_LATENT_ALL_KERNELS=1 python -m pytest tests/device/test_compiled_kernels.py

also runs those for float64, and all at more sizes.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentWarning
from spacy_latent.kernels import ahead_of_time, blocks, just_in_time, launch
from spacy_latent.structures import base
from spacy_latent.structures.base import Structure
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.compile_gpu_kernels import DTYPES, PROCESSORS, kernels, sources
from tests.device.emulated_gpu import COMPILER, Emulator, emulated_cupy
from tests.kernels import test_blocks
from tests.kernels.test_blocks import STRUCTURES, batch, everything

ALL = bool(os.environ.get("SPACY_LATENT_ALL_KERNELS"))
NAMES = [kernel.name(dtype) for kernel in kernels() for dtype in DTYPES]
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
# More of them are fewer blocks at once.
MOST_REGISTERS = 168
COMPILE = "a kernel has changed: make its code anew by 'python -m tests.compile_gpu_kernels'"


# ------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name(DTYPES[0])[:-4])
def test_they_are_made_from_these_sources(kernel: Any) -> None:
    for dtype in DTYPES:
        known = ahead_of_time.manifest()[kernel.name(dtype)]
        assert known["sources"] == sources(kernel), COMPILE
        assert known["arguments"] == kernel.signature(dtype), COMPILE
        assert known["maker"] == ahead_of_time.place_of(kernel.maker), COMPILE


def test_a_change_of_a_body_shows_in_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a helper, of a constant, and not of what runs on the CPU alone."""
    from spacy_latent.kernels import inside_outside_blocks

    (kernel,) = (k for k in kernels() if k.maker.__name__ == "make_best_projective_tree")
    before = sources(kernel)
    monkeypatch.setattr(blocks, "TOLERANCE", 1.0)
    assert sources(kernel) == before
    monkeypatch.setattr(inside_outside_blocks, "CHARTS", 8)
    changed = sources(kernel)
    monkeypatch.undo()
    monkeypatch.setattr(inside_outside_blocks, "make_largest_sum", _another_largest_sum)
    assert len({before, changed, sources(kernel)}) == 3


def _another_largest_sum(jit: Callable[..., Any]) -> Callable[..., Any]:
    @jit
    def largest_sum(*_: Any) -> tuple[float, int]:
        return 0.0, 0

    return largest_sum


def test_the_files_are_those_of_the_manifest() -> None:
    files = {path.stem: path for path in ahead_of_time.FOLDER.glob("*.ptx")}
    assert sorted(files) == sorted(ahead_of_time.manifest()) == sorted(NAMES)
    for name, path in files.items():
        # With the same ends of lines everywhere.
        made = hashlib.sha256(path.read_text(encoding="utf8").encode()).hexdigest()
        assert made == ahead_of_time.manifest()[name]["code"], COMPILE


@pytest.mark.parametrize("name", NAMES)
def test_what_a_kernel_takes_of_a_gpu(name: str) -> None:
    """Nothing that waits for memory that it need not have, no more registers than now, and no more
    than a block of the largest size has: else no launch would work."""
    for processor in PROCESSORS:
        used = dict(ahead_of_time.manifest()[name][processor])
        registers = used.pop("registers")
        assert 0 < registers <= MOST_REGISTERS and registers * blocks.LARGEST_BLOCK <= 2**16
        assert used == {"stack": 0, "spilled": 0, "shared": 0}
    text = (ahead_of_time.FOLDER / f"{name}.ptx").read_text(encoding="utf8")
    assert set(re.findall(r"bar\S*\s+\S+;", text)) == {"bar.sync \t0;"}
    assert not re.search(r"\.(shared|local|const)\b|\bcall\b", text)
    # Of CUDA 12.0, and Turing: what newer drivers and processors read as well.
    assert text.startswith(".version 8.0\n.target sm_75\n")


# ------------------------------------------------------------------------------------ results


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


class _Everything:
    """A set that has everything."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.fixture()
def emulated(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Tensors on the CPU are taken for such on a GPU, where neither numba-cuda nor its compiler
    is."""
    emulator.launches.clear()
    emulator.waits = emulator.without = 0
    monkeypatch.setitem(sys.modules, "cupy", emulated_cupy(emulator))
    for name in ("best_kernel", "total_kernel", "view", "stream_of"):
        monkeypatch.delattr(just_in_time, name)
    monkeypatch.setattr(blocks, "on_device", lambda scores: True)
    # A GPU is not asked, and kernels get such scores.
    monkeypatch.setattr(base, "looks_far", lambda scores: False)
    monkeypatch.setattr(blocks, "LEAST_ITEMS", 1)
    monkeypatch.setattr(blocks, "_failed", set())
    # Else kernels for the CPU would be compiled for float32.
    monkeypatch.setattr(blocks, "_confirmed", _Everything())
    # Some items at once, so that others begin in the middle of the batch.
    monkeypatch.setattr(launch, "LARGEST_ROOM", 2 * 8 * 200)
    ahead_of_time._function.cache_clear()
    yield emulator
    ahead_of_time._function.cache_clear()


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("lengths", [test_blocks.LENGTHS, *([[70, 1, 64, 33]] if ALL else [])])
@pytest.mark.parametrize("dtype", DTYPES if ALL else DTYPES[:1])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_everything_is_what_the_cpu_gives(
    structure: Structure,
    dtype: torch.dtype,
    lengths: list[int],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_blocks, "LENGTHS", lengths)
    if lengths[0] > 32:
        # Less than there are spans of one length.
        monkeypatch.setattr(blocks.Blocks, "block", lambda *_: 32)
    scores, sizes = batch(structure, dtype)
    expected = everything(structure, scores.double(), sizes)
    emulated = request.getfixturevalue("emulated")
    found = everything(structure, scores, sizes)
    assert emulated.waits and {part.name[-3:] for part in emulated.launches} == {
        "f32" if dtype == torch.float32 else "f64"
    }
    assert any(int(part.arguments[0]) > 0 for part in emulated.launches)
    assert torch.equal(found[0], expected[0])
    tolerance = 1e-11 if dtype == torch.float64 else 1e-5
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_scores_far_apart_and_equal_ones(
    structure: Structure, request: pytest.FixtureRequest
) -> None:
    """Of which no float64 holds the exponentials; and where several structures are the best."""
    far, lengths = batch(structure, torch.float32, 1000.0)
    expected = everything(structure, far.double(), lengths)
    equal = batch(structure, torch.float32)[0].round()
    best = structure.map(equal, lengths)
    request.getfixturevalue("emulated")
    for ours, theirs in zip(everything(structure, far, lengths), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    assert torch.equal(structure.map(equal, lengths), best)


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("structure", STRUCTURES[:6], ids=repr)
def test_large_scores_give_probabilities_or_an_error(
    structure: Structure, emulated: Emulator
) -> None:
    scores, lengths = batch(structure, torch.float32)
    used = structure.part_mask(scores, lengths).expand_as(scores)
    refused = 0
    for size in (1e6, 1e12, 1e16, 1e30):
        one = scores.clone()
        one[used & (scores > 1)] = size
        for given in (size * scores, size * scores.round(), one):
            try:
                found = structure.marginals(given, lengths)
            except InvalidScores as error:
                assert size > 1e6 and "too large" in str(error) and "item(s) [" in str(error)
                refused += 1
                continue
            assert bool((found >= 0).all() and (found <= 1 + 1e-5).all()), (size, found)
    assert refused
    # Far below the others, a score only forbids.
    masked = used & (torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.1)
    masked &= structure.map(scores, lengths) == 0
    expected = structure.marginals(scores.masked_fill(masked, -torch.inf), lengths)
    found = structure.marginals(scores.masked_fill(masked, -1e30), lengths)
    torch.testing.assert_close(found, expected)


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("single_root", [False, True])
def test_a_token_that_only_the_root_can_have(
    single_root: bool, request: pytest.FixtureRequest
) -> None:
    """Which is not the one that is eliminated last."""
    structure = SpanningTree(single_root=single_root)
    scores = torch.linspace(-1.0, 1.0, 25).reshape(1, 5, 5)
    scores[0, 1:, 3] = -torch.inf
    lengths = torch.tensor([4])
    expected = everything(structure, scores.double(), lengths)
    request.getfixturevalue("emulated")
    for ours, theirs in zip(everything(structure, scores, lengths), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_bad_items_are_named(structure: Structure, emulated: Emulator) -> None:
    dtype = torch.float32
    scores, lengths = batch(structure, dtype)
    scores[3] = -torch.inf
    with pytest.raises(InfeasibleError, match=r"item\(s\) 3 of"):
        structure.map(scores, lengths)
    scores[(0, 0, 1) if structure.parts == "arcs" else (0, 1, 2)] = torch.nan
    with pytest.raises(InvalidScores, match=r"\[0\]"):
        structure.map(scores, lengths)


@needs_compiler
def test_the_probe_gives_what_it_should(emulated: Emulator) -> None:
    """Which tells whether kernels can be launched at all."""
    best, status = torch.zeros((2, 32), dtype=torch.int32), torch.zeros(2, dtype=torch.int8)
    given = (torch.zeros(2, 32), torch.tensor([4, 5]), (7,), best, status)
    launch.launch(launch.best_kernel(launch.make_probe), 32, 32, given)
    assert best.tolist() == [[12] * 32, [13] * 32] and status.tolist() == [0, 0]


# ------------------------------------------------------------------------------------ barriers


def _small_batches(
    structure: Structure, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of every way through a kernel: with structures, with a token that only the root can have,
    without structures, with scores that are too large, and with such as are not finite."""
    monkeypatch.setattr(test_blocks, "LENGTHS", [5, 0, 1, 4, 2])
    scores, lengths = batch(structure, DTYPES[0])
    yield scores, lengths
    yield 1e12 * scores, lengths
    if structure.parts == "arcs":
        orphaned = torch.linspace(-1.0, 1.0, 25).reshape(1, 5, 5)
        orphaned[0, 1:, 3] = -torch.inf
        yield orphaned, torch.tensor([4])
    yield torch.full_like(scores, -torch.inf), lengths
    for value in (torch.nan, torch.inf):
        yield torch.full_like(scores, value), lengths


def _run_all(structures: list[Structure], monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises LatentWarning for the first fault."""
    for structure in structures:
        for scores, lengths in _small_batches(structure, monkeypatch):
            for operation in (everything, lambda s, *given: s.log_partition(*given)):
                with suppress(InfeasibleError, InvalidScores):
                    operation(structure, scores, lengths)


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("threads", [3, 32])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_nothing_is_at_fault(
    structure: Structure, threads: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer threads than spans, and with more."""
    monkeypatch.setattr(blocks.Blocks, "block", lambda *_: threads)
    _run_all([structure], monkeypatch)
    assert emulated.waits


def _barriers() -> Iterator[tuple[str, int]]:
    for kernel in kernels()[1:]:
        name = kernel.name(DTYPES[0])
        text = (ahead_of_time.FOLDER / f"{name}.ptx").read_text(encoding="utf8")
        yield from ((name, k + 1) for k in range(text.count("bar.sync")))


@needs_compiler
@pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize(("name", "barrier"), _barriers())
def test_a_barrier_that_is_missing_is_found(
    name: str, barrier: int, emulated: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated.only, emulated.without = name, barrier
    with pytest.raises(LatentWarning, match=f"Fault.*{name}"):
        _run_all(STRUCTURES, monkeypatch)


# ------------------------------------------------------------------------------------ launching


def _probe_arguments() -> tuple[Any, ...]:
    best, status = torch.zeros((2, 32), dtype=torch.int32), torch.zeros(2, dtype=torch.int8)
    return torch.zeros(2, 32), torch.tensor([4, 5]), (7,), best, status


@needs_compiler
def test_a_kernel_is_launched_on_the_stream_it_is_given(emulated: Emulator) -> None:
    kernel = launch.best_kernel(launch.make_probe)
    room = torch.empty((2, 32), dtype=torch.float64)
    kernel[2, 32, 77](0, room, *_probe_arguments())
    (launched,) = emulated.launches
    assert launched.stream == 77 and launched.device is None
    assert launched.grid == (2,) and launched.block == (32,)


class _Elsewhere(Tensor):
    """On the CPU, but says that it is on the second GPU."""

    is_cuda = True
    device = torch.device("cuda", 1)


@needs_compiler
def test_torchs_stream_and_device_are_those_of_the_launch(
    emulated: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, entered = torch.empty, []

    @contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(torch, "empty", lambda *shape, device, **of: empty(*shape, **of))
    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    scores, *others = _probe_arguments()
    given = (scores.as_subclass(_Elsewhere), *others)
    launch.launch(launch.best_kernel(launch.make_probe), 32, 32, given)
    (launched,) = emulated.launches
    assert launched.stream == 77 and launched.device == 1
    assert entered == [torch.device("cuda", 1)]
    assert others[2].tolist() == [[12] * 32, [13] * 32]


@needs_compiler
def test_arguments_that_a_kernel_was_not_compiled_for_are_refused(emulated: Emulator) -> None:
    kernel = launch.best_kernel(launch.make_probe)
    scores, lengths, options, best, status = _probe_arguments()
    for given in (
        (scores, lengths, (7, 8), best, status),
        (scores, lengths.int(), options, best, status),
        (scores[0], lengths, options, best, status),
        (scores, lengths, options, best),
    ):
        with pytest.raises(TypeError, match=r"probe_f32 was compiled for int64, float64\[2\]"):
            launch.launch(kernel, 32, 32, given)
    with pytest.raises(ValueError, match="not contiguous"):
        launch.launch(kernel, 32, 32, (torch.zeros(32, 2).T, *_probe_arguments()[1:]))
    assert not emulated.launches


def test_arrays_arrive_as_numba_takes_them() -> None:
    scores = torch.zeros((2, 3), dtype=torch.float32)
    packed = ahead_of_time.pack((5, scores, (7, -1)))
    place = scores.data_ptr()
    assert [int(value) for value in packed] == [5, 0, 0, 6, 4, place, 2, 3, 12, 4, 7, -1]
    assert {value.nbytes for value in packed} == {8}
    assert packed[5].dtype == "uint64"


def test_what_did_not_come_compiled_numba_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of somebody else's, also under the name of ours; and all of them without CuPy."""

    def make_probe(jit: Any, sync: Any) -> Any:
        return jit(launch.make_probe(jit, sync))

    monkeypatch.setitem(sys.modules, "cupy", emulated_cupy(Emulator(ahead_of_time.FOLDER)))
    assert ahead_of_time.find(launch.make_probe) is not None
    assert ahead_of_time.find(make_probe) is None
    assert ahead_of_time.find(test_arrays_arrive_as_numba_takes_them) is None
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert ahead_of_time.find(launch.make_probe) is None
    assert launch.best_kernel(launch.make_probe) is just_in_time.best_kernel(launch.make_probe)
    monkeypatch.setattr(ahead_of_time, "MANIFEST", ahead_of_time.FOLDER / "none.json")
    ahead_of_time.manifest.cache_clear()
    assert ahead_of_time.find(launch.make_probe) is None
    ahead_of_time.manifest.cache_clear()
