"""Charts of labelled spans, compared with lists of all labelled trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.layers.span_features import span_cells
from spacy_latent.models import found_spans
from spacy_latent.models.compatible_spans import crosses, most_compatible
from spacy_latent.models.found_spans import LikelySpans, choose
from spacy_latent.models.span_losses import (
    Gold,
    Observed,
    fold_by_tensors,
    losses_and_gradient,
    losses_by_tensors,
)
from spacy_latent.testing.listing import scored
from tests.enumeration import constituency_trees

CLASSES = 3
Labelled = dict[tuple[int, int], int]


@cache
def labelled_trees(n: int) -> list[Labelled]:
    """Return every tree over ``n`` words with each assignment of classes to its spans."""
    return [
        dict(zip(spans, labels))
        for tree in constituency_trees(n)
        for spans in [[(int(i), int(j)) for i, j in np.argwhere(tree)]]
        for labels in product(range(CLASSES), repeat=len(spans))
    ]


def indicators(trees: list[Labelled], n: int) -> Tensor:
    """Return the labelled spans of trees as 0/1 ``(T, C, n, n)``."""
    z = torch.zeros(len(trees), CLASSES, n, n, dtype=torch.float64)
    places = [(t, c, i, j) for t, tree in enumerate(trees) for (i, j), c in tree.items()]
    z[tuple(torch.tensor(places).T)] = 1.0
    return z


def total(scores: Tensor, trees: list[Labelled]) -> Tensor:
    return scored(indicators(trees, scores.shape[1]), scores, None).logsumexp(0)


def packed(scores: Tensor) -> Tensor:
    """Return scores ``(C, B, n, n)`` as ``(C, P, B)``, with P cells of the chart."""
    cells = span_cells(scores.shape[-1])
    return torch.stack([cells.of_chart(part) for part in scores])


def agrees(tree: Labelled, observed: list[Observed], others: tuple[int, ...] = (0,)) -> bool:
    """Return True if a tree agrees with observed spans.

    It has each observed span with one of its classes, and all other spans have one of ``others``.
    """
    known = {(start, end - 1): classes for start, end, classes in observed}
    return all(tree.get(place, -1) in classes for place, classes in known.items()) and all(
        c in others for place, c in tree.items() if place not in known
    )


OBSERVED: list[list[Observed]] = [
    [],
    [(1, 3, (1,))],
    [(0, 4, (2,)), (0, 2, (1,)), (1, 2, (2,)), (2, 4, (1, 2))],
]


@pytest.mark.parametrize("losses_of", [losses_and_gradient, losses_by_tensors])
@pytest.mark.parametrize("observed", OBSERVED)
def test_the_loss_and_its_gradient_are_those_of_all_trees(
    observed: list[Observed], losses_of: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    torch.manual_seed(0)
    n, trees = 4, labelled_trees(4)
    scores = torch.randn(CLASSES, n, n, dtype=torch.float64, requires_grad=True)
    expected = total(scores, trees) - total(scores, [t for t in trees if agrees(t, observed)])
    (wanted,) = torch.autograd.grad(expected, scores)
    # The piece is padded and in a batch with a shorter one. Entries that are no spans are random.
    batch = 100.0 * torch.randn(CLASSES, 2, n + 1, n + 1, dtype=torch.float64)
    batch[:, 0, :n, :n], batch[:, 1, 0, 0] = scores.detach(), 0.0
    cells = span_cells(n + 1)
    gold = Gold.of([observed, [(0, 1, (1,))]], cells, CLASSES)
    losses, found = losses_of(packed(batch), torch.tensor([n, 1]), gold, cells)
    gradient = torch.stack([cells.chart(part) for part in found])
    torch.testing.assert_close(losses[0], expected.detach())
    torch.testing.assert_close(gradient[:, 0, :n, :n], wanted)
    assert losses[1].item() == pytest.approx(np.log(CLASSES))
    assert not gradient[:, 0, :, n:].any() and not gradient[:, 1, :, 1:].any()


@pytest.mark.parametrize("others", [(0,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("observed", OBSERVED)
def test_spans_that_are_not_observed_may_have_classes_of_their_own(
    observed: list[Observed], others: tuple[int, ...]
) -> None:
    """The first piece of the batch allows these classes, and the second piece only class 0."""
    torch.manual_seed(1)
    n, trees = 4, labelled_trees(4)
    batch = torch.randn(CLASSES, 2, n, n, dtype=torch.float64)
    cells = span_cells(n)
    unlabelled = torch.zeros(CLASSES, 2, dtype=torch.bool)
    unlabelled[list(others), 0] = unlabelled[0, 1] = True
    gold = Gold.of([observed, observed], cells, CLASSES)
    losses, found = losses_and_gradient(
        packed(batch), torch.tensor([n, n]), gold, cells, unlabelled
    )
    for b, allowed in enumerate([others, (0,)]):
        scores = batch[:, b].clone().requires_grad_()
        agreeing = [tree for tree in trees if agrees(tree, observed, allowed)]
        expected = total(scores, trees) - total(scores, agreeing)
        (wanted,) = torch.autograd.grad(expected, scores)
        torch.testing.assert_close(losses[b], expected.detach())
        gradient = torch.stack([cells.chart(part) for part in found])
        torch.testing.assert_close(gradient[:, b], wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [None, 4])
def test_kernels_and_tensors_give_the_same(bound: int | None, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    n, batch, classes = 20, 9, 6
    cells = span_cells(n, bound)
    scores = 3.0 * torch.randn(classes, len(cells), batch, dtype=dtype)
    lengths = torch.tensor([20, 1, 7, 19, 20, 3, 12, 20, 5])
    observed: list[list[Observed]] = [
        [(0, 1, (1,)), *([(1, 5, (2, 3)), (2, 4, (5,)), (0, 7, (4,))] if n >= 7 else [])]
        for n in lengths.tolist()
    ]
    observed = [[own for own in piece if own[1] - own[0] <= (bound or n)] for piece in observed]
    gold = Gold.of(observed, cells, classes)
    padding = cells.last[:, None] >= lengths
    scores[:, padding] = torch.nan
    expected = losses_by_tensors(scores.double(), lengths, gold, cells)
    assert not expected[1][:, padding].any()
    losses, gradient = losses_and_gradient(scores, lengths, gold, cells)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(losses, expected[0], rtol=tolerance, atol=tolerance)
    assert not gradient[:, padding].any()
    torch.testing.assert_close(gradient.double(), expected[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("losses_of", [losses_and_gradient, losses_by_tensors])
def test_what_is_no_number_is_told_of_by_its_piece(
    losses_of: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    cells = span_cells(3)
    scores = torch.zeros(CLASSES, len(cells), 2)
    scores[0, 0, 1] = torch.nan
    gold = Gold.of([[], []], cells, CLASSES)
    with pytest.raises(InvalidScores, match=r"\[1\]"):
        losses_of(scores, torch.tensor([3, 3]), gold, cells)
    # This score is only in the chart of the agreeing trees.
    scores[0, 0, 1] = -torch.inf
    with pytest.raises(InfeasibleError, match=r"\b1\b"):
        losses_of(scores, torch.tensor([3, 3]), gold, cells)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_longer_spans_than_the_bound_have_no_label(bound: int) -> None:
    torch.manual_seed(4)
    n, cells = 4, span_cells(4, bound)
    scores = torch.randn(CLASSES, n, n, dtype=torch.float64)
    wide = torch.ones(n, n, dtype=torch.bool).triu(bound)
    scores[:, wide] = -torch.inf
    scores[0, wide] = 0.0
    trees, observed = labelled_trees(n), [(1, 2, (1,))]
    expected = total(scores, trees) - total(scores, [t for t in trees if agrees(t, observed)])
    inside = torch.stack([part[cells.first, cells.last] for part in scores])[:, :, None]
    gold = Gold.of([observed], cells, CLASSES)
    losses, _ = losses_and_gradient(inside, torch.tensor([n]), gold, cells)
    torch.testing.assert_close(losses[0], expected)


def test_probabilities_are_those_of_all_trees() -> None:
    torch.manual_seed(1)
    n, trees = 4, labelled_trees(4)
    scores = torch.randn(CLASSES, n, n, dtype=torch.float64)
    cells = span_cells(n)
    z = indicators(trees, n)
    expected = torch.einsum("t,tcij->cij", scored(z, scores, None).softmax(0), z)[1:]
    # The first table gives each class one label. In the second, both classes share a label.
    for member in (torch.eye(2), torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])):
        member = member.double()
        wanted = torch.einsum("cl,cij->lij", member, expected)
        for least in (0.0, 0.1):
            given = packed(scores[:, None]), torch.tensor([n]), cells
            spans = LikelySpans.of(*given, member, least)
            found = torch.zeros_like(wanted)
            found[:, spans.first, spans.last] = spans.of_labels
            some = wanted.amax(0) >= least
            assert len(spans.item) == (some & (wanted.amax(0) > 0)).sum() and not spans.item.any()
            torch.testing.assert_close(found, torch.where(some, wanted, 0.0))


def test_spans_that_are_wider_than_the_bound_are_not_likely() -> None:
    cells = span_cells(4, 2)
    spans = LikelySpans.of(
        torch.zeros(2, len(cells), 1), torch.tensor([4]), cells, torch.eye(1), 0.0
    )
    places = torch.stack([spans.first, spans.last]).T.tolist()
    assert places == torch.stack([cells.first, cells.last]).T.tolist()
    # A pair of words has two classes and a wider span has one, so a tree weighs 2 for each of its
    # pairs. Four trees have one pair, and one tree has two.
    expected = [1 / 2, 3 / 12, 1 / 2, 2 / 12, 1 / 2, 3 / 12, 1 / 2]
    assert spans.of_labels[0].tolist() == pytest.approx(expected)


def test_what_is_certainly_wrong_still_has_a_gradient() -> None:
    scores = torch.zeros(2, 1, 3, 3)
    # The probability of the gold span underflows to 0.
    scores[1, 0, 0, 1] = -2000.0
    cells = span_cells(3)
    gold = Gold.of([[(0, 2, (1,))]], cells, 2)
    losses, gradient = losses_and_gradient(packed(scores), torch.tensor([3]), gold, cells)
    assert losses.item() > 1900
    assert cells.chart(gradient[1])[0, 0, 1].item() == pytest.approx(-1.0)
    assert torch.isfinite(gradient).all()


def test_folding_is_a_sum_and_shares() -> None:
    scores = 300 * torch.randn(4, 6, 3, dtype=torch.float64)
    folded, shares, whole = fold_by_tensors(scores)
    torch.testing.assert_close(folded, scores.logsumexp(0))
    torch.testing.assert_close(shares / whole, scores.softmax(0))


def sets_without_crossing(places: list[tuple[int, int]]) -> list[list[int]]:
    every = product([False, True], repeat=len(places))
    chosen = [[i for i, taken in enumerate(which) if taken] for which in every]
    return [own for own in chosen if not crosses([places[i] for i in own])]


def test_as_few_crossing_spans_as_possible_are_left_out() -> None:
    drawn = np.random.default_rng(0)
    for _ in range(50):
        places = [(a, b) for a in range(6) for b in range(a + 1, 7) if drawn.random() < 0.3]
        kept = most_compatible(places)
        most = max(len(own) for own in sets_without_crossing(places))
        assert sum(kept) == most
        assert not crosses([place for place, own in zip(places, kept) if own])


def test_what_crosses_in_a_long_text_is_found_without_a_chart_of_all_of_it() -> None:
    wide = [(0, 100_000), (10, 90_000)]
    crossing = [(50, 20_000), (60, 30_000), (70, 40_000), (50_000, 50_002), (50_001, 50_003)]
    kept = most_compatible(wide + crossing)
    assert kept[:2] == [True, True]
    assert sum(kept[2:5]) == 1 and sum(kept[5:]) == 1


def test_crossing() -> None:
    assert not crosses([]) and not crosses([(0, 3), (0, 2), (2, 3), (1, 2), (4, 5), (0, 9)])
    assert crosses([(4, 6), (0, 2), (1, 3)]) and crosses([(0, 5), (1, 3), (2, 4)])


@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.4, 0.6])
def test_predictions_have_the_greatest_gain_of_all_that_do_not_cross(threshold: float) -> None:
    torch.manual_seed(3)
    n, lengths = 5, torch.tensor([5])
    scores = 2.0 * torch.randn(CLASSES, 1, n, n, dtype=torch.float64)
    cells = span_cells(n)
    member = torch.eye(2, dtype=torch.float64)
    spans = LikelySpans.of(packed(scores), lengths, cells, member, threshold)
    chosen = choose(spans, member, lengths, threshold, n)
    assert (spans.of_labels[chosen] >= threshold).all()
    own = chosen.nonzero()[:, 1]
    places = list(zip(spans.first[own].tolist(), (spans.last[own] + 1).tolist()))
    assert places and len(set(places)) == len(places) and not crosses(places)
    best = torch.zeros(n, n, dtype=torch.float64)
    best[spans.first, spans.last] = spans.of_labels.amax(0)
    every = [(i, j + 1) for i, j in (best >= threshold).nonzero().tolist()]
    gains = [
        sum(float(best[every[i][0], every[i][1] - 1]) - threshold for i in own)
        for own in sets_without_crossing(every)
    ]
    gain = float((spans.of_labels[chosen] - threshold).sum())
    assert gain == pytest.approx(max(gains), abs=1e-4)


def test_what_is_sure_is_predicted_without_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold of one half needs no chart.

    Spans above it do not cross each other, and each has only one label above it.
    """
    lengths, member = torch.tensor([3]), torch.eye(2)
    places = torch.tensor([[0, 0], [0, 2], [1, 2]]).T
    spans = LikelySpans(
        *places.new_zeros(1, 3), *places, torch.tensor([[0.9, 0, 0], [0, 0.4, 0.6]])
    )
    wanted = choose(spans, member, lengths, 0.5, 3)
    assert choose(spans, member, lengths, 0.4, 3).any(0).tolist() == [True, True, True]
    monkeypatch.setattr(found_spans, "best_compatible", None)
    assert choose(spans, member, lengths, 0.5, 3).equal(wanted)
    assert wanted.tolist() == [[True, False, False], [False, False, True]]


def test_labels_that_go_together_are_predicted_together() -> None:
    """The classes are the sets of labels {A}, {B} and {A, B}."""
    member = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])

    def predicted(shares: list[float], threshold: float, sets: Tensor = member) -> list[bool]:
        place = torch.zeros(1, dtype=torch.int64)
        spans = LikelySpans(place, place, place, (torch.tensor(shares) @ sets)[:, None])
        chosen = choose(spans, sets, torch.tensor([1]), threshold, 1)
        return chosen.flatten().tolist()

    assert predicted([0.1, 0.1, 0.7], 0.5) == [True, True]
    assert predicted([0.3, 0.0, 0.4], 0.5) == [True, False]
    assert predicted([0.1, 0.1, 0.2], 0.5) == [False, False]
    # Both labels may exceed a threshold below one half. They are predicted together only if a class
    # has both.
    assert predicted([0.4, 0.3, 0.0], 0.25) == [True, True]
    assert predicted([0.4, 0.3], 0.25, member[:2]) == [True, False]
