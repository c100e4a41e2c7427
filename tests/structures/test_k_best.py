"""The k best structures from a MAP oracle, against enumeration."""

from __future__ import annotations

from itertools import permutations
from typing import Literal

import numpy as np
import pytest
import torch

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentError
from spacy_latent.estimators.best_mixture import BestMixture
from spacy_latent.structures import k_best
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_best import lawler
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests import enumeration
from tests.structures.oracles import Listed, listed_subsets, listed_trees


def all_scores(listed: Listed, scores: torch.Tensor, n: int) -> np.ndarray:
    members = listed.members(n)
    window = tuple(slice(0, size) for size in members.shape[1:])
    own = scores[window].double().numpy()
    totals = np.where(members > 0, own, 0.0).reshape(len(members), -1).sum(1)
    return np.sort(totals[totals > -np.inf])[::-1]


CASES: list[tuple[Structure, Listed]] = [
    (SpanningTree(), listed_trees()),
    (SpanningTree(single_root=True), listed_trees(single_root=True)),
    (ProjectiveTree(), listed_trees(projective=True)),
    (listed_trees(projective=True), listed_trees(projective=True)),
    (listed_subsets(2, 2), listed_subsets(2, 2)),
    (listed_subsets(0, 3), listed_subsets(0, 3)),
    (OneOfN(), listed_subsets(1, 1)),
]


@pytest.mark.parametrize("structure, listed", CASES)
@pytest.mark.parametrize("k", [1, 4, 40])
def test_top_k_against_enumeration(structure: Structure, listed: Listed, k: int) -> None:
    torch.manual_seed(k)
    size = 5 if structure.part_axes == 2 else 4
    scores = torch.randn(4, *[size] * structure.part_axes)
    if structure.part_axes == 2:
        scores[0, 1, 2] = -torch.inf
    lengths = torch.tensor([4, 3, 1, 0])
    best = structure.top_k(scores, lengths, k)
    assert best.z.shape == (k, *scores.shape) and best.scores.shape == (k, 4)
    for b, n in enumerate(lengths.tolist()):
        expected = all_scores(listed, scores[b], n)[:k]
        found = best.scores[: len(expected), b]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert torch.isneginf(best.scores[len(expected) :, b]).all()
        assert not best.z[len(expected) :, b].any()
        distinct = {tuple(z.flatten().tolist()) for z in best.z[: len(expected), b]}
        assert len(distinct) == len(expected)
        chosen = torch.where(best.z[: len(expected), b] > 0, scores[b], 0.0).flatten(1).sum(1)
        torch.testing.assert_close(chosen, found)


def test_one_of_n_is_what_the_general_algorithm_gives() -> None:
    """Compare with the general algorithm, for −inf, padding and empty items, too.

    Items of equal scores keep their order, as in ``map``.
    """
    structure = OneOfN()
    scores = torch.tensor([[2.0, -torch.inf, 5.0, 1.0], [1.0, 1.0, 1.0, 9.0], [3.0, 0.0, 0.0, 0.0]])
    for lengths in (torch.tensor([4, 3, 1]), torch.tensor([3, 2, 0])):
        for k in (1, 2, 6):
            found, general = (
                call(scores, lengths, k)
                for call in (structure.top_k, lambda *rest: lawler(structure, *rest))
            )
            assert torch.equal(found.scores, general.scores.to(scores.dtype))
            assert torch.equal(found.z[:, 0], general.z[:, 0])
            assert torch.equal(found.z.sum(2), general.z.sum(2))
            assert torch.equal(found.z[0], structure.map(scores, lengths))
    with pytest.raises(InvalidScores, match=r"\bk\b"):
        structure.top_k(scores, torch.tensor([4, 3, 1]), 0)
    with pytest.raises(InfeasibleError):
        structure.top_k(torch.full((1, 2), -torch.inf), torch.tensor([2]), 1)


def test_a_large_finite_mask_leaves_the_order_of_what_avoids_it() -> None:
    scores = torch.tensor(
        [
            [-1.281, 0.958, 0.005, -0.84],
            [1.354, -0.34, 1.487, 1.484],
            [0.679, -0.052, 0.903, -0.134],
            [0.838, -0.024, -1e30, -0.394],
        ],
        dtype=torch.float64,
    )
    best = MonotoneAlignment().top_k(scores[None], torch.tensor([[4, 4]]), 6)
    expected = [2.176, 2.125, 2.120, 1.780, 1.729, 1.678]
    np.testing.assert_allclose(best.scores[:, 0], expected, atol=1e-9)


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("moves", ["dtw", "needleman_wunsch"])
def test_monotone_alignments_are_those_of_the_general_algorithm(
    moves: Literal["dtw", "needleman_wunsch"], window: int | None
) -> None:
    structure = MonotoneAlignment(moves, window)
    torch.manual_seed(0)
    scores = torch.randn(6, 4, 5, dtype=torch.float64)
    scores[0, 1, 2] = -torch.inf
    lengths = torch.tensor([[4, 5], [3, 2], [1, 1], [0, 5], [4, 0], [1, 5]])
    for k in (1, 3, 50):
        found = structure.top_k(scores, lengths, k)
        general = lawler(structure, *structure._read(scores, lengths), k)
        torch.testing.assert_close(found.scores, general.scores)
        assert torch.equal(found.z.double(), general.z.double())
    with pytest.raises(InvalidScores, match=r"\bk\b"):
        structure.top_k(scores, lengths, 0)
    if moves == "dtw":
        with pytest.raises(InfeasibleError):
            structure.top_k(torch.full((1, 2, 2), -torch.inf), torch.tensor([[2, 2]]), 2)


def test_the_best_monotone_alignments_of_long_texts_take_no_search() -> None:
    """``top_k`` calls the MAP oracle once.

    A search with one call for each pair of words took ten seconds for texts of 100 words. Its
    memory grew with the square of the number of words.
    """
    calls = []

    class Counted(MonotoneAlignment):
        def _map(self, scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            calls.append(len(scores))
            return super()._map(scores, lengths)

    torch.manual_seed(0)
    scores = torch.randn(1, 90, 120)
    best = Counted().top_k(scores, torch.tensor([[90, 120]]), 4)
    assert sum(calls) == 1
    assert torch.isfinite(best.scores).all() and (best.scores.diff(dim=0) < 0).all()
    torch.testing.assert_close((best.z * scores).sum((2, 3)), best.scores)


def permutations_of(n: int) -> np.ndarray:
    return np.stack([np.eye(n)[list(order)] for order in permutations(range(n))])


MEMBERS = {
    "dtw": (MonotoneAlignment(), (4, 3), lambda: enumeration.warping_paths(4, 3)),
    "matching": (
        MonotoneAlignment("needleman_wunsch"),
        (4, 3),
        lambda: enumeration.monotone_matchings(4, 3),
    ),
    "constituency": (ConstituencyTree(), 5, lambda: enumeration.constituency_trees(5)),
    "two of five": (KOfN(2), 5, lambda: listed_subsets(2, 2).members(5)),
    "up to three": (KOfN(3, exactly=False), 5, lambda: listed_subsets(0, 3).members(5)),
    "bits": (Bits(), 5, lambda: listed_subsets(0, 5).members(5)),
    "one to one": (OneToOneAlignment(), (3, 3), lambda: permutations_of(3)),
}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(
    "mask", [-1e4, -1e9, -1e16, -1e30, float(torch.finfo(torch.float32).min), -1e300, 1e9]
)
def test_masks_of_any_size_against_enumeration(name: str, mask: float) -> None:
    structure, length, members = MEMBERS[name]
    listed = np.stack(list(members()))
    draw = np.random.default_rng(0)
    for count in (1, 3):
        scores = draw.normal(size=listed.shape[1:])
        used = np.flatnonzero(listed.any(0))
        scores.flat[draw.choice(used, count, replace=False)] = mask
        totals = np.where(listed > 0, scores, 0.0).reshape(len(listed), -1).sum(1)
        best = structure.top_k(torch.from_numpy(scores)[None], torch.tensor([length]), 12)
        expected = np.sort(totals)[::-1][:12]
        np.testing.assert_allclose(best.scores[: len(expected), 0], expected, rtol=1e-9, atol=1e-9)
        chosen = np.where(best.z[: len(expected), 0] > 0, scores, 0.0)
        chosen = chosen.reshape(len(expected), -1).sum(1)
        np.testing.assert_allclose(chosen, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_sum_beyond_the_range_of_the_scores_is_no_missing_structure(
    name: str, dtype: torch.dtype
) -> None:
    structure, length, members = MEMBERS[name]
    listed = np.stack(list(members()))
    scores = torch.full((1, *listed.shape[1:]), torch.finfo(dtype).min, dtype=dtype)
    best = structure.top_k(scores, torch.tensor([length]), len(listed) + 1).scores[:, 0]
    assert best.dtype == dtype and (~best.isneginf()).sum() == len(listed)
    draw = BestMixture(2)(structure, scores.requires_grad_(), torch.tensor([length]), True)
    torch.testing.assert_close(draw.weights.sum(0), torch.ones(1, dtype=dtype))


def test_refuses_k_below_one_and_infeasible_items() -> None:
    with pytest.raises(InvalidScores, match=r"\bk\b"):
        SpanningTree().top_k(torch.zeros(1, 3, 3), torch.tensor([2]), 0)
    scores = torch.zeros(2, 3, 3)
    scores[1, :, 2] = -torch.inf
    with pytest.raises(InfeasibleError, match=r"\b1\b"):
        listed_trees().top_k(scores, torch.tensor([2, 2]), 2)


def test_errors_name_items_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors give the index of an item in the batch, even if the oracle is called several times."""
    monkeypatch.setattr(k_best, "CALL_PARTS", 32)
    scores = torch.zeros(5, 4, 4)
    scores[[1, 4]] = -torch.inf
    with pytest.raises(InfeasibleError) as error:
        ProjectiveTree().top_k(scores, torch.full((5,), 3), 2)
    assert error.value.items == [1, 4]


class _Found(Structure):
    """A structure whose best member is given, right or wrong."""

    part_axes = 1

    def __init__(self, best: object) -> None:
        self.best = best

    def _map(self, scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.best  # type: ignore[return-value]


def test_a_map_without_a_valid_structure_is_refused() -> None:
    scores, lengths = torch.randn(2, 4), torch.tensor([4, 2])
    for best in (None, np.ones((2, 4)), torch.ones(2, 3), torch.ones(2)):
        with pytest.raises(LatentError):
            _Found(best).top_k(scores, lengths, 2)
    # The second item has no third part.
    with pytest.raises(InfeasibleError) as caught:
        _Found(torch.tensor([[0.0, 0.0, 1.0, 0.0]] * 2)).top_k(scores, lengths, 1)
    assert list(caught.value.items) == [1]
