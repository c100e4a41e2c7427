"""The compiled SparseMAP of dependency trees, against the solver that needs only a MAP oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spacy_latent.kernels.core import pool
from spacy_latent.structures.base import SparseSolution
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.structures.oracles import listed_trees
from tests.structures.test_sparsemap import generic

KINDS = [(False, False), (False, True), (True, False), (True, True)]


def compiled(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    projective: bool,
    single_root: bool,
    max_iter: int = 200,
    tolerance: float = 1e-6,
) -> SparseSolution:
    structure = ProjectiveTree(single_root) if projective else SpanningTree(single_root)
    return structure.sparsemap(scores, lengths, max_iter, tolerance)


@pytest.mark.parametrize("projective, single_root", KINDS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("ties", [False, True])
def test_same_as_from_an_oracle(
    projective: bool, single_root: bool, scale: float, ties: bool
) -> None:
    torch.manual_seed(3)
    scores = torch.randn(5, 5, 5, dtype=torch.float64)
    if ties:
        scores = scores.round()
    scores = scores * scale
    scores[0, 2, 1] = -torch.inf
    scores[2, 4:] = torch.nan
    lengths = torch.tensor([4, 4, 3, 1, 0])
    scores.requires_grad_()
    upstream = torch.randn(5, 5, 5, dtype=torch.float64)
    solution = compiled(scores, lengths, projective, single_root, tolerance=1e-10)
    expected = generic(listed_trees(projective, single_root), scores, lengths, 1e-10)
    assert (solution.gap <= 1e-10).all()
    torch.testing.assert_close(solution.mean, expected.mean, atol=1e-6, rtol=0)
    weights = solution.weights[:, :, None, None]
    torch.testing.assert_close((weights * solution.atoms).sum(0), solution.mean)
    assert (solution.weights[:-1] >= solution.weights[1:]).all()
    if not ties:
        (found,) = torch.autograd.grad((solution.mean * upstream).sum(), scores)
        (wanted,) = torch.autograd.grad((expected.mean * upstream).sum(), scores)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("projective, single_root", KINDS)
def test_gradients_of_mean_and_weights(projective: bool, single_root: bool) -> None:
    torch.manual_seed(1)
    scores = torch.randn(4, 5, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 3, 1, 0])

    def outputs(s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        solution = compiled(s, lengths, projective, single_root, tolerance=1e-12)
        return solution.mean, solution.weights

    assert torch.autograd.gradcheck(outputs, (scores,), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("projective", [False, True])
def test_long_sentences_are_exact_and_independent_of_their_batch(projective: bool) -> None:
    torch.manual_seed(0)
    scores, lengths = torch.randn(8, 31, 31), torch.tensor([30, 5, 17, 30, 1, 29, 12, 30])
    together = compiled(scores, lengths, projective, False)
    assert (together.gap <= 1e-6).all()
    for b, n in enumerate(lengths.tolist()):
        own = scores[b : b + 1, : n + 1, : n + 1]
        alone = compiled(own, lengths[b : b + 1], projective, False)
        torch.testing.assert_close(alone.mean[0], together.mean[b, : n + 1, : n + 1])
        assert not together.mean[b, n + 1 :].any() and not together.mean[b, :, n + 1 :].any()


@pytest.mark.parametrize("projective", [False, True])
def test_unfinished_items_say_how_far_they_are_and_none_is_done(projective: bool) -> None:
    torch.manual_seed(0)
    short = compiled(torch.randn(1, 9, 9), torch.tensor([8]), projective, False, max_iter=2)
    assert short.gap.item() > 1e-6
    torch.testing.assert_close(short.weights.sum(0), torch.ones(1))
    empty = compiled(torch.zeros(0, 3, 3), torch.zeros(0, dtype=torch.int64), projective, False)
    assert empty.mean.shape == (0, 3, 3)


@pytest.mark.parametrize("projective, single_root", KINDS)
def test_a_batch_gives_what_each_item_gives(
    projective: bool,
    single_root: bool,
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Callable[[int], None],
) -> None:
    """The batch has more sentences than are open at a time, and some end early.

    It runs on one thread and on several.
    """
    torch.manual_seed(4)
    lengths = torch.tensor([9, 12, 0, 1, 13, 2, 12, 11, 20, 18, 5, 13, 3, 12, 10, 12, 14, 5, 7])
    scores = torch.randn(19, 21, 21, dtype=torch.float64)
    scores[3:6] *= 100.0
    scores[7, 1:, 3] = -torch.inf
    for b, n in enumerate(lengths.tolist()):
        scores[b, n + 1 :], scores[b, :, n + 1 :] = torch.nan, torch.nan
    alone = [
        compiled(scores[b : b + 1], lengths[b : b + 1], projective, single_root)
        for b in range(len(lengths))
    ]
    monkeypatch.setattr(pool, "SERIAL_NANOSECONDS", 0)
    for count in (1, 2, 3):
        set_threads(count)
        together = compiled(scores, lengths, projective, single_root)
        for b, own in enumerate(alone):
            assert torch.equal(together.mean[b], own.mean[0])
            assert torch.equal(together.weights[: len(own.weights), b], own.weights[:, 0])
            assert torch.equal(together.gap[b], own.gap[0])
