"""Smoothed dynamic programs: their definition, and differences from other relaxations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spacy_latent.errors import (
    IncompatiblePair,
    InfeasibleError,
    InvalidScores,
    NotDifferentiable,
    NotTractable,
)
from spacy_latent.estimators.smoothed_dp import SmoothedDP
from spacy_latent.structures.base import Structure
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.relaxation import project_simplex
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.smoothed import (
    fenchel_young_loss,
    maximum,
    smoothed_expectation,
    smoothed_sample,
    smoothed_value,
)
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from spacy_latent.structures.totals import exact_potential


def cases() -> list[tuple[Structure, Tensor, Tensor]]:
    torch.manual_seed(0)
    chain = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    cells = torch.randn(3, 4, 5, dtype=torch.float64)
    tags, lengths = torch.randn(3, 4, 3, dtype=torch.float64), torch.tensor([4, 2, 0])
    segments = torch.randn(3, 4, 2, 3, dtype=torch.float64)
    items = torch.randn(3, 6, dtype=torch.float64)
    return [
        (LinearChain(), chain, lengths),
        (TagSequence().bind(chain[0, 0], chain[0, 1, 0], chain[0, 1, 1]), tags, lengths),
        (MonotoneAlignment(), cells, torch.tensor([[4, 5], [2, 3], [0, 2]])),
        (MonotoneAlignment(window=1), cells, torch.tensor([[4, 5], [1, 3], [3, 3]])),
        (MonotoneAlignment("needleman_wunsch"), cells, torch.tensor([[4, 5], [2, 3], [0, 2]])),
        (MonotoneAlignment("needleman_wunsch", 1), cells, torch.tensor([[4, 5], [1, 3], [3, 3]])),
        (SemiMarkov(), segments, lengths),
        (SemiMarkov().bind(chain[0, 0], chain[0, 1, 0], chain[0, 1, 1]), segments, lengths),
        (Runs(3, 2), items, torch.tensor([6, 2, 0])),
        (Runs(3, 1, exactly=False), items, torch.tensor([6, 1, 4])),
        (Runs(1, 3), items, torch.tensor([6, 3, 4])),
    ]


EACH = pytest.mark.parametrize("structure, scores, lengths", cases(), ids=lambda v: str(v)[:20])
BOTH = pytest.mark.parametrize("regularizer", ["entropic", "quadratic"])


def by_hand(scores: Tensor, rows: int, columns: int, operator: object) -> Tensor:
    """Run the recursion over cells, one at a time."""
    value: dict[tuple[int, int], Tensor] = {}
    for i in range(rows):
        for j in range(columns):
            before = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
            reached = [value[place] for place in before if place in value]
            start = operator(torch.stack(reached)) if reached else scores.new_zeros(())  # type: ignore[operator]
            value[i, j] = start + scores[i, j]
    return value[rows - 1, columns - 1]


@EACH
def test_entropic_values_are_log_partitions(
    structure: Structure, scores: Tensor, lengths: Tensor
) -> None:
    for gamma in (0.3, 1.0, 4.0):
        value = smoothed_value(structure, scores, lengths, "entropic", gamma)
        cooled = structure
        if isinstance(structure, TagSequence) and structure.bound is not None:
            cooled = structure.bind(*(part / gamma for part in structure.bound))
        expected = gamma * cooled.log_partition(scores / gamma, lengths)
        torch.testing.assert_close(value, expected)
        mean = smoothed_expectation(structure, scores, lengths, "entropic", gamma)
        torch.testing.assert_close(mean, cooled.marginals(scores / gamma, lengths))


@EACH
@BOTH
def test_gradients(structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str) -> None:
    given = scores.clone().requires_grad_()
    for function in (smoothed_value, smoothed_expectation):
        assert torch.autograd.gradcheck(
            lambda s, f=function: f(structure, s, lengths, regularizer, 0.9),  # type: ignore[arg-type]
            (given,),
        )


@EACH
@BOTH
def test_little_smoothing_gives_the_best(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    mean = smoothed_expectation(structure, scores, lengths, regularizer, 1e-4)  # type: ignore[arg-type]
    torch.testing.assert_close(mean, structure.map(scores, lengths), rtol=0, atol=1e-6)


def test_the_quadratic_recursion_over_cells() -> None:
    torch.manual_seed(1)
    scores = torch.randn(1, 4, 3, dtype=torch.float64)
    for gamma in (0.5, 2.0):
        found = smoothed_value(
            MonotoneAlignment(), scores, torch.tensor([[4, 3]]), "quadratic", gamma
        )
        expected = by_hand(scores[0], 4, 3, maximum("quadratic", gamma))
        torch.testing.assert_close(found[0], expected)


def matches_by_hand(scores: Tensor, operator: Callable[[Tensor], Tensor]) -> Tensor:
    """Run the recursion over matches, one cell at a time."""
    rows, columns = scores.shape
    zero, none = scores.new_zeros(()), scores.new_full((), -torch.inf)
    value = {(i, j): zero for i in range(rows + 1) for j in range(columns + 1)}
    for i in range(1, rows + 1):
        matched = none
        for j in range(1, columns + 1):
            pair = value[i - 1, j - 1] + scores[i - 1, j - 1]
            matched = operator(torch.stack([matched, pair]))
            value[i, j] = operator(torch.stack([value[i - 1, j], matched]))
    return value[rows, columns]


def segments_by_hand(
    scores: Tensor, bound: tuple[Tensor, ...], operator: Callable[[Tensor], Tensor]
) -> Tensor:
    """Run the recursion over segments, one position and label at a time."""
    positions, longest, count = scores.shape
    transitions, start, end = bound
    before = {0: start}
    reached = start
    for last in range(1, positions + 1):
        found = []
        for label in range(count):
            places = range(max(0, last - longest), last)
            ways = [before[i][label] + scores[i, last - i - 1, label] for i in places]
            found.append(operator(torch.stack(ways)))
        reached = torch.stack(found)
        following = [operator(reached + transitions[:, label]) for label in range(count)]
        before[last] = torch.stack(following)
    return operator(reached + end)


def runs_by_hand(structure: Runs, scores: Tensor, operator: Callable[[Tensor], Tensor]) -> Tensor:
    """Run the recursion over items, from the first to the last.

    The table has a value for each number of chosen items, number of runs, and choice of the last
    item.
    """
    length, none = len(scores), scores.new_full((), -torch.inf)
    table = {(0, 0, last): scores.new_zeros(()) for last in (False, True)}
    table[0, 0, True] = none
    for score in scores:
        following = {}
        for count, runs in product(range(structure.k + 1), range(structure.runs + 1)):
            here = [table.get((count, runs, last), none) for last in (True, False)]
            following[count, runs, False] = operator(torch.stack(here))
            into = [
                table.get((count - 1, runs, True), none),
                table.get((count - 1, runs - 1, False), none),
            ]
            following[count, runs, True] = operator(torch.stack(into)) + score
        table = following
    most = min(structure.k, length)
    accepted = [value for (count, *_), value in table.items() if count == most]
    return operator(torch.stack(accepted))


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_quadratic_recursions_of_other_structures(gamma: float) -> None:
    torch.manual_seed(7)
    operator = maximum("quadratic", gamma)

    def found(structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        return smoothed_value(structure, scores[None], lengths[None], "quadratic", gamma)[0]

    cells = torch.randn(4, 3, dtype=torch.float64)
    expected = matches_by_hand(cells, operator)
    own = found(MonotoneAlignment("needleman_wunsch"), cells, torch.tensor([4, 3]))
    torch.testing.assert_close(own, expected)
    segments = torch.randn(5, 3, 2, dtype=torch.float64)
    bound = tuple(torch.randn(*shape, dtype=torch.float64) for shape in ((2, 2), (2,), (2,)))
    expected = segments_by_hand(segments, bound, operator)
    own = found(SemiMarkov().bind(*bound), segments, torch.tensor(5))
    torch.testing.assert_close(own, expected)
    items = torch.randn(6, dtype=torch.float64)
    for structure in (Runs(3, 2), Runs(4, 1)):
        expected = runs_by_hand(structure, items, operator)
        torch.testing.assert_close(found(structure, items, torch.tensor(6)), expected)


def most_excess(ways: int, regularizer: str, gamma: float = 1.0) -> float:
    """Return the largest excess of max_Ω over max for ``ways`` numbers. Equal numbers reach it."""
    return gamma * (np.log(ways) if regularizer == "entropic" else 0.5 * (1 - 1 / ways))


def longest_walk(structure: Structure, shape: torch.Size, sizes: list[int]) -> list[int]:
    """Return the largest number of arguments of each maximum on a longest walk of an item."""
    if min(sizes) == 0:
        return []
    if isinstance(structure, MonotoneAlignment):
        rows, columns = sizes
        # A set of matches has one maximum for each row, and one for each column except the first.
        return [3] * (rows + columns - 2) if structure.moves == "dtw" else [2] * (sum(sizes) - 1)
    if isinstance(structure, Runs):
        counts = 1 if structure.exactly else structure.k + 1
        return [2] * sizes[0] + [2 * counts * (structure.runs + 1)]
    if isinstance(structure, SemiMarkov):
        # On a longest walk, all segments have one position.
        return list(shape[1:]) * sizes[0]
    return [shape[-1]] * sizes[0]


@EACH
@BOTH
def test_values_are_convex_and_near_the_best_score(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    """The value lies between the best score and this score plus the excess of each maximum on a
    longest walk (Mensch and Blondel 2018).
    """
    gamma = 0.8

    def value(given: Tensor) -> Tensor:
        return smoothed_value(structure, given, lengths, regularizer, gamma)  # type: ignore[arg-type]

    walks = [
        longest_walk(structure, scores.shape[1:], torch.atleast_1d(one).tolist()) for one in lengths
    ]
    most = torch.tensor(
        [sum(most_excess(ways, regularizer, gamma) for ways in walk) for walk in walks],
        dtype=torch.float64,
    )
    for scale in (0.0, 0.1, 1.0, 10.0):
        one, other = scale * scores, scale * (scores + torch.randn_like(scores))
        between = value(0.5 * (one + other))
        assert (between <= 0.5 * (value(one) + value(other)) + 1e-12).all()
        best = exact_potential(structure, structure.map(one, lengths), one, lengths)
        excess = value(one) - best
        assert (excess >= -1e-12).all() and (excess <= most + 1e-12).all()


@BOTH
def test_equal_scores_reach_the_bound(regularizer: str) -> None:
    """The bound is reached if every walk is a longest one, and all its maxima are over equal
    numbers.
    """
    chain = torch.zeros(1, 5, 4, 4, dtype=torch.float64)
    cases: list[tuple[Structure, Tensor, Tensor, list[int]]] = [
        (LinearChain(), chain, torch.tensor([5]), [4] * 5),
        (TagSequence(), chain[:, :, 0], torch.tensor([5]), [4] * 5),
        (SemiMarkov(), chain[:, :, :1], torch.tensor([5]), [1, 4] * 5),
        (MonotoneAlignment(), chain[:, :2, :2, 0], torch.tensor([[2, 2]]), [3]),
        (MonotoneAlignment("needleman_wunsch"), chain[:, 0, :1, :1], torch.tensor([[1, 1]]), [2]),
    ]
    for structure, scores, lengths, walk in cases:
        value = smoothed_value(structure, scores, lengths, regularizer)  # type: ignore[arg-type]
        expected = sum(most_excess(ways, regularizer) for ways in walk)
        assert float(value[0]) == pytest.approx(expected, abs=1e-12)


@EACH
@BOTH
def test_single_precision_beside_a_large_number_in_all_scores(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    single = scores.float() + 4096.0
    found = smoothed_expectation(structure, single, lengths, regularizer)  # type: ignore[arg-type]
    exact = smoothed_expectation(structure, single.double(), lengths, regularizer)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0.0, atol=1e-3)


@BOTH
def test_masks_that_are_numbers(regularizer: str) -> None:
    scores = torch.tensor([[-1e30, -1e30, 0.0, 0.0]])
    found = smoothed_expectation(Runs(3, 2), scores, torch.tensor([4]), regularizer)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5, 1.0, 1.0]]))


def test_quadratic_smoothing_is_not_sparsemap() -> None:
    torch.manual_seed(2)
    structure, lengths = MonotoneAlignment(), torch.tensor([[4, 4]])
    scores = 0.3 * torch.randn(1, 4, 4, dtype=torch.float64)
    smooth = smoothed_expectation(structure, scores, lengths, "quadratic")
    sparse = structure.sparsemap(scores, lengths).mean
    assert (smooth - sparse).abs().max() > 0.05
    # Quadratic smoothing gives zeros, and entropic smoothing does not.
    sharp = smoothed_expectation(structure, 10 * scores, lengths, "quadratic")
    assert (sharp == 0).any() and (structure.marginals(10 * scores, lengths) > 0).all()


@EACH
@BOTH
def test_fenchel_young_losses(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    given = scores.clone().requires_grad_()
    gold = structure.map(torch.randn_like(scores), lengths)
    loss = fenchel_young_loss(structure, given, gold, lengths, regularizer)  # type: ignore[arg-type]
    assert (loss >= -1e-12).all()
    (gradient,) = torch.autograd.grad(loss.sum(), given)
    mean = smoothed_expectation(structure, scores, lengths, regularizer)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient, mean - gold)
    if regularizer == "entropic":
        torch.testing.assert_close(loss, -structure.log_prob(gold, scores, lengths))


DRAWS = 4000


def samples(
    structure: Structure,
    scores: Tensor,
    lengths: Tensor,
    regularizer: str,
    count: int = DRAWS,
    gamma: float = 0.9,
) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return smoothed_sample(structure, scores, lengths, regularizer, gamma, count, generator)  # type: ignore[arg-type]


def differ(found: Tensor, expected: Tensor) -> Tensor:
    """Return a mask of the frequencies that are more than five standard errors from their
    probability.
    """
    error = (expected * (1 - expected)).clamp_min(0.0).div(DRAWS).sqrt()
    return (found - expected).abs() > 5 * error + 1.0 / DRAWS


@pytest.mark.parametrize("tie", [False, True])
@EACH
@BOTH
def test_samples_have_the_expected_structure_as_their_mean(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str, tie: bool
) -> None:
    scores = 0.0 * scores if tie else scores
    z = samples(structure, scores, lengths, regularizer)
    expected = smoothed_expectation(structure, scores, lengths, regularizer, 0.9)  # type: ignore[arg-type]
    assert not differ(z.mean(0), expected).any() and not z.requires_grad
    assert not z[:, expected == 0].any()
    for b in range(len(lengths)):
        assert structure.contains(
            z[:, b], lengths[b : b + 1].expand(DRAWS, *lengths.shape[1:])
        ).all()


@EACH
def test_samples_of_the_entropic_walk_have_a_gibbs_distribution(
    structure: Structure, scores: Tensor, lengths: Tensor
) -> None:
    z = samples(structure, scores, lengths, "entropic", gamma=1.0)
    best = structure.top_k(scores, lengths, 400)
    p = structure.log_prob(best.z, scores, lengths).exp()
    p = torch.where(best.scores.isneginf(), 0.0, p)
    # Every structure is listed if there are fewer than 400.
    whole = best.scores[-1].isneginf()
    assert whole.any()
    torch.testing.assert_close(p.sum(0)[whole], torch.ones(int(whole.sum()), dtype=p.dtype))
    same = torch.stack([(z == one).flatten(2).all(2).double().mean(0) for one in best.z])
    assert not differ(same, p)[~best.scores.isneginf()].any()


def test_samples_of_the_quadratic_walk_have_the_products_of_their_steps() -> None:
    """The probability of each path is the product of its steps, with the last tag drawn first."""
    torch.manual_seed(6)
    scores = torch.randn(1, 3, 2, 2, dtype=torch.float64).clamp(-0.6, 0.6)
    operator = maximum("quadratic", 1.0)
    reach, steps = scores[0, 0, 0], []
    for block in scores[0, 1:]:
        ways = reach[:, None] + block
        steps.append(project_simplex(ways.T))
        reach = operator(ways.T)
    last = project_simplex(reach)
    z = samples(LinearChain(), scores, torch.tensor([3]), "quadratic", gamma=1.0)
    tags = z[:, 0].sum(2).argmax(2)
    impossible = 0
    for path in product(range(2), repeat=3):
        p = last[path[2]] * steps[1][path[2], path[1]] * steps[0][path[1], path[0]]
        found = (tags == torch.tensor(path)).all(1).double().mean()
        assert not differ(found, p)
        impossible += int(p == 0.0)
    assert 0 < impossible < 5


def test_a_choice_without_probability_is_never_drawn() -> None:
    """A score that is γ below the best is never drawn, at any place in the row."""
    scores = torch.tensor([[[-1.0, 0.0, -1.0, 0.0, -1.0]]], dtype=torch.float64)
    z = samples(TagSequence(), scores, torch.tensor([1]), "quadratic", gamma=1.0)
    assert z[:, 0, 0].sum(0)[[0, 2, 4]].sum() == 0 and not differ(
        z[:, 0, 0, 1].mean(), z.new_tensor(0.5)
    )


def test_samples_repeat_with_their_generator_alone() -> None:
    torch.manual_seed(1)
    structure, scores, lengths = LinearChain(), torch.randn(2, 4, 3, 3), torch.tensor([4, 1])
    first = samples(structure, scores, lengths, "quadratic", 20)
    torch.testing.assert_close(samples(structure, scores, lengths, "quadratic", 20), first)
    with torch.inference_mode():
        torch.testing.assert_close(samples(structure, scores, lengths, "quadratic", 20), first)
    low = samples(structure, scores.bfloat16(), lengths, "quadratic", 20)
    assert low.dtype == torch.bfloat16 and first.dtype == torch.float32
    both = [smoothed_sample(structure, scores, lengths, "quadratic", 4.0, 20) for _ in range(2)]
    assert not torch.equal(*both)


def test_samples_of_nothing() -> None:
    """A batch without items, without positions or with lengths of 0 has one empty structure per
    item.
    """
    for shape, lengths in (
        ((0, 2, 3, 3), torch.zeros(0, dtype=torch.long)),
        ((2, 0, 3, 3), torch.tensor([0, 0])),
        ((2, 2, 3, 3), torch.tensor([0, 0])),
    ):
        z = samples(LinearChain(), torch.randn(shape), lengths, "quadratic", 3)
        assert z.shape == (3, *shape) and not z.any()


def recursion(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str, gamma: float
) -> Tensor:
    """Run the recursion of the definition, in operations of torch."""
    masked, lengths = structure.masked(scores, lengths)
    return structure.smoothed_maximum(masked, lengths, maximum(regularizer, gamma))  # type: ignore[attr-defined,arg-type]


def derivatives(
    function: Callable[..., Tensor], scores: Tensor, *arguments: object
) -> tuple[Tensor, ...]:
    """Return the values, the gradient of a weighted sum of them, and its Hessian times a vector."""
    leaf = scores.clone().requires_grad_()
    value = function(arguments[0], leaf, *arguments[1:])
    weights = torch.arange(1, len(value) + 1).to(value)
    (gradient,) = torch.autograd.grad((weights * value).sum(), leaf, create_graph=True)
    along = torch.arange(scores.numel()).view(scores.shape).to(scores).sin()
    (product,) = torch.autograd.grad((along * gradient).sum(), leaf)
    return value, gradient, product


@BOTH
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("forbids", [False, True])
def test_kernels_do_what_the_recursion_says(regularizer: str, scale: float, forbids: bool) -> None:
    torch.manual_seed(3)
    lengths = torch.tensor([9, 1, 0, 4, 8])
    sizes = torch.tensor([[9, 7], [1, 4], [0, 2], [6, 6], [3, 1]])
    chain = scale * torch.randn(5, 9, 6, 6, dtype=torch.float64)
    cells = scale * torch.randn(5, 9, 7, dtype=torch.float64)
    if forbids:
        # Two in three transitions are forbidden, except the transitions of one path.
        chain = torch.where(torch.rand_like(chain) < 0.66, -torch.inf, chain)
        chain[..., 0, 0] = -scale
        cells = torch.where(torch.rand_like(cells) < 0.3, -torch.inf, cells)
        finite = scale * torch.randn(5, 9, 7, dtype=torch.float64)
        border = torch.tensor([[i in (0, 5) or j in (0, 5) for j in range(7)] for i in range(9)])
        cells = torch.where(border, finite, cells)
    tags = TagSequence().bind(chain[0, 1], chain[0, 0, 0], chain[0, 2, 0])
    emissions = scale * torch.randn(5, 9, 6, dtype=torch.float64)
    for structure, scores, given in (
        (LinearChain(), chain, lengths),
        (tags, emissions, lengths),
        (MonotoneAlignment(), cells, sizes),
        (MonotoneAlignment(window=3), torch.nan_to_num(cells, neginf=-9.0), sizes),
    ):
        for gamma in (1.0, 0.4):
            arguments = structure, given, regularizer, gamma
            found = derivatives(smoothed_value, scores, *arguments)
            expected = derivatives(recursion, scores, *arguments)
            for own, other in zip(found, expected):
                torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)
            low = derivatives(smoothed_value, scores.float(), *arguments)
            assert all(own.dtype == torch.float32 for own in low)
            torch.testing.assert_close(low[1].double(), found[1], rtol=0.0, atol=2e-4 * scale)


def test_scores_of_neighbours_have_their_gradients() -> None:
    torch.manual_seed(5)
    scores, lengths = torch.randn(2, 5, 3, dtype=torch.float64), torch.tensor([5, 3])
    bound = [torch.randn(*s, 3, dtype=torch.float64).requires_grad_() for s in ((3,), (), ())]

    def value(*bound: Tensor) -> Tensor:
        return smoothed_value(TagSequence().bind(*bound), scores, lengths, "quadratic", 0.7)

    assert torch.autograd.gradcheck(value, bound)
    assert torch.autograd.gradgradcheck(value, bound)


def test_scores_as_large_as_the_threshold() -> None:
    """Rounding decides whether such a tag has a share. The search still ends, shares sum to 1."""
    generator = np.random.default_rng(0)
    rows = np.full((1000, 12), -2.0)
    rows[:, 0], rows[:, 1:7] = 0.0, -0.6 * generator.random((1000, 6))
    for row in rows:
        ordered = np.sort(row[:7])[::-1]
        thresholds = (ordered.cumsum() - 1.0) / np.arange(1, 8)
        threshold = thresholds[ordered > thresholds][-1]
        towards = generator.choice([-10.0, threshold, 10.0])
        row[7 : generator.integers(8, 12)] = np.nextafter(threshold, towards)
    scores = torch.zeros(1000, 2, 12, 12, dtype=torch.float64)
    scores[:, 0, 0] = torch.from_numpy(rows)
    mean = smoothed_expectation(LinearChain(), scores, torch.full((1000,), 2), "quadratic")
    shares = project_simplex(torch.from_numpy(rows))
    torch.testing.assert_close(mean[:, 0, 0], shares, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(mean[:, 1].sum(2), shares, rtol=0.0, atol=1e-10)
    whole = torch.randint(-2, 3, (50, 4, 5, 5), generator=torch.Generator().manual_seed(0))
    arguments = LinearChain(), torch.full((50,), 4), "quadratic", 1.0
    found, expected = (
        derivatives(function, whole.double(), *arguments)
        for function in (smoothed_value, recursion)
    )
    torch.testing.assert_close(found[:2], expected[:2], rtol=0.0, atol=1e-10)


class Numbers(TorchDispatchMode):
    """A mode that counts the elements that operations of torch write."""

    count = 0

    def __torch_dispatch__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))  # type: ignore[operator]
        # Views write nothing.
        if isinstance(result, Tensor) and not result._is_view():
            self.count += result.numel()
        return result


@pytest.mark.parametrize(
    "structure",
    [
        LinearChain(),
        TagSequence(),
        MonotoneAlignment(),
        MonotoneAlignment("needleman_wunsch"),
        SemiMarkov(),
        Runs(),
    ],
    ids=str,
)
def test_work_grows_with_the_number_of_parts(structure: Structure) -> None:
    """The work of the recursion and its gradient is linear in the number of parts.

    The gradient of an index into all scores, at each step, would be as large as the scores.
    """
    counts, parts = [], []
    for n in (10, 20, 40):
        square = isinstance(structure, MonotoneAlignment)
        shape = (n, n) if square else (n, 3, 3)[: structure.part_axes]
        scores = torch.randn(1, *shape, requires_grad=True)
        lengths = torch.tensor([[n, n]] if square else [n])
        with Numbers() as numbers:
            recursion(structure, scores, lengths, "quadratic", 1.0).sum().backward()
        counts.append(numbers.count)
        parts.append(scores.numel())
    for (few, many), (before, after) in zip(zip(counts, counts[1:]), zip(parts, parts[1:])):
        assert many / few < 1.2 * after / before


def test_padding_is_not_read_and_bad_input_is_named() -> None:
    structure, lengths = MonotoneAlignment(), torch.tensor([[2, 2], [3, 3]])
    scores = torch.randn(2, 3, 3, dtype=torch.float64)
    scores[0, 2], scores[0, :, 2] = torch.nan, torch.nan
    given = scores.clone().requires_grad_()
    smoothed_value(structure, given, lengths, "quadratic").sum().backward()
    assert torch.isfinite(given.grad).all() and not given.grad[0, 2].any()
    scores[1, 0, 0] = torch.inf
    with pytest.raises(InvalidScores, match=r"\[1\]"):
        smoothed_value(structure, scores, lengths)
    scores[1, 0, 0] = -torch.inf
    with pytest.raises(InfeasibleError) as caught:
        smoothed_value(structure, scores, lengths)
    assert caught.value.items == [1]
    with pytest.raises(InfeasibleError) as caught:
        smoothed_sample(structure, scores, lengths, num_samples=3)
    assert caught.value.items == [1]
    for function in (smoothed_value, smoothed_sample):
        with pytest.raises(InvalidScores, match="gamma"):
            function(structure, scores, lengths, gamma=0.0)
    with pytest.raises(InvalidScores, match="num_samples"):
        smoothed_sample(structure, scores, lengths, num_samples=0)


def test_structures_show_their_settings_alone() -> None:
    shown = repr(MonotoneAlignment("needleman_wunsch"))
    assert shown == "MonotoneAlignment(moves='needleman_wunsch', window=None)"


def test_structures_without_a_recursion_are_refused() -> None:
    with pytest.raises(IncompatiblePair, match=r"SmoothedDP.*SpanningTree"):
        SmoothedDP().check(SpanningTree())
    for function in (smoothed_value, smoothed_sample):
        with pytest.raises(NotTractable):
            function(SpanningTree(), torch.zeros(1, 2, 2), torch.tensor([1]))


@EACH
@BOTH
def test_losses_are_exact_beside_what_all_structures_have_in_common(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    # Totals are about 5e4, so single precision leaves three digits for their differences.
    parts = structure.part_mask(scores, lengths)
    given = torch.where(parts, 8192.0 + scores.float(), scores.float())
    gold = structure.map(torch.randn_like(given), lengths)
    found = fenchel_young_loss(structure, given, gold, lengths, regularizer)  # type: ignore[arg-type]
    assert found.dtype == given.dtype
    exact = fenchel_young_loss(structure, given.double(), gold.double(), lengths, regularizer)  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)


@EACH
@BOTH
def test_a_hook_on_the_scores_changes_their_gradient_alone(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    expected = smoothed_expectation(structure, scores, lengths, regularizer)
    calls: list[Tensor] = []
    leaf = scores.clone().requires_grad_()
    watched = leaf * 1
    watched.register_hook(lambda gradient: calls.append(gradient) or 3 * gradient)
    found = smoothed_expectation(structure, watched, lengths, regularizer)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    plain = scores.clone().requires_grad_()
    smoothed_expectation(structure, plain, lengths, regularizer).square().sum().backward()
    assert len(calls) == 1 and leaf.grad is not None and plain.grad is not None
    torch.testing.assert_close(leaf.grad, 3 * plain.grad)


@EACH
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_are_kept(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str, dtype: torch.dtype
) -> None:
    given = scores.to(dtype)
    for function in (smoothed_value, smoothed_expectation):
        found = function(structure, given, lengths, regularizer)
        assert found.dtype == dtype
        expected = function(structure, given.double(), lengths, regularizer).to(dtype)
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@EACH
@BOTH
def test_transforms_of_torch_func(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    several, along = torch.stack([scores, 2 * scores]), torch.ones_like(scores)

    def value(given: Tensor) -> Tensor:
        return smoothed_value(structure, given, lengths, regularizer)

    def expectation(given: Tensor) -> Tensor:
        return smoothed_expectation(structure, given, lengths, regularizer)

    means = torch.stack([expectation(each) for each in several])
    torch.testing.assert_close(
        torch.func.vmap(value)(several), torch.stack([value(each) for each in several])
    )
    torch.testing.assert_close(torch.func.vmap(expectation)(several), means)
    slopes = torch.func.vmap(torch.func.grad(lambda given: value(given).sum()))(several)
    torch.testing.assert_close(slopes, means)
    try:
        moved = torch.func.jvp(expectation, (scores,), (along,))[1]
    except NotDifferentiable:
        return
    leaf = scores.clone().requires_grad_()
    # The Hessian is symmetric.
    (expected,) = torch.autograd.grad((expectation(leaf) * along).sum(), leaf)
    torch.testing.assert_close(moved, expected)


@EACH
@BOTH
def test_an_empty_batch_has_a_gradient(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    leaf = scores[:0].clone().requires_grad_()
    for function in (smoothed_value, smoothed_expectation):
        function(structure, leaf, lengths[:0], regularizer).sum().backward()
        assert leaf.grad is not None and leaf.grad.shape == leaf.shape


@pytest.mark.parametrize("structure", [LinearChain(), Runs(2, 1)], ids=repr)
def test_the_expected_structure_trains_in_compiled_code(structure: Structure) -> None:
    scores = torch.randn(2, *((4, 2, 2) if structure.part_axes == 3 else (4,)))
    lengths, up = torch.tensor([4, 2]), torch.randn(scores.shape)

    def loss(given: Tensor) -> Tensor:
        return (smoothed_expectation(structure, 1.5 * given, lengths, "quadratic") * up).sum()

    torch._dynamo.reset()
    run = torch.compile(loss, backend="aot_eager")
    slopes = []
    for function in (loss, run):
        leaf = scores.clone().requires_grad_()
        slopes += torch.autograd.grad(function(leaf), leaf)
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(run(scores), loss(scores))
