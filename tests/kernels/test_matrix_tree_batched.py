"""Sums over spanning trees by torch's decompositions give what the kernels give, for the items that
they answer for, and answer for no item that is hard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentWarning
from spacy_latent.kernels import blocks, launch, matrix_tree_batched
from spacy_latent.kernels.matrix_tree_batched import TOLERANCES, sum_over_trees_of_a_batch
from spacy_latent.kernels.matrix_tree_blocks import BLOCKS
from spacy_latent.kernels.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.transfers import fetch, send
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.answering_kernels import answering_kernels
from tests.device.pretended_gpu import CUDA, pretended_gpu
from tests.device.test_transfers import moved

STRUCTURES = [
    SpanningTree(),
    SpanningTree(single_root=True),
    SpanningTree(direction="later", max_arc_length=2),
    SpanningTree(direction="earlier", single_root=True),
]
LENGTHS = torch.tensor([9, 0, 1, 2, 5, 12])


def batch(scale: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Scores and numbers to take products with: some scores −inf, and NaN in the padding."""
    generator = torch.Generator().manual_seed(5)
    shape = (len(LENGTHS), 14, 14)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    along = torch.randn(shape, generator=generator, dtype=torch.float64)
    forbidden = torch.rand(shape, generator=generator) < 0.2
    # The root's arcs stay, and a path through the words.
    forbidden[:, 0] = False
    forbidden.diagonal(1, dim1=1, dim2=2).fill_(False)
    scores[forbidden] = -torch.inf
    for b, length in enumerate(LENGTHS):
        for numbers in (scores, along):
            numbers[b, length + 1 :] = torch.nan
            numbers[b, :, length + 1 :] = torch.nan
    return scores.to(dtype), along.to(dtype)


def by_kernels(structure: SpanningTree, scores: Tensor, along: Tensor) -> tuple[Tensor, ...]:
    given = scores.double().requires_grad_()
    marginals = structure.marginals(given, LENGTHS)
    (product,) = torch.autograd.grad(marginals, given, along.nan_to_num().double())
    return structure.log_partition(given, LENGTHS).detach(), marginals.detach(), product


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_what_it_answers_for_is_what_the_kernels_give(
    structure: SpanningTree, scale: float, dtype: torch.dtype
) -> None:
    if structure.direction == "earlier":
        # Of these a single root leaves the first word alone, which every tree has.
        scale = min(scale, 5.0)
    scores, along = batch(scale, dtype)
    log_partition, marginals, product = by_kernels(structure, scores, along)
    options, tolerance = structure._options(scores), TOLERANCES[dtype]
    rounding = 4 * torch.finfo(dtype).eps
    for operation, expected in ((MARGINALS, marginals), (HESSIAN_PRODUCT, product)):
        found = sum_over_trees_of_a_batch(scores, LENGTHS, options, operation, along)
        trusted = found.trusted
        assert trusted.any() and (scale > 1.0 or trusted.all())
        assert found.result is not None and found.result.dtype == dtype
        largest = float(expected.abs().max())
        torch.testing.assert_close(
            found.result[trusted].double(),
            expected[trusted],
            rtol=rounding,
            atol=tolerance + rounding * largest,
        )
        torch.testing.assert_close(
            found.log_partition[trusted].double(),
            log_partition[trusted],
            rtol=rounding,
            atol=tolerance,
        )
        assert operation != MARGINALS or (found.result[trusted] >= 0.0).all()
    alone = sum_over_trees_of_a_batch(scores, LENGTHS, options, LOG_PARTITION, along)
    assert alone.result is None and torch.equal(alone.log_partition, found.log_partition)


@pytest.mark.parametrize("scale", [10.0, 20.0, 50.0])
@pytest.mark.parametrize("direction", ["any", "later"])
def test_with_a_single_root_it_trusts_no_decomposition_that_has_grown(
    direction: Any, scale: float
) -> None:
    """Its Laplacian has the root's arcs for a first row, which decompositions can do badly with."""
    structure = SpanningTree(single_root=True, direction=direction)
    for size, seed in ((10, 0), (63, 0), (63, 1), (90, 2)):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(16, size + 1, size + 1, generator=generator, dtype=torch.float64)
        scores, lengths = scale * scores, torch.full((16,), size)
        options = structure._options(scores)
        found = sum_over_trees_of_a_batch(scores, lengths, options, MARGINALS, scores)
        assert found.trusted.any() and found.result is not None
        own, expected = found.result[found.trusted], structure.marginals(scores, lengths)
        torch.testing.assert_close(own, expected[found.trusted], rtol=0.0, atol=1e-10)
        sums = structure.log_partition(scores, lengths)[found.trusted]
        torch.testing.assert_close(found.log_partition[found.trusted], sums, rtol=1e-12, atol=1e-9)


def test_it_counts_a_gradient_by_its_own_size() -> None:
    """Those of a mean loss are small."""
    scores, along = batch(5.0)
    options = [0, -1, 0]
    found = sum_over_trees_of_a_batch(scores, LENGTHS, options, HESSIAN_PRODUCT, along)
    small = sum_over_trees_of_a_batch(scores, LENGTHS, options, HESSIAN_PRODUCT, 1e-9 * along)
    assert torch.equal(found.trusted, small.trusted)


@pytest.mark.parametrize("operation", [LOG_PARTITION, MARGINALS, HESSIAN_PRODUCT])
def test_a_batch_of_any_size_is_done_in_parts(
    operation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, along = batch(1.0)
    whole = sum_over_trees_of_a_batch(scores, LENGTHS, [0, -1, 0], operation, along)
    monkeypatch.setattr(matrix_tree_batched, "LARGEST_ROOM", 1)
    parts = sum_over_trees_of_a_batch(scores, LENGTHS, [0, -1, 0], operation, along)
    for one, other in zip(whole, parts):
        torch.testing.assert_close(one, other)


HARD: dict[str, Any] = {
    "no tree": lambda scores: scores[0, :, 3].fill_(-torch.inf),
    "not a number": lambda scores: scores[0, 1, 2].fill_(torch.nan),
    "infinite": lambda scores: scores[0, 1, 2].fill_(torch.inf),
    "a root that weighs nothing": lambda scores: scores[0, 0].sub_(60.0),
    "very unlike scores": lambda scores: scores[0].mul_(1e10),
}


@pytest.mark.parametrize("change", HARD.values(), ids=HARD)
def test_it_does_not_answer_for_a_hard_item(change: Any) -> None:
    scores, along = batch(1.0)
    change(scores)
    for operation in (LOG_PARTITION, MARGINALS, HESSIAN_PRODUCT):
        found = sum_over_trees_of_a_batch(scores, LENGTHS, [0, -1, 0], operation, along)
        assert found.trusted.tolist() == [False] + [True] * 5


def test_the_kernel_of_a_gpu_does_the_items_that_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing waits, so that all of it can be captured in a graph."""
    structure = SpanningTree()
    scores, along = batch(1.0, torch.float32)
    scores[4, 0] -= 60.0
    expected = by_kernels(structure, scores, along)
    sizes: list[list[int]] = []
    with from_the_first_word(), pretended_gpu() as log, answering_kernels():
        launch_kernel = launch.launch

        def watched(kernel: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
            sizes.append(arguments[1].held.tolist())
            launch_kernel(kernel, threads, room, arguments)

        there, lengths = scores.to(CUDA), send(LENGTHS, CUDA)
        with monkeypatch.context() as patched:
            patched.setattr(launch, "launch", watched)
            for _ in range(2):
                found = _found(structure, there, lengths, along.to(CUDA))
        # The first of each operation shows whether the kernel is right.
        assert sizes == [LENGTHS.tolist()] * 3 + [[0, 0, 0, 0, 5, 0]] * 3
        for own, reference in zip(found, expected):
            torch.testing.assert_close(fetch(own).double(), reference, rtol=1e-5, atol=1e-6)
        log.clear()
        with blocks.looked_at_later():
            structure.marginals(there, lengths)
            assert moved(log) == (0, 0, 0)
        there[3, :, 1] = -torch.inf
        with pytest.raises(InfeasibleError, match=r"item\(s\) 3 of"):
            structure.marginals(there, lengths)
        there[3, :, 1] = torch.nan
        with pytest.raises(InvalidScores, match=r"item\(s\) \[3\] of"):
            structure.marginals(there, lengths)


def test_a_wrong_answer_of_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a kernel is: by the first result."""
    reach = matrix_tree_batched._reach
    monkeypatch.setattr(matrix_tree_batched, "_reach", lambda *given: 2.0 * reach(*given))
    scores, along = batch(1.0, torch.float32)
    with from_the_first_word(), pretended_gpu(), answering_kernels():
        there, lengths = scores.to(CUDA), send(LENGTHS, CUDA)
        with pytest.warns(LatentWarning, match="not the CPU's"):
            found = SpanningTree().marginals(there, lengths)
    expected = by_kernels(SpanningTree(), scores, along)[1]
    torch.testing.assert_close(fetch(found).double(), expected, rtol=1e-5, atol=1e-6)


def test_a_kernel_that_is_wrong_is_found_out_by_items_that_it_would_not_be_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, along = batch(1.0, torch.float32)
    with from_the_first_word(), pretended_gpu(), answering_kernels():
        launch_kernel = launch.launch

        def wrong(kernel: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
            launch_kernel(kernel, threads, room, arguments)
            arguments[-2].held.mul_(3.0)

        monkeypatch.setattr(launch, "launch", wrong)
        there, lengths = scores.to(CUDA), send(LENGTHS, CUDA)
        with pytest.warns(LatentWarning, match="not the CPU's"):
            found = SpanningTree().marginals(there, lengths)
    expected = by_kernels(SpanningTree(), scores, along)[1]
    torch.testing.assert_close(fetch(found).double(), expected, rtol=1e-5, atol=1e-6)


@contextmanager
def from_the_first_word() -> Iterator[None]:
    """Sentences here are shorter than those that it is asked for."""
    before = BLOCKS.batched_from
    object.__setattr__(BLOCKS, "batched_from", 0)
    try:
        yield
    finally:
        object.__setattr__(BLOCKS, "batched_from", before)


def _found(
    structure: SpanningTree, scores: Tensor, lengths: Tensor, along: Tensor
) -> tuple[Tensor, ...]:
    given = scores.clone().requires_grad_()
    marginals = structure.marginals(given, lengths)
    (product,) = torch.autograd.grad(marginals, given, along.nan_to_num())
    return structure.log_partition(scores, lengths), marginals.detach(), product
