"""Kernels for a GPU against kernels for the CPU, with a check for missing barriers.

They run in Triton's interpreter, see tests.device.interpreted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.kernels.autograd.families import family_of
from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT, MARGINALS
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.structures import base
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.batches import STRUCTURES, batch, everything
from tests.device.interpreted import MODULES, Race, watched

ROOT = Path(__file__).parents[2]
KINDS = [ProjectiveTree(), SpanningTree(), ConstituencyTree(), LinearChain()]
LENGTHS = [5, 0, 1, 4, 2, 4]
# Scales of the items. float64 holds the sums of some items unscaled, and of others not.
SCALES = [1.0, 1.0, 1.0, 1000.0, 0.001, 30.0]
pytestmark = [
    pytest.mark.filterwarnings("error::spacy_latent.errors.LatentWarning"),
    # The interpreter warns if a kernel detects lost precision.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


class _Everything:
    """A set that contains everything."""

    def __contains__(self, _: object) -> bool:
        return True


def _in_tiles(module: ModuleType, size: int) -> Callable[..., Any]:
    """Return a plan of a module with tiles of this size.

    The spans of these texts need two tiles of size 4.
    """
    plan = module.plan

    def small(shape: Any, operation: int) -> Any:
        found = plan(shape, operation)
        if "SPANS" in found.constants:
            found = found._replace(constants={"WAYS": size, "SPANS": size})
        elif "WIDTH" in found.constants:
            # A tile has a whole row, and two tokens are eliminated together.
            found = found._replace(constants={"WAYS": size // 2, "WIDTH": 8, "TOGETHER": 2})
        return found

    return small


@pytest.fixture()
def tile() -> int:
    return 8


@pytest.fixture()
def kernels(tile: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run kernels on tensors of the CPU as if they were on a GPU, and leave no item to the CPU."""
    monkeypatch.setattr(dispatch, "on_device", lambda scores: True)
    # Scores on a GPU are not checked, so kernels get extreme ones.
    monkeypatch.setattr(base, "has_extreme_scores", lambda scores: False)
    monkeypatch.setattr(dispatch, "LEAST_ITEMS", 1)
    monkeypatch.setattr(dispatch, "_failed", set())
    monkeypatch.setattr(dispatch, "_confirmed", _Everything())
    # The workspace holds only some items, so a launch may begin in the middle of the batch.
    monkeypatch.setattr(dispatch, "LARGEST_WORKSPACE", 2 * 8 * 500)
    for module in MODULES.values():
        monkeypatch.setattr(module, "plan", _in_tiles(module, tile))
    empty = torch.empty

    def unwritten(*size: Any, **options: Any) -> Tensor:
        made = empty(*size, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", unwritten)
    with watched() as watch:
        yield
    assert watch.loads and watch.stores


@pytest.mark.parametrize(
    ("structure", "dtype", "tile"),
    [
        *((structure, torch.float64, 4) for structure in KINDS),
        *((structure, torch.float32, 8) for structure in STRUCTURES),
    ],
    ids=repr,
)
def test_everything_is_what_the_cpu_gives(
    structure: Any, dtype: torch.dtype, tile: int, request: pytest.FixtureRequest
) -> None:
    scores, lengths = batch(structure, dtype, LENGTHS, SCALES)
    expected = everything(structure, scores.double(), lengths)
    ties = batch(structure, dtype, LENGTHS)[0].round()
    best = structure.map(ties, lengths)
    request.getfixturevalue("kernels")
    assert torch.equal(structure.map(ties, lengths), best)
    found = everything(structure, scores, lengths)
    assert torch.equal(found[0].double(), expected[0])
    tolerance = 1e-11 if dtype == torch.float64 else 1e-6
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("single_root", [False, True])
def test_a_token_that_only_the_root_can_have(
    single_root: bool, request: pytest.FixtureRequest
) -> None:
    """The token is not the last one to be eliminated."""
    structure = SpanningTree(single_root=single_root)
    scores = torch.linspace(-1.0, 1.0, 25, dtype=torch.float64).reshape(1, 5, 5)
    scores[0, 1:, 3] = -torch.inf
    lengths = torch.tensor([4])
    expected = everything(structure, scores, lengths)
    request.getfixturevalue("kernels")
    for ours, theirs in zip(everything(structure, scores, lengths), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("structure", KINDS, ids=repr)
def test_large_scores_give_probabilities_or_an_error(structure: Any, kernels: None) -> None:
    scores, lengths = batch(structure, torch.float32, [5, 0, 3])
    used = structure.part_mask(scores, lengths).expand_as(scores)
    one = scores.clone()
    one[used & (scores > 1)] = 1e12
    refused = 0
    for given in (1e12 * scores, 1e12 * scores.round(), one):
        try:
            found = structure.marginals(given, lengths)
        except InvalidScores as error:
            assert "too large" in str(error) and "item(s) [" in str(error)
            refused += 1
            continue
        assert bool((found >= 0).all() and (found <= 1 + 1e-5).all()), found
    assert refused or isinstance(structure, SpanningTree)
    # A score far below the others only forbids its part.
    masked = used & (torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.1)
    masked &= structure.map(scores, lengths) == 0
    expected = structure.marginals(scores.masked_fill(masked, -torch.inf), lengths)
    found = structure.marginals(scores.masked_fill(masked, -1e30), lengths)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("structure", KINDS, ids=repr)
def test_bad_items_are_named(structure: Any, kernels: None) -> None:
    scores, lengths = batch(structure, torch.float32, [3, 0, 1, 2])
    operations = (structure.map, structure.log_partition, structure.marginals)
    scores[3] = -torch.inf
    for operation in operations:
        with pytest.raises(InfeasibleError, match=r"\b3\b"):
            operation(scores, lengths)
    for value in (torch.nan, torch.inf):
        scores[(0, 0, 1) if structure.parts == "arcs" else (0, 1, 2)] = value
        for operation in operations:
            with pytest.raises(InvalidScores, match=r"\[0\]"):
                operation(scores, lengths)


def test_a_graph_can_be_captured(kernels: None) -> None:
    """Nothing reads results of the GPU between the launches."""
    launched: list[int] = []
    structure = SpanningTree()
    scores, lengths = batch(structure, torch.float32, [3, 2])
    with dispatch.checks_postponed():
        for _ in range(2):
            launched.append(len(structure.marginals(scores, lengths)))
    assert launched == [2, 2]


def test_kernels_can_be_compiled() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.device.translated_kernels"],
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.count("\n") == 12


# ------------------------------------------------------------------------------------ barriers

BARRIER = "tl.debug_barrier()"


def _barriers() -> Iterator[tuple[str, int]]:
    for name, module in MODULES.items():
        count = Path(str(module.__file__)).read_text(encoding="utf8").count(BARRIER)
        yield from ((name, k) for k in range(count))


def _without(name: str, barrier: int, folder: Path) -> ModuleType:
    """Return a copy of the module without one of its barriers."""
    source = Path(str(MODULES[name].__file__)).read_text(encoding="utf8")
    place = [found.start() for found in re.finditer(re.escape(BARRIER), source)][barrier]
    path = folder / f"{name}_without_{barrier}.py"
    path.write_text(source[:place] + "_ = 0" + source[place + len(BARRIER) :], encoding="utf8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(module)
    return module


def _solve(module: ModuleType, structure: Any, scores: Tensor, operation: int) -> None:
    family = family_of(structure.family)
    shape = family.best_shape(scores.shape) if operation == BEST else scores.shape
    result = torch.zeros(shape, dtype=torch.int32 if operation == BEST else scores.dtype)
    lengths = torch.full((len(scores),), scores.shape[1] - int(structure.parts == "arcs"))
    options = tuple(structure._options(scores))
    status = torch.zeros(len(scores), dtype=torch.int8)
    sums = scores.new_zeros(len(scores))
    call = dispatch.Call(scores, lengths, scores, sums, result, status, options)
    plan = _in_tiles(module, 4)
    with pytest.MonkeyPatch.context() as patched, watched():
        patched.setattr(dispatch.GpuKernels, "plan", lambda _, *given: plan(*given))
        dispatch.launch(family.device, operation, call)


def _small_batches(name: str) -> Iterator[tuple[Any, Tensor, int]]:
    """Yield batches for every branch of a kernel."""
    generator = torch.Generator().manual_seed(0)
    if name == "linear_chain":
        scores = torch.rand(1, 3, 6, 6, generator=generator)
        yield from ((LinearChain(), scores, o) for o in (BEST, MARGINALS, HESSIAN_PRODUCT))
    elif name == "constituency_tree":
        scores = torch.randn(1, 6, 6, generator=generator)
        yield from ((ConstituencyTree(), scores, o) for o in (MARGINALS, BEST))
    elif name == "best_arborescence":
        for _ in range(3):
            scores = torch.randn(1, 7, 7, generator=generator)
            yield SpanningTree(single_root=True), scores, BEST
    else:
        scores = torch.randn(1, 7, 7, generator=generator)
        structure = ProjectiveTree() if name == "projective_tree" else SpanningTree()
        yield structure, scores, MARGINALS
        if name == "projective_tree":
            yield structure, scores, BEST
        else:
            scores[0, 1:, 5] = -torch.inf
            yield SpanningTree(single_root=True), scores, MARGINALS


@pytest.mark.parametrize(("name", "barrier"), _barriers())
def test_a_barrier_that_is_missing_is_found(name: str, barrier: int, tmp_path: Path) -> None:
    module = _without(name, barrier, tmp_path)
    # The interpreter wraps the error in another one.
    with pytest.raises(Exception, match=Race.__name__), np.errstate(all="ignore"):
        for given in _small_batches(name):
            _solve(module, *given)
