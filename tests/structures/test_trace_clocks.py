"""Noisy scores drawn again given a trace, against the algorithm in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.structures.test_traces import (
    Arc,
    arcs_of,
    random_scores,
)

# A trace: the arc that each node took. A node is a set of tokens.
Choices = dict[frozenset[int], Arc]
TREES = [
    (SpanningTree(), 6),
    (SpanningTree(single_root=True), 6),
    (SpanningTree(direction="later"), 5),
    (SpanningTree(single_root=True, direction="earlier"), 5),
    (SpanningTree(single_root=True, max_arc_length=1), 5),
    (SpanningTree(), 1),
    (SpanningTree(single_root=True), 1),
]


def run(clocks: list[list[float]], single_root: bool) -> tuple[frozenset[Arc], Choices]:
    """Run Chu-Liu-Edmonds on ``clocks`` [head, modifier], which are infinite at entries that are no
    arc.

    A node takes the arc whose clock rings first. This time is subtracted from all clocks of arcs
    into the node. A single root is chosen first, by its clock, among the tokens that reach all
    others.
    """
    n = len(clocks) - 1
    left = [list(row) for row in clocks]
    taken: Choices = {}
    waiting = [frozenset([token]) for token in range(1, n + 1)]
    first = 1 if single_root else 0
    if single_root:
        roots = [m for m in range(1, n + 1) if reaches_all(clocks, m)]
        root = min(roots, key=lambda m: clocks[0][m])
        taken[frozenset([root])] = (0, root)
        waiting.remove(frozenset([root]))
    inner: dict[frozenset[int], list[frozenset[int]]] = {}
    while waiting:
        node = waiting.pop(0)
        arcs = [(h, m) for m in node for h in range(first, n + 1) if h not in node]
        best = min(arcs, key=lambda arc: left[arc[0]][arc[1]])
        rung = left[best[0]][best[1]]
        assert rung < math.inf
        for head, token in arcs:
            left[head][token] -= rung
        taken[node] = best
        cycle, at = [node], node
        while True:
            head = taken[at][0] if at in taken else 0
            if head == 0:
                break
            # The largest node that contains the head.
            at = max((known for known in taken if head in known), key=len, default=at)
            if head not in at or at in cycle[1:]:
                break
            if at == node:
                whole = frozenset().union(*cycle)
                inner[whole] = cycle
                waiting.append(whole)
                break
            cycle.append(at)
    heads: dict[int, int] = {}
    for node in sorted(taken, key=len, reverse=True):
        head, token = taken[node]
        if not any(inside in heads for inside in node):
            heads[token] = head
    return frozenset((head, token) for token, head in heads.items()), taken


def reaches_all(clocks: list[list[float]], start: int) -> bool:
    seen, waiting = {start}, [start]
    if clocks[0][start] == math.inf:
        return False
    while waiting:
        at = waiting.pop()
        for token in range(1, len(clocks)):
            if token not in seen and clocks[at][token] < math.inf:
                seen.add(token)
                waiting.append(token)
    return len(seen) == len(clocks) - 1


def log_prob(scores: Tensor, choices: Choices, single_root: bool) -> float:
    """Return the log-probability of the choices. Each is drawn from a softmax over all arcs into
    its node.
    """
    n, total = len(scores) - 1, 0.0
    for node, (head, token) in choices.items():
        arcs = [(h, m) for m in node for h in range(int(single_root), n + 1) if h not in node]
        if single_root and head == 0:
            finite = torch.where(scores.isneginf(), torch.inf, -scores).tolist()
            arcs = [(0, m) for m in range(1, n + 1) if reaches_all(finite, m)]
        total += float(scores[head, token] - torch.stack([scores[a] for a in arcs]).logsumexp(0))
    return total


def clocks_of(noisy: Tensor) -> list[list[float]]:
    return (-noisy.double()).exp().tolist()


@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize(("structure", "n"), TREES, ids=repr)
def test_both_draws_lead_to_the_tree_by_the_same_choices(
    structure: SpanningTree, n: int, scale: float
) -> None:
    count = 60
    torch.manual_seed(n)
    scores = scale * torch.randn(count, n + 1, n + 1, dtype=torch.float64)
    lengths = torch.full((count,), n)
    found = structure.reparameterize_trace(scores, lengths)
    assert structure.contains(found.z, lengths).all()
    masked, _ = structure.masked(scores, lengths)
    nested = 0
    for item in range(count):
        both = [
            run(clocks_of(noisy[item]), structure.single_root)
            for noisy in (found.noisy, found.redrawn)
        ]
        assert both[0] == both[1]
        tree, choices = both[0]
        assert tree == arcs_of(found.z[item])
        known = log_prob(masked[item], choices, structure.single_root)
        assert float(found.log_probs[item]) == pytest.approx(known, abs=1e-9)
        nested += sum(len(node) > 2 for node in choices)
    assert not torch.equal(found.noisy, found.redrawn)
    if structure.direction == "any" and n > 5:
        assert nested > 10


def test_without_a_single_root_the_tree_is_the_one_of_least_time() -> None:
    scores, lengths = torch.randn(200, 9, 9, dtype=torch.float64), torch.full((200,), 8)
    found = SpanningTree().reparameterize_trace(scores, lengths)
    for noisy in (found.noisy, found.redrawn):
        assert torch.equal(SpanningTree().map(-(-noisy).exp(), lengths), found.z)


def apart(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of two empirical distribution functions (Kolmogorov and
    Smirnov).
    """
    first, second = first.sort().values, second.sort().values
    values = torch.cat([first, second])
    shares = [torch.searchsorted(own, values, right=True) / len(own) for own in (first, second)]
    return float((shares[0] - shares[1]).abs().max())


def allowed(first: int, second: int) -> float:
    """Return the bound that :func:`apart` exceeds with a probability of 1e-6 if the distributions
    are equal.
    """
    return (-math.log(0.5e-6) / 2 * (first + second) / (first * second)) ** 0.5


@pytest.mark.parametrize(
    "structure",
    [SpanningTree(), SpanningTree(single_root=True), KOfN(2), KOfN(3)],
    ids=repr,
)
def test_over_all_traces_both_draws_are_scores_with_independent_gumbel_noise(
    structure: Structure,
) -> None:
    count = 20_000
    shape = (4, 4) if structure.part_axes == 2 else (5,)
    length = 3 if structure.part_axes == 2 else 5
    torch.manual_seed(2)
    scores = torch.randn(*shape, dtype=torch.float64)
    lengths = torch.full((count,), length)
    found = structure.reparameterize_trace(scores.expand(count, *shape), lengths)
    inside = structure.part_mask(scores[None], lengths[:1])[0]
    fresh = -torch.empty(count, dtype=torch.float64).exponential_().log()
    for noisy in (found.noisy, found.redrawn):
        noise = (noisy - scores)[:, inside]
        for own in noise.T:
            assert apart(own, fresh) < allowed(count, count)
        # exp(−noise) is exponential. Up to 66 correlations are compared with five standard errors.
        between = torch.corrcoef((-noise).exp().T) - torch.eye(noise.shape[1])
        assert float(between.abs().max()) < 5 / count**0.5


@pytest.mark.parametrize("single_root", [False, True])
def test_given_a_trace_the_draw_has_the_law_of_clocks_that_happen_to_lead_to_it(
    single_root: bool,
) -> None:
    """The reference is a sample of unconditional clocks, grouped by the choices to which they lead.

    The distributions of single noisy scores are compared, and of sums and differences of pairs.
    """
    n, count = 3, 12_000
    scores = random_scores(n, 31, 0.5)
    structure = SpanningTree(single_root=single_root)
    torch.manual_seed(3)
    masked, _ = structure.masked(scores[None], torch.tensor([n]))
    free = masked[0] - torch.empty(count, n + 1, n + 1).double().exponential_().log()
    by_trace: dict[frozenset, list[Tensor]] = {}
    for noisy in free:
        _, choices = run(clocks_of(noisy), single_root)
        by_trace.setdefault(frozenset(choices.items()), []).append(noisy)
    found = structure.reparameterize_trace(scores.expand(count, -1, -1), torch.full((count,), n))
    again: dict[frozenset, list[Tensor]] = {}
    for noisy, redrawn in zip(found.noisy, found.redrawn):
        _, choices = run(clocks_of(noisy), single_root)
        again.setdefault(frozenset(choices.items()), []).append(redrawn)
    # Traces with a cycle, the most frequent first.
    cyclic = [trace for trace in by_trace if any(len(node) > 1 for node, _ in trace)]
    cyclic.sort(key=lambda trace: -len(by_trace[trace]))
    inside = structure.part_mask(scores[None], torch.tensor([n]))[0]
    for trace in cyclic[:4]:
        kept, drawn = (torch.stack(known[trace])[:, inside] for known in (by_trace, again))
        bound = allowed(len(kept), len(drawn))
        assert len(kept) > 50 and len(drawn) > 50
        parts = kept.shape[1]
        for one in range(parts):
            assert apart(kept[:, one], drawn[:, one]) < bound
            for other in range(one):
                for sign in (1, -1):
                    pairs = [x[:, one] + sign * x[:, other] for x in (kept, drawn)]
                    assert apart(*pairs) < bound


def test_the_free_draw_moves_with_its_score_and_the_other_keeps_its_trace() -> None:
    structure, lengths = SpanningTree(), torch.full((50,), 5)
    leaf = torch.randn(50, 6, 6, dtype=torch.float64).requires_grad_()
    torch.manual_seed(4)
    found = structure.reparameterize_trace(leaf, lengths)
    inside = structure.part_mask(leaf, lengths)
    (slope,) = torch.autograd.grad(found.noisy[inside].sum(), leaf, retain_graph=True)
    assert torch.equal(slope, inside.double())
    # Compare with finite differences under the same noise, for items whose choices stay the same.
    direction = inside.double() * torch.randn(50, 6, 6, dtype=torch.float64)
    (slope,) = torch.autograd.grad(found.redrawn[inside].sum(), leaf)
    assert slope.isfinite().all() and (slope[~inside] == 0).all()
    step = 1e-6
    moved = []
    for sign in (1, -1):
        torch.manual_seed(4)
        moved.append(
            structure.reparameterize_trace(leaf.detach() + sign * step * direction, lengths)
        )
    same = (moved[0].z == found.z).flatten(1).all(1) & (moved[1].z == found.z).flatten(1).all(1)
    assert same.float().mean() > 0.9
    change = [torch.where(inside, known.redrawn, 0.0).sum((1, 2)) for known in moved]
    expected = (change[0] - change[1]) / (2 * step)
    assert torch.allclose((slope * direction).sum((1, 2))[same], expected[same], atol=1e-5)


@pytest.mark.parametrize(
    "structure", [SpanningTree(), SpanningTree(single_root=True), KOfN(2), OneOfN()], ids=repr
)
def test_the_draw_can_be_differentiated_twice(structure: Structure) -> None:
    shape = (2, 4, 4) if structure.part_axes == 2 else (2, 4)
    lengths = torch.tensor([3, 2])
    torch.manual_seed(5)
    leaf = torch.randn(*shape, dtype=torch.float64).requires_grad_()
    inside = structure.part_mask(leaf, lengths).expand(shape)

    def drawn(scores: Tensor) -> Tensor:
        torch.manual_seed(5)
        found = structure.reparameterize_trace(scores, lengths)
        return found.redrawn[inside].tanh() + found.log_probs.sum()

    assert torch.autograd.gradcheck(drawn, leaf)
    assert torch.autograd.gradgradcheck(drawn, leaf)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_of_items_both_draws_have_the_same_ones_in_the_same_order(k: int) -> None:
    scores, lengths = torch.randn(40, 6, dtype=torch.float64), torch.tensor([6, 1, 3, 5] * 10)
    found = KOfN(k).reparameterize_trace(scores, lengths)
    for item in range(40):
        n = int(lengths[item])
        orders = [
            x[item, :n].topk(min(k, n)).indices.tolist() for x in (found.noisy, found.redrawn)
        ]
        assert orders[0] == orders[1]
        assert sorted(orders[0]) == found.z[item].nonzero().flatten().tolist()
        left, total = list(range(n)), 0.0
        for chosen in orders[0]:
            total += float(scores[item, chosen] - scores[item, left].logsumexp(0))
            left.remove(chosen)
        assert float(found.log_probs[item]) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_scores_of_any_scale_keep_their_choices(scale: float, dtype: torch.dtype) -> None:
    """A sum of clocks loses a clock below 2^-24 of the sum, but choices stay the same."""
    scores = (scale * torch.randn(50, 8, 8)).to(dtype).requires_grad_()
    found = SpanningTree().reparameterize_trace(scores, torch.full((50,), 7))
    for noisy in (found.noisy, found.redrawn):
        assert noisy.dtype == dtype and not noisy.isnan().any()
    first, second = (x.detach().argmax(1)[:, 1:] for x in (found.noisy, found.redrawn))
    assert (first == second).double().mean() > 0.999
    (slope,) = torch.autograd.grad(found.redrawn[:, :, 1:].clamp_min(-1e9).sum(), scores)
    assert slope.isfinite().all()


@pytest.mark.parametrize(
    "structure", [SpanningTree(), SpanningTree(single_root=True), KOfN(3), OneOfN()], ids=repr
)
def test_padding_is_not_read_and_empty_items_have_the_empty_structure(
    structure: Structure,
) -> None:
    scores = torch.randn(4, *[7] * structure.part_axes, dtype=torch.float64)
    lengths = torch.tensor([5, 0, 3, 1])
    inside = structure.part_mask(scores, lengths).expand_as(scores)
    found = []
    for fill in (torch.nan, 3.0):
        torch.manual_seed(6)
        leaf = torch.where(inside, scores, fill).requires_grad_()
        drawn = structure.reparameterize_trace(leaf, lengths)
        total = drawn.log_probs.sum() + drawn.redrawn[inside].tanh().sum()
        (slope,) = torch.autograd.grad(total, leaf)
        assert slope.isfinite().all() and (slope[~inside] == 0).all()
        assert not drawn.z[1].any() and drawn.log_probs[1] == 0
        found.append(drawn)
    for name in ("z", "noisy", "redrawn", "log_probs"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name))
    none = structure.reparameterize_trace(scores[:0], lengths[:0])
    assert none.z.shape == scores[:0].shape
