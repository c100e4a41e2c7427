"""Sentences computed side by side in the lanes of vectors, against each sentence alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor, library

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.kernels.autograd import batches, operators
from spacy_latent.kernels.core import pool
from spacy_latent.kernels.simd.lanes import (
    LONGEST,
    aligned,
    group_size,
    interleave_row,
    separate_row,
)
from spacy_latent.kernels.simd.vector import LANES
from spacy_latent.kernels.spans import constituency, inside_outside
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.projective_tree import ProjectiveTree

STRUCTURES: list[Structure] = [
    ProjectiveTree(),
    ProjectiveTree(single_root=True),
    ProjectiveTree(direction="later", max_arc_length=4),
    ConstituencyTree(),
]
FAMILIES = [inside_outside, constituency]


def _batch(structure: Structure, lengths: Tensor, scale: float) -> Tensor:
    """Return normal scores with NaN as padding. Some are −inf, but leave a tree."""
    nodes = int(isinstance(structure, ProjectiveTree))
    size = int(lengths.max()) + nodes
    generator = torch.Generator().manual_seed(7)
    scores = scale * torch.randn(len(lengths), size, size, generator=generator, dtype=torch.float64)
    for b, length in enumerate((lengths + nodes).tolist()):
        if b % 3 == 1:
            forbidden = torch.rand(size, size, generator=generator) < 0.3
            forbidden[0] = False
            scores[b][forbidden.fill_diagonal_(False)] = -torch.inf
        scores[b, length:] = torch.nan
        scores[b, :, length:] = torch.nan
    return scores


def _all(structure: Structure, scores: Tensor, lengths: Tensor) -> list[Tensor]:
    """Return log Z, marginals, and the product of their Jacobian with the same numbers for each
    item.
    """
    scores = scores.clone().requires_grad_()
    size = scores.shape[1]
    upstream = torch.arange(size * size, dtype=scores.dtype).sin().reshape(size, size)
    log_partition = structure.log_partition(scores, lengths)
    marginals = structure.marginals(scores, lengths)
    (product,) = torch.autograd.grad(marginals, scores, upstream.expand_as(scores))
    return [log_partition.detach(), marginals.detach(), product]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_a_batch_gives_what_each_item_gives(structure: Structure, scale: float) -> None:
    lengths = torch.tensor([9, 12, 0, 1, 13, 2, 12, 11, 30, 28, 29, 13, 3, 40, 12, 10, 12, 14, 5])
    scores = _batch(structure, lengths, scale)
    if scale > 100.0:
        # The first kernel leaves lanes with large scores to the next, and keeps the lanes beside
        # them.
        scores[::2] /= scale
    found = _all(structure, scores, lengths)
    for b, length in enumerate(lengths):
        expected = _all(structure, scores[b : b + 1], length[None])
        for ours, theirs in zip(found, expected):
            torch.testing.assert_close(ours[b], theirs[0], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("low", [-650.0, -720.0, -745.0, -2000.0])
@pytest.mark.parametrize("single_root", [True, False])
def test_arcs_of_the_root_may_be_far_below_others(low: float, single_root: bool) -> None:
    """Lower scores of the root arcs change only log Z, if every tree with weight has one such arc.

    This holds even if the weights of root arcs underflow relative to the best tree.
    """
    lengths = torch.tensor([20] * 8)
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(8, 21, 21, generator=generator, dtype=torch.float64)
    structure = ProjectiveTree(single_root=single_root)
    if not single_root:
        # Without this, trees with several root arcs have weight before these arcs are lowered.
        scores[:, 0] -= 40.0
    lower = scores.clone()
    lower[:, 0] += low
    expected, found = _all(structure, scores, lengths), _all(structure, lower, lengths)
    torch.testing.assert_close(found[0] - low, expected[0], rtol=1e-12, atol=1e-10)
    for ours, theirs in zip(found[1:], expected[1:]):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_threads_change_nothing(
    structure: Structure, monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[int], None]
) -> None:
    lengths = torch.tensor([9, 12, 1, 13, 2, 12, 11, 30, 28, 29, 13, 3, 12, 10, 12, 14, 5] * 2)
    scores = _batch(structure, lengths, 10.0)
    monkeypatch.setattr(pool, "SERIAL_NANOSECONDS", 0)
    results = []
    for count in (1, 2, 3):
        set_threads(count)
        results.append(_all(structure, scores, lengths))
    for other in results[1:]:
        for ours, theirs in zip(results[0], other):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_float32_scores(structure: Structure) -> None:
    lengths = torch.tensor([9, 7, 8, 9, 9, 6])
    scores = _batch(structure, lengths, 1.0).float()
    expected = _all(structure, scores.double(), lengths)
    for ours, theirs in zip(_all(structure, scores, lengths), expected):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_bad_items_are_named_beside_others(structure: Structure) -> None:
    lengths = torch.tensor([9, 7, 8, 9, 9, 6])
    scores = _batch(structure, lengths, 1.0)
    scores[2, :, 5] = -torch.inf
    with pytest.raises(InfeasibleError, match=r"\b2\b"):
        structure.marginals(scores, lengths)
    scores[4, 0, 2] = torch.nan
    with pytest.raises(InvalidScores, match=r"\b4\b"):
        structure.log_partition(scores, lengths)


def _refuse(*_: Any) -> None:
    raise AssertionError


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("scale", [5.0, 20.0, 50.0])
def test_a_common_batch_needs_one_kernel(
    structure: Structure, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other kernels then need no compilation.

    They would take many times as long for the scores of a trained scorer.
    """
    module = inside_outside if isinstance(structure, ProjectiveTree) else constituency
    family = replace(module.FAMILY, total=_refuse, fallback=_refuse)
    for caller in (operators, batches):
        monkeypatch.setattr(caller, "family_of", lambda place: family)
    lengths = torch.tensor([50, 48, 0, 50, 47, 50, 1, 50])
    generator = torch.Generator().manual_seed(3)
    scores = scale * torch.randn(8, 51, 51, generator=generator, dtype=torch.float64)
    _all(structure, scores, lengths)


@pytest.mark.parametrize("module", FAMILIES)
@pytest.mark.parametrize("scale", [1.0, 20.0, 50.0])
def test_what_one_kernel_leaves_goes_to_the_next(
    module: Any, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last kernel keeps an exponent beside each number, and finds the same results at any
    scale.
    """
    called = []

    def leave(*_: Any) -> None:
        called.append(True)

    structure = ProjectiveTree() if module is inside_outside else ConstituencyTree()
    lengths = torch.tensor([36, 35, 34])
    generator = torch.Generator().manual_seed(4)
    scores = scale * torch.randn(3, 37, 37, generator=generator, dtype=torch.float64)
    expected = _all(structure, scores, lengths)
    family = replace(module.FAMILY, lanes=leave, total=leave)
    for caller in (operators, batches):
        monkeypatch.setattr(caller, "family_of", lambda place: family)
    for ours, theirs in zip(_all(structure, scores, lengths), expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    assert called


def test_groups_hold_items_of_like_length() -> None:
    sizes = np.array([3, 9, 1, 9, 2, 7, 7, 8, 9, 1, 5])
    groups = batches._groups(sizes, 8)
    assert groups.shape == (2, 8)
    assert sorted(groups[groups >= 0].tolist()) == list(range(11))
    assert sizes[groups[0]].tolist() == [9, 9, 9, 8, 7, 7, 5, 3]
    assert groups[1, 3:].tolist() == [-1] * 5


def test_few_or_long_items_are_done_alone() -> None:
    assert group_size(torch.Size([1, 50, 50])) == 1
    assert group_size(torch.Size([32, LONGEST + 1, LONGEST + 1])) == 1
    assert group_size(torch.Size([32, 50, 50])) == LANES


def test_the_operators_know_what_groups_keep() -> None:
    scores = torch.randn(3, 5, 5, dtype=torch.float64, requires_grad=True)
    arguments = (scores, torch.tensor([4, 3, 4]), ProjectiveTree.family, [0, -1, 0])
    # The saved arrays have entries that nothing writes, so they are not compared.
    library.opcheck(operators._marginals.overload, (*arguments, True), test_utils="test_faketensor")


@njit(fastmath=False)
def _first_place(size: int, start: int) -> tuple[int, int]:
    room = np.empty(size)[start:]
    place = aligned(room)
    return place, room[place:].ctypes.data


def test_charts_start_at_cache_lines() -> None:
    for start in range(9):
        place, address = _first_place(1000, start)
        assert 0 <= place < 8
        assert address % 64 == 0


@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
def test_rows_of_sentences_go_side_by_side(size: int) -> None:
    source = np.random.default_rng(1).normal(size=LANES * (size + 3))
    starts = np.arange(LANES) * (size + 3)
    limits = np.array([size, 0, 1, size // 2, size, size - 1, 0, size])
    for start, limit in zip(starts, limits):
        source[start + limit : start + size + 3] = np.nan
    row = np.full((size + 2, LANES), 7.0)
    interleave_row(source, starts, limits, size, row)
    for lane in range(LANES):
        own = source[starts[lane] : starts[lane] + size].copy()
        own[limits[lane] :] = -np.inf
        np.testing.assert_array_equal(row[:size, lane], own)
    assert (row[size:] == 7.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("begin", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
def test_rows_side_by_side_go_back_to_their_sentences(size: int, begin: int, dtype: type) -> None:
    row = np.random.default_rng(2).normal(size=(size, LANES))
    result = np.full((LANES, size + 3), 7.0, dtype=dtype)
    starts = np.arange(LANES) * (size + 3)
    starts[2] = starts[5] = -1
    separate_row(row, begin, size, result.reshape(-1), starts)
    for lane in range(LANES):
        expected = np.full(size + 3, 7.0, dtype=dtype)
        if starts[lane] >= 0:
            expected[begin:size] = row[begin:size, lane]
        np.testing.assert_array_equal(result[lane], expected)
