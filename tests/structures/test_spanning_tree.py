from __future__ import annotations

import multiprocessing
import threading
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.kernels.arborescences import matrix_tree
from spacy_latent.kernels.arborescences.escape_sums import ESCAPES
from spacy_latent.kernels.core.status import FEASIBLE, UNSOLVED
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.enumeration import arcs, dependency_trees


@cache
def trees_of(constraints: tuple, n: int) -> Tensor:
    return torch.from_numpy(np.stack([arcs(h) for h in dependency_trees(n, False, *constraints)]))


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients(single_root: bool, scale: float) -> None:
    structure = SpanningTree(single_root)
    torch.manual_seed(1)
    lengths = torch.tensor([4, 2, 0])
    scores = torch.randn(3, 5, 5, dtype=torch.float64) * scale
    if scale > 1:
        # Tokens 1 and 2 prefer each other. The other scores are moderate, so several trees have
        # weight.
        scores = torch.randn(3, 5, 5, dtype=torch.float64)
        scores[:, 1, 2] += scale * 2
        scores[:, 2, 1] += scale * 2
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: structure.marginals(s, lengths), scores)
    assert torch.autograd.gradgradcheck(lambda s: structure.log_partition(s, lengths), scores)


def laplacian_log_determinant(scores: np.ndarray) -> mpmath.mpf:
    mpmath.mp.dps = 60
    n = len(scores) - 1
    matrix = mpmath.matrix(n, n)
    for modifier in range(1, n + 1):
        for head in range(n + 1):
            if head != modifier:
                weight = mpmath.exp(mpmath.mpf(float(scores[head, modifier])))
                matrix[modifier - 1, modifier - 1] += weight
                if head:
                    matrix[head - 1, modifier - 1] -= weight
    return mpmath.log(mpmath.det(matrix))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_log_partition_against_sixty_digits(scale: float) -> None:
    scores = np.random.default_rng(2).normal(size=(16, 16)) * scale
    expected = float(laplacian_log_determinant(scores))
    lengths = torch.tensor([15])
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        given = torch.from_numpy(scores)[None].to(dtype)
        found = SpanningTree().log_partition(given, lengths).item()
        assert found == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_long_sentences_stay_distributions(single_root: bool, scale: float) -> None:
    torch.manual_seed(3)
    structure = SpanningTree(single_root)
    scores = torch.randn(1, 201, 201, dtype=torch.float64) * scale
    lengths = torch.tensor([200])
    marginals = structure.marginals(scores, lengths)
    assert (marginals >= 0).all() and (marginals <= 1 + 1e-9).all()
    torch.testing.assert_close(marginals.sum(1)[0, 1:], torch.ones(200, dtype=torch.float64))
    if single_root:
        assert marginals[0, 0].sum().item() == pytest.approx(1.0)
    best = structure.map(scores, lengths)
    value = (best * scores).sum().item()
    assert structure.log_partition(scores, lengths).item() >= value - 1e-9 * abs(value)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_samples_have_the_marginals(single_root: bool, scale: float) -> None:
    structure = SpanningTree(single_root)
    torch.manual_seed(4)
    scores = torch.randn(2, 5, 5, dtype=torch.float64) * scale
    # Tokens 1 and 2 prefer each other.
    scores[1, 1, 2] = scores[1, 2, 1] = 60.0
    lengths = torch.tensor([4, 3])
    samples = structure.sample(scores, lengths, 4000, torch.Generator().manual_seed(0))
    # Four standard errors of a share over 4000 draws are at most 0.032.
    difference = samples.mean(0) - structure.marginals(scores, lengths)
    assert difference.abs().max() < 0.032
    allowed = {tuple(t.flatten().tolist()) for t in trees_of((single_root, "any", None), 4)}
    assert all(tuple(s[0].flatten().tolist()) in allowed for s in samples[:200])
    again = structure.sample(scores, lengths, 4000, torch.Generator().manual_seed(0))
    assert torch.equal(samples, again)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("kind", ["normal", "ties", "pair", "forbidden", "underflow", "roots"])
def test_samples_have_the_distribution_of_trees(single_root: bool, kind: str) -> None:
    structure, draws = SpanningTree(single_root), 20_000
    torch.manual_seed(5)
    for n in (1, 2, 3, 4):
        scores = torch.randn(1, n + 1, n + 1, dtype=torch.float64)
        if kind == "ties":
            scores = scores.round()
        if kind == "pair" and n > 1:
            scores[0, 1, 2] = scores[0, 2, 1] = 30.0
        if kind == "forbidden" and n > 2:
            scores[0, 1, 2] = scores[0, 0, n] = -torch.inf
        if kind == "underflow" and n > 2:
            # All tokens except one prefer heads in a cycle, by more than float64 can represent.
            scores[0, :, 1:n] -= 2000.0
            for token in range(1, n):
                scores[0, token % (n - 1) + 1, token] += 2000.0
        if kind == "roots":
            # Weights of the root that nearly underflow, and differ.
            scores[0, 0] -= 706.0 + torch.arange(n + 1)
        lengths = torch.tensor([n])
        samples = structure.sample(scores, lengths, draws, torch.Generator().manual_seed(n))
        trees = trees_of((single_root, "any", None), n)
        weights = (trees * scores[0].clamp_min(-1e9)).sum((1, 2))
        expected = torch.softmax(weights, 0)
        same = (samples[:, 0].to(trees)[:, None] == trees[None]).all(-1).all(-1)
        assert same.any(1).all()
        shares = same.double().mean(0)
        # Five standard errors, for at most 125 trees.
        error = (expected * (1 - expected) / draws).sqrt()
        assert ((shares - expected).abs() <= 5 * error + 1e-4).all()


def test_samples_of_long_texts_whose_tokens_prefer_each_other() -> None:
    # Three words repeat, and each strongly prefers one of the others as head. Independently chosen
    # heads are rarely a tree.
    scores = torch.zeros(1, 91, 91, dtype=torch.float64)
    word = torch.arange(91) % 3
    scores[0, (word[:, None] + 1) % 3 == word] = 25.0
    scores[0, 0] = -25.0
    lengths = torch.tensor([90])
    samples = SpanningTree().sample(scores, lengths, 400, torch.Generator().manual_seed(0))
    for sample in samples[:, 0]:
        heads = sample.argmax(0)
        above = torch.arange(91)
        for _ in range(90):
            above = torch.where(above > 0, heads[above], 0)
        assert (sample.sum(0)[1:] == 1).all() and (above == 0).all()
    expected = SpanningTree().marginals(scores, lengths)[0]
    # Five standard errors. Independent heads would have the same shares for most words, but no
    # root.
    error = (expected * (1 - expected) / 400).sqrt()
    assert ((samples[:, 0].mean(0) - expected).abs() <= 5 * error + 1e-3).all()
    assert (samples[:, 0, 0].sum(1) >= 1).all()


def test_samples_are_refused_where_some_token_cannot_be_reached() -> None:
    scores = torch.zeros(2, 5, 5)
    # Tokens 1 and 2 can only head each other.
    scores[1, [0, 3, 4], 1:3] = -torch.inf
    with pytest.raises(InfeasibleError, match="item"):
        SpanningTree().sample(scores, torch.tensor([4, 4]))


def test_many_python_threads_at_once() -> None:
    torch.manual_seed(6)
    structure = SpanningTree()
    scores, lengths = torch.randn(32, 41, 41), torch.full((32,), 40)
    expected = structure.map(scores, lengths)
    wrong: list[int] = []

    def work(number: int) -> None:
        if not torch.equal(structure.map(scores, lengths), expected):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive()
    assert not wrong


def _solve_in_child(queue: multiprocessing.Queue) -> None:
    queue.put(_solve())


def _solve() -> float:
    torch.manual_seed(7)
    scores, lengths = torch.randn(64, 41, 41), torch.full((64,), 40)
    return float((SpanningTree().map(scores, lengths) * scores).sum())


def test_works_after_fork() -> None:
    expected = _solve()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_solve_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=300) == pytest.approx(expected)
    child.join(timeout=300)


def test_wrong_input_is_refused() -> None:
    structure, scores = SpanningTree(), torch.zeros(2, 4, 4)
    lengths = torch.tensor([3, 3])
    for bad, match in (
        ((scores.int(), lengths), "float"),
        ((scores, torch.tensor([3, 4])), "0 to 3"),
        ((scores, torch.tensor([-1, 3])), "-1"),
        ((scores, torch.tensor([3])), "shape"),
        ((scores[:, :, :3], lengths), "N\\+1"),
        ((scores[0], lengths), "shape"),
        ((scores, lengths.float()), "int64"),
    ):
        with pytest.raises(InvalidScores, match=match):
            structure.map(*bad)
    with pytest.raises(InvalidScores, match="direction"):
        SpanningTree(direction="sideways")  # type: ignore[arg-type]
    with pytest.raises(InvalidScores, match="max_arc_length"):
        SpanningTree(max_arc_length=0)


def test_extreme_but_finite_scores() -> None:
    lengths = torch.tensor([3])
    for value in (1e30, -1e30, 1e-30, 1e-310):
        scores = torch.full((1, 4, 4), value, dtype=torch.float64)
        assert SpanningTree().map(scores, lengths).sum() == 3
        assert SpanningTree().marginals(scores, lengths).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_score_far_below_the_others_does_not_blur_the_single_root(dtype: torch.dtype) -> None:
    structure, trees = SpanningTree(single_root=True), trees_of((True, "any", None), 4)
    generator, lengths = np.random.default_rng(0), torch.tensor([4])
    for masked in (-1e15, -1e30, torch.finfo(dtype).min):
        for _ in range(40):
            scores = torch.from_numpy(generator.normal(size=(1, 5, 5))).to(dtype)
            scores[0, 3, 2] = masked
            totals = (trees * scores.double()).sum((-1, -2))
            torch.testing.assert_close(
                structure.map(scores, lengths)[0], trees[totals.argmax()].to(dtype)
            )


def exact(
    scores: np.ndarray, along: np.ndarray | None = None, single_root: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return marginals, and the product of the Hessian with ``along``, in 250 digits.

    They come from the inverse of the Laplacian. For a single root, all root arcs have a weight of
    nearly 0.
    """
    mpmath.mp.dps = 250
    n = len(scores) - 1
    weights, change = mpmath.matrix(n + 1, n + 1), mpmath.matrix(n + 1, n + 1)
    laplacian, its_change = mpmath.matrix(n, n), mpmath.matrix(n, n)
    for modifier in range(1, n + 1):
        for head in range(n + 1):
            if head != modifier and scores[head, modifier] > -np.inf:
                weight = mpmath.exp(mpmath.mpf(float(scores[head, modifier])))
                if single_root and head == 0:
                    weight *= mpmath.mpf(10) ** -80
                weights[head, modifier] = weight
                if along is not None:
                    change[head, modifier] = weight * mpmath.mpf(float(along[head, modifier]))
                for matrix, value in ((laplacian, weight), (its_change, change[head, modifier])):
                    matrix[modifier - 1, modifier - 1] += value
                    if head:
                        matrix[head - 1, modifier - 1] -= value
    inverse = laplacian**-1
    moved = -(inverse * its_change * inverse) if along is not None else inverse
    marginals, product_ = np.zeros((n + 1, n + 1)), np.zeros((n + 1, n + 1))
    for modifier in range(1, n + 1):
        for head in range(n + 1):
            value, rate = inverse[modifier - 1, modifier - 1], moved[modifier - 1, modifier - 1]
            if head:
                value -= inverse[modifier - 1, head - 1]
                rate -= moved[modifier - 1, head - 1]
            weight = weights[head, modifier]
            marginals[head, modifier] = float(weight * value)
            product_[head, modifier] = float(change[head, modifier] * value + weight * rate)
    return marginals, product_


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 5.0, 20.0, 40.0])
def test_marginals_keep_their_digits_however_small(scale: float, single_root: bool) -> None:
    structure, smallest = SpanningTree(single_root), 1.0
    for n in (1, 3, 6, 8, 9, 17):
        scores = np.random.default_rng(n).normal(size=(n + 1, n + 1)) * scale
        for given, tolerance in ((scores, 1e-12), (scores.astype(np.float32), 1e-6)):
            expected, _ = exact(given, None, single_root)
            found = structure.marginals(torch.from_numpy(given)[None], torch.tensor([n]))[0]
            # Values below the range of float32 are 0 there.
            least = 1e-37 if given.dtype == np.float32 else 0.0
            large = expected > least
            np.testing.assert_allclose(found.numpy()[large], expected[large], rtol=tolerance)
            assert (found.numpy()[~large] <= least).all()
            smallest = min(smallest, expected[expected > 0.0].min())
    assert scale < 20 or smallest < 1e-30


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0, 40.0])
def test_products_against_many_digits(scale: float, dtype: torch.dtype, single_root: bool) -> None:
    """Lengths differ. At the larger scales some items are solved by elimination."""
    structure, generator = SpanningTree(single_root), np.random.default_rng(9)
    lengths = torch.tensor([12, 3, 9, 1, 12, 8, 0, 7])
    given = torch.full((len(lengths), 14, 14), torch.nan, dtype=dtype)
    along = torch.zeros_like(given)
    for item, n in enumerate(lengths.tolist()):
        inside = (item, slice(0, n + 1), slice(0, n + 1))
        given[inside] = torch.from_numpy(generator.normal(size=(n + 1, n + 1)) * scale).to(dtype)
        along[inside] = torch.from_numpy(generator.normal(size=(n + 1, n + 1))).to(dtype)
    given.requires_grad_()
    marginals = structure.marginals(given, lengths)
    (found,) = torch.autograd.grad(marginals, given, along, retain_graph=True)
    (again,) = torch.autograd.grad(marginals, given, along)
    assert torch.equal(found, again)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-11
    for item, n in enumerate(lengths.tolist()):
        inside = (item, slice(0, n + 1), slice(0, n + 1))
        if n == 0:
            assert not marginals[item].any() and not found[item].any()
            continue
        own = given.detach()[inside].numpy(), along[inside].numpy()
        expected, expected_product = exact(*own, single_root)
        size = np.s_[: n + 1, : n + 1]
        for values, right in ((marginals.detach(), expected), (found, expected_product)):
            rest = values[item].numpy().copy()
            np.testing.assert_allclose(rest[size], right, rtol=0.0, atol=tolerance)
            rest[size] = 0.0
            assert not rest.any()


def of_pairs(n: int, gap: float) -> np.ndarray:
    """Return scores of n tokens in pairs. The tokens of a pair prefer each other as heads."""
    scores = np.random.default_rng(n).normal(size=(n + 1, n + 1))
    first = np.arange(1, n, 2)
    scores[first, first + 1] += gap
    scores[first + 1, first] += gap
    return scores


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("gap, roots", [(60.0, 17), (60.0, 1), (180.0, 17)])
def test_pairs_that_prefer_each_other_need_no_logarithms(
    gap: float, roots: int, single_root: bool
) -> None:
    """Independently chosen heads are a tree with a probability of about 1e-200 or less."""
    n, structure = 17, SpanningTree(single_root)
    scores, along = of_pairs(n, gap), np.random.default_rng(0).normal(size=(n + 1, n + 1))
    scores[0, 1 : n + 1 - roots] = -np.inf
    expected, expected_product = exact(scores, along, single_root)
    given, lengths = torch.from_numpy(scores)[None].requires_grad_(), torch.tensor([n])
    marginals = structure.marginals(given, lengths)
    (found,) = torch.autograd.grad(marginals, given, torch.from_numpy(along)[None])
    # Entries of 0 differ slightly from 0 in 250 digits.
    found_marginals = marginals.detach()[0].numpy()
    np.testing.assert_allclose(found_marginals, expected, rtol=1e-12, atol=1e-140)
    np.testing.assert_allclose(found[0].numpy(), expected_product, rtol=0.0, atol=1e-12)
    (gradient,) = torch.autograd.grad(structure.log_partition(given, lengths).sum(), given)
    torch.testing.assert_close(gradient, marginals)
    for family in (matrix_tree.sum_by_escapes, matrix_tree.sum_over_trees):
        what = int(family is matrix_tree.sum_by_escapes)
        status, value = np.zeros(1, dtype=np.int8), np.zeros(1)
        family(
            *(0, 1, np.zeros(1, dtype=np.int64)),
            *((scores[None], lengths.numpy(), (0, -1, int(single_root))), scores[None], what),
            (value, np.zeros((1, n + 1, n + 1)), np.zeros((1, 0)), status),
        )
        assert status[0] == FEASIBLE
        total = structure.log_partition(given.detach(), lengths)
        np.testing.assert_allclose(value, total, rtol=1e-14)


def test_weights_that_are_lost_are_still_counted_by_logarithms() -> None:
    """Every tree has an arc from outside into each pair, and some of these weights underflow."""
    n = 8
    scores = of_pairs(n, 500.0)
    scores[1:, 5] -= 400.0
    scores[6, 5] += 400.0
    expected, _ = exact(scores)
    found = SpanningTree().marginals(torch.from_numpy(scores)[None], torch.tensor([n]))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("single_root", [False, True])
def test_cycles_within_cycles_that_are_hardly_ever_left(single_root: bool) -> None:
    """All tokens have the same best heads, so cycles are nested, and pivots of 1e-100 or less
    follow each other.

    A scorer that multiplies features of head and modifier may learn such scores.
    """
    generator, size, n = np.random.default_rng(0), 4000, 10
    heads, modifiers = generator.normal(size=(size, n + 1, 1)), generator.uniform(1, 6, n + 1)
    heads[:, 0] = -0.05
    scores = 150.0 * heads * modifiers
    along = generator.normal(size=scores.shape)
    given, lengths = torch.from_numpy(scores).requires_grad_(), torch.full((size,), n)
    structure = SpanningTree(single_root)
    log_partition = structure.log_partition(given, lengths)
    marginals = structure.marginals(given, lengths)
    (product_,) = torch.autograd.grad(marginals, given, torch.from_numpy(along))
    found, status = np.empty(size), np.empty(size, np.int8)
    for what, result in ((1, marginals), (2, product_)):
        expected = np.empty_like(scores)
        matrix_tree.sum_by_logarithms(
            *(0, size, np.arange(size)),
            *((scores, lengths.numpy(), (0, -1, int(single_root))), along, what),
            (found, expected, np.empty((size, 0)), status),
        )
        np.testing.assert_allclose(result.detach().numpy(), expected, rtol=0.0, atol=1e-9)
        np.testing.assert_allclose(log_partition.detach().numpy(), found, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("single_root", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [5.0, 20.0, 40.0])
def test_products_by_escapes_and_by_elimination_agree(
    scale: float, dtype: type, single_root: int
) -> None:
    generator, size = np.random.default_rng(0), 64
    for n in (12, 50):
        scores = (generator.normal(size=(size, n + 1, n + 1)) * scale).astype(dtype)
        along = generator.normal(size=scores.shape).astype(dtype)
        status = np.full(size, UNSOLVED, np.int8)
        first, second = np.zeros_like(scores), np.zeros_like(scores)
        batch = (scores, np.full(size, n), (0, -1, single_root))
        given = 0, size, np.arange(size), batch, along, 2
        nothing = np.empty((size, 0))
        matrix_tree.sum_by_escapes(*given, (np.empty(size), first, nothing, status))
        solved = status == FEASIBLE
        assert solved.mean() > (0.3 if scale < 30 else 0.1)
        matrix_tree.sum_over_trees(*given, (np.empty(size), second, nothing, status))
        solved &= status == FEASIBLE
        tolerance = 1e-7 if dtype == np.float32 else 4e-12
        np.testing.assert_allclose(
            first[solved], second[solved], rtol=2e-7 if dtype == np.float32 else 0.0, atol=tolerance
        )


@pytest.mark.parametrize("single_root", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
def test_nothing_is_worked_out_twice_where_trained_scorers_are(
    scale: float, single_root: int
) -> None:
    torch.manual_seed(0)
    scores = (torch.randn(32, 51, 51) * scale).numpy()
    batch = (scores, np.full(32, 50), (0, -1, single_root))
    kept = torch.empty(32, matrix_tree.kept_size(50), dtype=torch.float64).numpy()
    status = np.full(32, UNSOLVED, np.int8)
    results = (np.empty(32), np.empty_like(scores), kept, status)
    nothing = np.empty((0, 0, 0), np.float32)
    matrix_tree.sum_by_escapes(0, 32, np.arange(32), batch, nothing, 1, results)
    assert (status == FEASIBLE).all()
    # Most items save their escape probabilities, so the gradient does not compute them again.
    assert (kept[:, 0] == ESCAPES).mean() > 0.9


@pytest.mark.parametrize("n", [2, 7, 8, 9, 30, 33, 50])
def test_a_token_that_only_one_can_head_changes_nothing(n: int) -> None:
    """A token with a single possible head, and no modifiers, changes no other marginals."""
    torch.manual_seed(n)
    scores = torch.randn(1, n + 2, n + 2, dtype=torch.float64)
    more = scores.clone()
    more[0, :, n + 1] = more[0, n + 1] = -torch.inf
    more[0, n, n + 1] = 0.0
    scores[0, n + 1] = scores[0, :, n + 1] = 0.0
    upstream = torch.randn_like(scores)
    upstream[0, n + 1] = upstream[0, :, n + 1] = 0.0
    results = []
    for given, length in ((scores, n), (more, n + 1)):
        given.requires_grad_()
        marginals = SpanningTree().marginals(given, torch.tensor([length]))
        (product,) = torch.autograd.grad(marginals, given, upstream)
        results.append((marginals[0, : n + 1, : n + 1], product[0, : n + 1, : n + 1]))
    for first, second in zip(*results):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("longest", [4, 11])
def test_what_is_no_arc_is_not_read(longest: int, single_root: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(longest)
    structure = SpanningTree(single_root=single_root)
    scores = torch.randn(9, longest + 1, longest + 1, dtype=dtype)
    lengths = torch.arange(9) % (longest + 1)
    clean = torch.where(structure.part_mask(scores, lengths), scores, 0.0)
    for value in (torch.nan, torch.inf, -torch.inf, 1e30):
        dirty = torch.where(structure.part_mask(scores, lengths), scores, value)
        expected, found = structure.map(clean, lengths), structure.map(dirty, lengths)
        torch.testing.assert_close(found, expected)
        best = structure.sparsemap(dirty, lengths).mean
        torch.testing.assert_close(best, structure.sparsemap(clean, lengths).mean)


def test_a_large_score_does_not_hide_the_others() -> None:
    # The other arcs must be the best that fit the arc of 1e17.
    scores = [[-3, 3, -3, 0], [-3, -1, 0, -1], [-1, 1e17, -3, -3], [-3, 1, 0, 1]]
    best = SpanningTree().best_heads(torch.tensor([scores], dtype=torch.float64), torch.tensor([3]))
    assert best.tolist() == [[-1, 2, 3, 0]]


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("scale", [(60.0, 40.0), (100.0, 60.0), (150.0, 50.0)])
def test_products_where_other_heads_are_lost_beside_the_best(
    scale: tuple[float, float], single_root: bool
) -> None:
    """All heads of a token except the best have a weight below the last digit of the sum. It still
    affects the products.
    """
    low, lower = scale
    scores = torch.full((5, 5), -torch.inf, dtype=torch.float64)
    scores[0, 1:] = -low
    for (head, modifier), score in {
        (2, 1): 0.0, (3, 1): -lower, (1, 2): 0.3, (1, 3): 0.1, (3, 2): 7.1 - low, (0, 4): 0.0,
        (1, 4): 0.37, (2, 4): -0.7, (3, 4): -0.9,
    }.items():  # fmt: skip
        scores[head, modifier] = score
    change = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        leaf = scores.to(dtype)[None].requires_grad_()
        marginals = SpanningTree(single_root=single_root).marginals(leaf, torch.tensor([4]))
        (found,) = torch.autograd.grad(marginals, leaf, change.to(dtype)[None])
        own = scores.to(dtype).double().requires_grad_()
        trees = dependency_trees(4, single_root=single_root)
        z = torch.stack([torch.as_tensor(arcs(tree)).double() for tree in trees])
        totals = torch.where(z > 0, own, 0.0).flatten(1).sum(1)
        mean = (totals.softmax(0)[:, None, None] * z).sum(0)
        (wanted,) = torch.autograd.grad((mean * change.to(dtype).double()).sum(), own)
        torch.testing.assert_close(found[0].double(), wanted, atol=tolerance, rtol=0)
