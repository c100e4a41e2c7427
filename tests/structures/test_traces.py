"""Traces, against lists of all that the algorithms can do on short items, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    NotDifferentiable,
    NotTractable,
)
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

Arc = tuple[int, int]
# A trace: the arcs of the tree, and its log-probability.
Trace = tuple[frozenset[Arc], Tensor]


def tree_traces(scores: Tensor, roots_last: bool) -> Iterator[Trace]:
    """Yield all traces of Chu-Liu-Edmonds with exponential clocks.

    Every node takes one of the arcs into it. Cycles become nodes, and these take an arc again.

    Args:
        scores: ``(n+1, n+1)``.
        roots_last: An arc from node 0 is taken only if no other arc enters the node. This leaves a
            single root.
    """
    n = len(scores) - 1

    def grow(
        waiting: list[frozenset[int]], taken: dict[frozenset[int], Arc], total: Tensor
    ) -> Iterator[Trace]:
        if not waiting:
            yield frozenset(expand(taken)), total
            return
        node, rest = waiting[0], waiting[1:]
        arcs = [
            (head, token)
            for token in node
            for head in range(n + 1)
            if head not in node and scores[head, token] > -torch.inf
        ]
        if roots_last and any(head for head, _ in arcs):
            arcs = [arc for arc in arcs if arc[0]]
        assert arcs
        log_p = torch.stack([scores[arc] for arc in arcs]).log_softmax(0)
        for arc, value in zip(arcs, log_p):
            chosen = {**taken, node: arc}
            cycle = cycle_of(chosen, node)
            more = [frozenset().union(*cycle)] if cycle else []
            yield from grow(rest + more, chosen, total + value)

    def cycle_of(taken: dict[frozenset[int], Arc], start: frozenset[int]) -> list[frozenset[int]]:
        node, seen = start, [start]
        while True:
            head = taken[node][0]
            if head == 0:
                return []
            # The largest node that contains the head.
            above = [node for node in taken if head in node]
            above += [frozenset([head])]
            node = max(above, key=len)
            if node == start:
                return seen
            if node in seen or node not in taken:
                return []
            seen.append(node)

    def expand(taken: dict[frozenset[int], Arc]) -> Iterator[Arc]:
        entered: set[int] = set()
        for node in sorted(taken, key=len, reverse=True):
            if not node & entered:
                head, token = taken[node]
                if token not in entered:
                    entered.add(token)
                    yield head, token

    first = [frozenset([token]) for token in range(1, n + 1)]
    yield from grow(first, {}, scores.new_zeros(()))


def subset_traces(scores: Tensor, k: int) -> Iterator[tuple[frozenset[int], Tensor]]:
    some = [i for i in range(len(scores)) if scores[i] > -torch.inf]
    for order in permutations(some, min(k, len(scores))):
        left, total = list(some), scores.new_zeros(())
        for item in order:
            log_p = scores[left].log_softmax(0)
            total = total + log_p[left.index(item)]
            left.remove(item)
        yield frozenset(order), total


def expected_loss(
    scores: Tensor, single_root: bool, weights: Tensor, arc: Arc, more: float
) -> Tensor:
    """Return the expected loss over all traces.

    The loss of a tree is the sum of ``weights`` over its arcs, plus ``more`` if it has ``arc``.
    """
    losses = [
        (sum(float(weights[own]) for own in tree) + more * (arc in tree)) * total.exp()
        for tree, total in tree_traces(scores, single_root)
    ]
    return torch.stack(losses).sum()


def by_tree(traces: list[Trace]) -> dict[frozenset[Arc], float]:
    found: dict[frozenset[Arc], float] = {}
    for tree, total in traces:
        found[tree] = found.get(tree, 0.0) + float(total.exp())
    return found


def arcs_of(z: Tensor) -> frozenset[Arc]:
    return frozenset((int(h), int(m)) for h, m in z.nonzero())


def random_scores(n: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n + 1, n + 1, generator=generator, dtype=torch.float64)


def is_tree(arcs: frozenset[Arc], n: int) -> bool:
    heads = {token: head for head, token in arcs}
    if sorted(heads) != list(range(1, n + 1)):
        return False
    for token in heads:
        seen = set()
        while token:
            if token in seen:
                return False
            seen.add(token)
            token = heads[token]
    return True


def check_frequencies(drawn: Tensor, expected: Mapping[frozenset[Arc], float]) -> None:
    """Check that the frequency of each drawn tree is within five standard errors of its
    probability.
    """
    different, number = drawn.unique(dim=0, return_counts=True)
    count = len(drawn)
    found = {arcs_of(z): float(k) / count for z, k in zip(different, number)}
    assert set(found) <= set(expected)
    for tree, probability in expected.items():
        error = (probability * (1 - probability) / count) ** 0.5
        assert abs(found.get(tree, 0.0) - probability) <= 5 * error + 1e-4


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_listed_traces_are_a_distribution_over_trees(n: int, single_root: bool) -> None:
    traces = list(tree_traces(random_scores(n, n), single_root))
    assert float(sum(total.exp() for _, total in traces)) == pytest.approx(1.0, abs=1e-12)
    trees = {tree for tree, _ in traces}
    assert all(is_tree(tree, n) for tree in trees)
    # (n+1)^(n-1) trees (Cayley), n^(n-1) of them with a single root.
    assert len(trees) == (n if single_root else n + 1) ** (n - 1)


# Both draw one structure for each item. The second also draws its noisy scores again.
OPERATIONS = pytest.mark.parametrize("operation", ["sample_trace", "reparameterize_trace"])


@OPERATIONS
@pytest.mark.parametrize(
    ("structure", "n"),
    [
        (SpanningTree(), 3),
        (SpanningTree(single_root=True), 3),
        (SpanningTree(single_root=True, direction="earlier"), 4),
        (SpanningTree(direction="later"), 3),
        (SpanningTree(single_root=True, max_arc_length=1), 3),
    ],
    ids=repr,
)
def test_trees_come_as_often_as_their_traces_say(
    structure: SpanningTree, n: int, operation: str
) -> None:
    scores, count = random_scores(n, 7), 40_000
    masked, _ = structure.masked(scores[None], torch.tensor([n]))
    expected = by_tree(list(tree_traces(masked[0], structure.single_root)))
    torch.manual_seed(1)
    drawn = getattr(structure, operation)(scores.expand(count, -1, -1), torch.full((count,), n))
    check_frequencies(drawn.z.view(count, n + 1, n + 1), expected)


@pytest.mark.parametrize("n", [2, 3])
def test_probabilities_and_gradients_of_tree_traces_are_those_listed(n: int) -> None:
    leaf = random_scores(n, 3).requires_grad_()
    listed = []
    for tree, total in tree_traces(leaf, False):
        (slope,) = torch.autograd.grad(total, leaf, retain_graph=True)
        listed.append((tree, float(total.detach()), slope))
    count = 300
    copies = leaf.detach().repeat(count, 1, 1).requires_grad_()
    drawn = SpanningTree().sample_trace(
        copies, torch.full((count,), n), 1, torch.Generator().manual_seed(2)
    )
    (slopes,) = torch.autograd.grad(drawn.log_probs.sum(), copies)
    for z, log_prob, slope in zip(drawn.z[0], drawn.log_probs[0].tolist(), slopes):
        same = [
            known
            for tree, total, known in listed
            if tree == arcs_of(z) and abs(total - log_prob) < 1e-9
        ]
        assert any(torch.allclose(slope, known, atol=1e-9) for known in same)


def test_a_single_root_is_drawn_from_its_softmax_and_takes_no_other_arcs() -> None:
    """Traces are shorter than with root arcs last.

    For three tokens they have at most four arcs. With root arcs last, the root and each cycle that
    contains it would take one more each.
    """
    n, count = 3, 20_000
    scores = random_scores(n, 5)
    structure = SpanningTree(single_root=True)
    drawn = structure.sample_trace(
        scores[None], torch.tensor([n]), count, torch.Generator().manual_seed(3)
    )
    assert ((drawn.z[:, 0, 0] == 1).sum(1) == 1).all()
    expected = scores[0, 1:].softmax(0)
    found = drawn.z[:, 0, 0, 1:].double().mean(0)
    assert torch.allclose(found, expected, atol=5 * 0.5 / count**0.5)
    # The mean of 1 / p over draws is the number of traces. For each of three roots the other two
    # tokens have four pairs of heads. One pair is a cycle, and either of two arcs enters it.
    estimate = float((-drawn.log_probs[:, 0]).exp().mean())
    assert estimate == pytest.approx(3 * (3 + 1 * 2), rel=0.05)


def gradient_of_expectation(traces: list[Trace], leaf: Tensor, weights: Tensor) -> Tensor:
    losses = [
        sum(weights[arc] for arc in tree) + 2 * ((0, 1) in tree) * ((1, 2) in tree)
        for tree, _ in traces
    ]
    expected = sum(float(loss) * total.exp() for loss, (_, total) in zip(losses, traces))
    return torch.autograd.grad(expected, leaf)[0]


@pytest.mark.parametrize("single_root", [False, True])
def test_the_score_of_the_trace_is_unbiased(single_root: bool) -> None:
    n, count = 3, 20_000
    leaf, weights = random_scores(n, 11).requires_grad_(), random_scores(n, 12)
    exact = gradient_of_expectation(list(tree_traces(leaf, single_root)), leaf, weights)
    copies = leaf.detach().repeat(count, 1, 1).requires_grad_()
    structure = SpanningTree(single_root=single_root)
    drawn = structure.sample_trace(
        copies, torch.full((count,), n), 1, torch.Generator().manual_seed(4)
    )
    z = drawn.z[0]
    losses = (z * weights).sum((1, 2)) + 2 * z[:, 0, 1] * z[:, 1, 2]
    (each,) = torch.autograd.grad((losses * drawn.log_probs[0]).sum(), copies)
    error = each.std(0) / count**0.5
    assert ((each.mean(0) - exact).abs() <= 5 * error + 1e-9).all()
    assert exact.abs().max() > 0.05


def test_with_heads_before_tokens_the_trace_is_the_tree() -> None:
    structure = SpanningTree(single_root=True, direction="earlier")
    scores, lengths = torch.randn(3, 6, 6, dtype=torch.float64), torch.tensor([5, 0, 3])
    drawn = structure.sample_trace(scores, lengths, 20)
    known = structure.log_prob(drawn.z, scores, lengths)
    assert torch.allclose(drawn.log_probs, known, atol=1e-9)


def test_the_traces_of_one_item_are_its_choices() -> None:
    scores, lengths = torch.randn(3, 6, dtype=torch.float64), torch.tensor([6, 0, 4])
    drawn = OneOfN().sample_trace(scores, lengths, 20)
    known = OneOfN().log_prob(drawn.z, scores, lengths)
    assert torch.allclose(drawn.log_probs, known, atol=1e-12)


def test_subsets_come_in_order_as_listed() -> None:
    n, k, count = 5, 2, 30_000
    leaf = random_scores(n, 6)[0, :n].clone().requires_grad_()
    listed = list(subset_traces(leaf, k))
    assert float(sum(total.detach().exp() for _, total in listed)) == pytest.approx(1.0)
    copies = leaf.detach().repeat(count, 1).requires_grad_()
    drawn = KOfN(k).sample_trace(
        copies, torch.full((count,), n), 1, torch.Generator().manual_seed(8)
    )
    members = [frozenset(z.nonzero().flatten().tolist()) for z in drawn.z[0]]
    totals = {(subset, round(float(total), 9)) for subset, total in listed}
    found = {(s, round(v, 9)) for s, v in zip(members, drawn.log_probs[0].tolist())}
    assert found <= totals
    for subset in {subset for subset, _ in listed}:
        p = sum(float(total.exp()) for own, total in listed if own == subset)
        share = sum(own == subset for own in members) / count
        assert abs(share - p) <= 5 * (p * (1 - p) / count) ** 0.5
    # The loss depends on the pair of items.
    weights = torch.arange(float(n * n), dtype=torch.float64).view(n, n).sin()
    losses = [float(weights[sorted(s)[0], sorted(s)[1]]) for s, _ in listed]
    expected = sum(loss * total.exp() for loss, (_, total) in zip(losses, listed))
    (exact,) = torch.autograd.grad(expected, leaf)
    own = torch.tensor([float(weights[sorted(s)[0], sorted(s)[1]]) for s in members])
    (each,) = torch.autograd.grad((own * drawn.log_probs[0]).sum(), copies)
    assert ((each.mean(0) - exact).abs() <= 5 * each.std(0) / count**0.5).all()
    assert exact.abs().max() > 0.02


@pytest.mark.parametrize(
    "structure", [SpanningTree(), SpanningTree(single_root=True), KOfN(3), OneOfN()], ids=repr
)
def test_items_of_a_batch_are_alone_and_padding_is_not_read(structure: SpanningTree) -> None:
    axes = structure.part_axes
    size = 7
    scores = torch.randn(4, *[size] * axes, dtype=torch.float64)
    lengths = torch.tensor([5, 0, 3, 1])
    inside = structure.part_mask(scores, lengths)
    padded = torch.where(inside, scores, torch.nan).requires_grad_()
    plain = torch.where(inside, scores, 3.0).requires_grad_()
    first, second = (
        structure.sample_trace(given, lengths, 2, torch.Generator().manual_seed(5))
        for given in (padded, plain)
    )
    assert torch.equal(first.z, second.z) and torch.equal(first.log_probs, second.log_probs)
    assert (first.z[:, ~inside] == 0).all()
    assert (first.log_probs[:, 1] == 0).all() and not first.z[:, 1].any()
    (gradient,) = torch.autograd.grad(first.log_probs.sum(), padded)
    assert gradient.isfinite().all() and (gradient[~inside] == 0).all()
    assert gradient[0].abs().sum() > 0
    other = structure.sample_trace(plain, lengths, 2, torch.Generator().manual_seed(6))
    assert not torch.equal(other.log_probs, first.log_probs)


def test_a_root_that_leaves_tokens_out_is_never_drawn() -> None:
    """The first of three tokens has no head except node 0, so it is the only possible root."""
    scores = torch.zeros(1, 4, 4)
    scores[0, 2:, 1] = -torch.inf
    scores[0, 0, 2:] = 5.0
    drawn = SpanningTree(single_root=True).sample_trace(scores, torch.tensor([3]), 50)
    assert (drawn.z[:, 0, 0, 1] == 1).all()
    assert SpanningTree(single_root=True).contains(drawn.z[:, 0], torch.full((50,), 3)).all()


@OPERATIONS
@pytest.mark.parametrize("single_root", [False, True])
def test_items_without_a_tree_are_named(single_root: bool, operation: str) -> None:
    structure, lengths = SpanningTree(single_root=single_root), torch.full((3,), 3)
    without_heads = torch.zeros(3, 4, 4)
    without_heads[2, :, 2] = -torch.inf
    # Tokens 1 and 2 can only head each other.
    cyclic = torch.zeros(3, 4, 4)
    cyclic[2, 0, 1:3] = cyclic[2, 3, 1:3] = -torch.inf
    # Tokens 1 and 2 have no head except node 0.
    two_roots = torch.zeros(3, 4, 4)
    two_roots[2, 1:, 1:3] = -torch.inf
    for scores in (without_heads, cyclic, *([two_roots] if single_root else [])):
        with pytest.raises(InfeasibleError) as error:
            getattr(structure, operation)(scores, lengths)
        assert error.value.items == [2]


@OPERATIONS
def test_items_of_which_there_are_too_few_are_named(operation: str) -> None:
    scores = torch.full((2, 4), -torch.inf)
    scores[:, 0] = 0.0
    with pytest.raises(InfeasibleError) as error:
        getattr(KOfN(2), operation)(scores, torch.tensor([1, 3]))
    assert error.value.items == [1]


@OPERATIONS
def test_what_has_no_trace_says_so(operation: str) -> None:
    with pytest.raises(NotTractable, match=operation):
        getattr(ProjectiveTree(), operation)(torch.zeros(1, 3, 3), torch.tensor([2]))
    with pytest.raises(NotTractable, match=operation):
        getattr(KOfN(2, exactly=False), operation)(torch.zeros(1, 3), torch.tensor([2]))


def test_no_traces_are_not_drawn() -> None:
    with pytest.raises(InvalidScores, match="num_samples"):
        SpanningTree().sample_trace(torch.zeros(1, 3, 3), torch.tensor([2]), 0)


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_a_single_choice_holds_its_digits_beside_an_offset(offset: float) -> None:
    scores, lengths = offset - torch.arange(3.0).repeat(2, 1), torch.tensor([3, 2])
    structure, generator = OneOfN(), torch.Generator().manual_seed(0)
    sampled = structure.sample_trace(scores, lengths, 8, generator)
    redrawn = structure.reparameterize_trace(scores, lengths)
    for found in (sampled, redrawn):
        assert found.log_probs.dtype == torch.float32
        expected = structure.log_prob(found.z, scores, lengths)
        torch.testing.assert_close(found.log_probs, expected)


def test_second_derivatives_of_traces_are_right_or_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 5, dtype=torch.float64, generator=generator)

    def slope(structure: Structure, leaf: Tensor, **options: bool) -> Tensor:
        given = leaf if leaf.dim() == 1 + structure.part_axes else leaf[:, 0]
        drawn = structure.sample_trace(
            given, torch.tensor([4, 3]), 3, torch.Generator().manual_seed(1)
        )
        return torch.autograd.grad(drawn.log_probs.sum(), leaf, **options)[0]

    for tree in (SpanningTree(), SpanningTree(single_root=False)):
        leaf = scores.clone().requires_grad_()
        once = slope(tree, leaf, create_graph=True)
        torch.testing.assert_close(once.detach(), slope(tree, scores.clone().requires_grad_()))
        with pytest.raises(NotDifferentiable, match="traces"):
            once.square().sum().backward()
    for items in (KOfN(2), OneOfN()):
        leaf = scores.clone().requires_grad_()
        (found,) = torch.autograd.grad(slope(items, leaf, create_graph=True).square().sum(), leaf)
        step, along = 1e-6, torch.randn(scores.shape, dtype=torch.float64, generator=generator)
        sides = [
            slope(items, (scores + sign * step * along).requires_grad_()).square().sum()
            for sign in (1, -1)
        ]
        torch.testing.assert_close(
            (found * along).sum(), (sides[0] - sides[1]) / (2 * step), rtol=1e-5, atol=1e-6
        )
