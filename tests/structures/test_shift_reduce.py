"""Transitions of a shift-reduce parser, against a plain parser that lists all trees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spacy_latent.errors import IncompatiblePair, InvalidScores, LatentError, NotTractable
from spacy_latent.estimators.best_straight_through import BestStraightThrough
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree

N = 4
LENGTHS = torch.tensor([4, 1, 3, 0, 2])


def scores_of(batch=1, n=N, dtype=torch.float64):
    torch.manual_seed(0)
    return 1.5 * torch.randn(batch, n, n, dtype=dtype)


def all_parses(scores, n):
    """Return every tree of n words as its set of spans, with its log-probability.

    At each step both transitions are tried.
    """
    found = {}

    def go(stack, shifted, spans, log_prob):
        can_shift, can_reduce = shifted < n, len(stack) > 1
        if not can_shift and not can_reduce:
            found[frozenset(spans)] = log_prob
            return
        odds = float(scores[stack[-2][0], stack[-1][1]]) if can_shift and can_reduce else 0.0
        if can_shift:
            cost = math.log1p(math.exp(odds)) if can_reduce else 0.0
            word = (shifted, shifted)
            go([*stack, word], shifted + 1, [*spans, word], log_prob - cost)
        if can_reduce:
            cost = math.log1p(math.exp(-odds)) if can_shift else 0.0
            span = (stack[-2][0], stack[-1][1])
            go([*stack[:-2], span], shifted, [*spans, span], log_prob - cost)

    go([], 0, [], 0.0)
    return found


def array(spans, n=N):
    z = torch.zeros(n, n, dtype=torch.float64)
    for i, j in spans:
        z[i, j] = 1.0
    return z


def spans_of(z):
    return frozenset(tuple(part) for part in z.nonzero().tolist())


def every_tree(scores, n=N):
    parses = all_parses(scores, n)
    return torch.stack([array(spans, len(scores)) for spans in parses]), list(parses.values())


def test_the_expected_score_is_zero():
    """E[∇log p] is exactly 0, and the gradient for one tree is not."""
    scores = scores_of().requires_grad_()
    z, _ = every_tree(scores[0].detach())
    log_prob = ShiftReduce().log_prob(z[:, None], scores, torch.tensor([N]))[:, 0]
    (mean,) = torch.autograd.grad((log_prob.detach().exp() * log_prob).sum(), scores)
    (one,) = torch.autograd.grad(
        ShiftReduce().log_prob(z[:1], scores, torch.tensor([N])).sum(), scores
    )
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-12, rtol=0)
    assert one.abs().max() > 0.1 and not one[:, :, N - 1].any() and not one[0].diagonal().any()


def test_each_item_of_a_batch_is_parsed_as_alone():
    structure, scores = ShiftReduce(beam_size=3), scores_of(5)
    padded = scores.clone()
    token = torch.arange(N)
    padding = token >= LENGTHS[:, None]
    padded[padding[:, :, None] | padding[:, None]] = torch.nan
    together = structure.map(padded, LENGTHS)
    drawn = structure.sample(padded, LENGTHS, 3)
    for b, n in enumerate(LENGTHS.tolist()):
        alone = structure.map(scores[b : b + 1, :n, :n], LENGTHS[b : b + 1])[0]
        torch.testing.assert_close(together[b, :n, :n], alone)
        assert together[b].sum() == alone.sum() == max(0, 2 * n - 1)
        for z in drawn[:, b]:
            assert spans_of(z) in all_parses(scores[b], n)


def test_greedy_parsing_takes_the_better_of_both():
    for seed in range(5):
        torch.manual_seed(seed)
        scores = torch.randn(6, 6)
        stack, shifted, spans = [], 0, []
        while shifted < 6 or len(stack) > 1:
            wants = len(stack) > 1 and (
                shifted == 6 or float(scores[stack[-2][0], stack[-1][1]]) > 0
            )
            if wants:
                right, left = stack.pop(), stack.pop()
                stack.append((left[0], right[1]))
            else:
                stack.append((shifted, shifted))
                shifted += 1
            spans.append(stack[-1])
        z = ShiftReduce().map(scores[None], torch.tensor([6]))[0]
        assert spans_of(z) == frozenset(spans)


def test_a_wide_beam_has_all_trees_in_order():
    scores = scores_of()
    z, expected = every_tree(scores[0])
    best = ShiftReduce().top_k(scores, torch.tensor([N]), 7)
    order = np.argsort(expected)[::-1]
    torch.testing.assert_close(best.z[:5, 0], z[order.copy()])
    torch.testing.assert_close(
        best.scores[:, 0], torch.tensor([expected[i] for i in order] + [-math.inf] * 2).double()
    )
    torch.testing.assert_close(ShiftReduce(beam_size=7).map(scores, torch.tensor([N])), best.z[0])


def test_a_beam_keeps_the_best_prefixes():
    """The better first step leads to a choice between two trees, and the worse one to a single
    tree.
    """
    scores = torch.full((1, 5, 5), -9.0, dtype=torch.float64)
    scores[0, 0, 1], scores[0, 2, 3], scores[0, 1, 2:4] = 0.1, 0.0, 9.0
    lengths = torch.tensor([5])
    greedy, beam = ShiftReduce().map(scores, lengths), ShiftReduce(2).map(scores, lengths)
    assert greedy[0, 0, 1] == 1 and beam[0, 1, 2] == 1
    values = ShiftReduce().log_prob(torch.stack([greedy, beam]), scores, lengths)
    assert values[1, 0] > values[0, 0]


def test_the_entropy_is_estimated():
    scores = scores_of(5)
    torch.manual_seed(1)
    found = ShiftReduce().estimate_entropy(scores, LENGTHS, 4000)
    for b, n in enumerate(LENGTHS.tolist()):
        logs = np.array(list(all_parses(scores[b], n).values()))
        assert found[b].item() == pytest.approx(-(np.exp(logs) * logs).sum(), abs=0.02)


def test_forbidden_reductions():
    scores = scores_of().requires_grad_()
    forbidden = scores.clone()
    forbidden[0, 0, 1] = forbidden[0, 0, 2] = -math.inf
    structure, lengths = ShiftReduce(), torch.tensor([N])
    z = structure.sample(forbidden, lengths, 200)
    assert not z[:, 0, 0, 1].any() and not z[:, 0, 0, 2].any()
    log_prob = structure.log_prob(z, forbidden, lengths)
    assert log_prob.isfinite().all()
    (gradient,) = torch.autograd.grad(log_prob.sum(), scores)
    assert gradient.isfinite().all()
    never = array([(0, 1), (2, 3), (0, 3)])
    assert structure.log_prob(never[None], forbidden, lengths).item() == -math.inf
    assert structure.estimate_entropy(forbidden, lengths).isfinite().all()


def test_what_it_cannot_do_is_refused():
    structure, scores, lengths = ShiftReduce(), scores_of(), torch.tensor([N])
    for name in ("log_partition", "marginals", "sparsemap", "entropy", "log_count"):
        with pytest.raises(NotTractable, match="estimate_entropy"):
            getattr(structure, name)(scores, lengths)
    for estimator in (SparseMAP(), Marginals()):
        with pytest.raises(IncompatiblePair, match=r"decisions.*BestStraightThrough"):
            estimator.check(structure)
    BestStraightThrough().check(structure)
    with pytest.raises(LatentError, match="beam_size"):
        ShiftReduce(beam_size=0)
    with pytest.raises(LatentError, match=r"\bk\b"):
        BestStraightThrough(k=1)
    with pytest.raises(InvalidScores, match=r"\bk\b"):
        structure.top_k(scores, lengths, 0)
    with pytest.raises(InvalidScores, match="item"):
        structure.sample(scores * math.nan, lengths)


@pytest.mark.parametrize("structure", [ShiftReduce(), SpanningTree(single_root=False)], ids=str)
def test_straight_through_over_the_best_is_its_definition(structure):
    torch.manual_seed(2)
    lengths = torch.tensor([4, 1, 2])
    size = 4 if structure.parts == "spans" else 5
    scores = torch.randn(3, size, size, dtype=torch.float64, requires_grad=True)
    values = torch.randn(3, size, size, dtype=torch.float64)
    draw = BestStraightThrough(k=4)(structure, scores, lengths, True)
    assert draw.padding is not None and draw.weights[0].eq(1).all()
    # The loss of the draw is the weighted sum of losses of its structures.
    losses = torch.tanh((draw.z * values).sum((-2, -1)))
    (found,) = torch.autograd.grad((draw.weights * losses).sum(), scores)
    best = structure.top_k(scores.detach(), lengths, 4)
    log_p = structure.log_potential(best.z, scores, lengths)
    total = torch.zeros((), dtype=torch.float64)
    for b in range(3):
        count = int(best.scores[:, b].isfinite().sum())
        total = total + (log_p[:count, b].softmax(0) * losses[:count, b]).sum()
    (expected,) = torch.autograd.grad(total, scores)
    torch.testing.assert_close(found, expected)
    assert found[0].any() and not found[1].any()
    predicted = BestStraightThrough(k=4)(structure, scores, lengths, False)
    torch.testing.assert_close(predicted.z[0], best.z[0])


@pytest.mark.parametrize("batch", [0, 2])
def test_of_no_words_there_is_one_tree(batch):
    scores, lengths = torch.zeros(batch, 0, 0, requires_grad=True), torch.zeros(batch).long()
    structure = ShiftReduce()
    z = structure.sample(scores, lengths, 3)
    assert z.shape == (3, batch, 0, 0)
    assert structure.log_prob(z, scores, lengths).tolist() == 3 * [batch * [0.0]]
    assert structure.log_prob(z[0], scores, lengths).tolist() == batch * [0.0]
