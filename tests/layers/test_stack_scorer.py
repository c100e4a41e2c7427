"""Decisions of a parser from composed vectors, against a plain parser."""

from __future__ import annotations

import math

import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.best_straight_through import BestStraightThrough
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.shift_reduce import ShiftReduce
from tests.layers.plain_tree_lstm import leaf, merge

LENGTHS = torch.tensor([4, 1, 3, 0, 2])
TEMPERATURE = 0.6


def make():
    torch.manual_seed(0)
    scorer = registry.get("misc", "spacy-latent.StackScorer.v1")(state_width=5, hidden_width=4)(6)
    for parameter in scorer.parameters():
        torch.nn.init.normal_(parameter)
    return scorer.double()


def sentences():
    torch.manual_seed(1)
    return torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)


def all_parses(scorer, vectors):
    """Return every tree of a sentence as its set of spans, with its log-probability."""
    n, found = len(vectors), {}
    words = [leaf(scorer.lstm, x) for x in vectors]

    def go(stack, shifted, spans, log_prob):
        can_shift, can_reduce = shifted < n, len(stack) > 1
        if not can_shift and not can_reduce:
            found[frozenset(spans)] = log_prob
            return
        odds = torch.zeros((), dtype=torch.float64)
        if can_shift and can_reduce:
            seen = torch.cat([stack[-2][1][0], stack[-1][1][0], words[shifted][0]])
            odds = scorer.output(seen)[0] / TEMPERATURE
        if can_shift:
            term = torch.nn.functional.logsigmoid(-odds) if can_reduce else 0.0
            span = (shifted, shifted)
            go([*stack, (span, words[shifted])], shifted + 1, [*spans, span], log_prob + term)
        if can_reduce:
            term = torch.nn.functional.logsigmoid(odds) if can_shift else 0.0
            (left, a), (right, b) = stack[-2:]
            span = (left[0], right[1])
            new = (span, merge(scorer.lstm, a, b))
            go([*stack[:-2], new], shifted, [*spans, span], log_prob + term)

    go([], 0, [], torch.zeros((), dtype=torch.float64))
    return found


def array(spans):
    z = torch.zeros(4, 4, dtype=torch.float64)
    for i, j in spans:
        z[i, j] = 1.0
    return z


def spans_of(z):
    return frozenset(tuple(part) for part in z.nonzero().tolist())


def bound(scorer, vectors, beam_size=1, lengths=LENGTHS):
    structure = scorer.bind(ShiftReduce(beam_size), vectors, lengths, TEMPERATURE)
    return structure, scorer(vectors, lengths)


def test_log_probabilities_and_their_gradients_are_those_of_the_parser():
    scorer, vectors = make(), sentences()
    structure, scores = bound(scorer, vectors)
    weights = [vectors, *scorer.parameters()]
    for b, n in enumerate(LENGTHS.tolist()):
        parses = all_parses(scorer, vectors[b, :n])
        z = torch.zeros(len(parses), 5, 4, 4, dtype=torch.float64)
        z[:] = torch.stack([array([(t, t) for t in range(m)]) for m in [4, 1, 3, 0, 2]])
        for other, m in enumerate(LENGTHS.tolist()):
            # The items that are not compared have a right-branching tree.
            z[:, other] += array([(t, m - 1) for t in range(m - 1)])
        z[:, b] = torch.stack([array(spans) for spans in parses])
        found = structure.log_prob(z, scores, LENGTHS)[:, b]
        expected = torch.stack(list(parses.values()))
        torch.testing.assert_close(found, expected)
        assert found.exp().sum().item() == pytest.approx(1.0)
        readout = torch.randn(len(parses), dtype=torch.float64)
        for gradient, other in zip(
            *(
                torch.autograd.grad(
                    log_probs @ readout,
                    weights,
                    retain_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )
                for log_probs in (found, expected + 0 * vectors.sum())
            )
        ):
            torch.testing.assert_close(gradient, other)


def test_the_expected_score_is_zero():
    """E[∇log p] is 0 for every weight of the parser."""
    scorer, vectors = make(), sentences()[:1]
    parses = all_parses(scorer, vectors[0])
    z = torch.stack([array(spans) for spans in parses])[:, None]
    structure, scores = bound(scorer, vectors, lengths=LENGTHS[:1])
    log_prob = structure.log_prob(z, scores, LENGTHS[:1])
    mean = (log_prob.detach().exp() * log_prob).sum()
    for gradient in torch.autograd.grad(mean, list(scorer.parameters())):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_samples_have_the_probabilities():
    """Each frequency among 8,000 samples is within four standard errors of its probability."""
    scorer, vectors = make(), sentences().detach()
    structure, scores = bound(scorer, vectors)
    z = structure.sample(scores, LENGTHS, 8000, torch.Generator().manual_seed(0))
    for b, n in enumerate(LENGTHS.tolist()):
        parses = all_parses(scorer, vectors[b, :n])
        drawn, counts = z[:, b].flatten(1).unique(dim=0, return_counts=True)
        for row, count in zip(drawn, counts.tolist()):
            p = parses[spans_of(row.view(4, 4))].exp().item()
            assert abs(count / 8000 - p) <= 4 * math.sqrt(p * (1 - p) / 8000)


def test_a_wide_beam_finds_the_best_trees():
    scorer, vectors = make(), sentences().detach()
    structure, scores = bound(scorer, vectors, beam_size=6)
    best, first = structure.top_k(scores, LENGTHS, 6), structure.map(scores, LENGTHS)
    torch.testing.assert_close(first, best.z[0])
    for b, n in enumerate(LENGTHS.tolist()):
        parses = sorted(all_parses(scorer, vectors[b, :n]).items(), key=lambda pair: -pair[1])
        count = len(parses)
        assert [spans_of(z) for z in best.z[:count, b]] == [spans for spans, _ in parses]
        torch.testing.assert_close(best.scores[:count, b], torch.stack([p for _, p in parses]))
        assert best.scores[count:, b].eq(-math.inf).all()


def test_greedy_parsing_follows_the_odds():
    scorer, vectors = make(), sentences().detach()
    structure, scores = bound(scorer, vectors)
    z = structure.map(scores, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        alone, empty = bound(scorer, vectors[b : b + 1, :n], lengths=LENGTHS[b : b + 1])
        torch.testing.assert_close(z[b, :n, :n], alone.map(empty, LENGTHS[b : b + 1])[0])
        assert z[b].sum() == max(0, 2 * n - 1)
    # If one decision is free, the more probable transition is taken.
    (first, p), (_, q) = all_parses(scorer, vectors[2, :3]).items()
    assert (spans_of(z[2]) == first) == (p.item() > q.item())


def test_it_trains_in_a_latent_layer_and_only_with_a_parser():
    scorer = make()
    composer = registry.get("misc", "spacy-latent.BinaryTreeLstm.v1")()(6).double()
    with pytest.raises(IncompatiblePair, match=r"StackScorer.*ConstituencyTree"):
        LatentLayer(scorer, ConstituencyTree(), BestStraightThrough(), composer)
    layer = LatentLayer(scorer, ShiftReduce(), BestStraightThrough(k=3), composer, temperature=2.0)
    vectors = sentences()
    layer(vectors, LENGTHS).vectors.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in scorer.output[0].parameters())
    assert scorer.lstm.gates.weight.grad.any() and vectors.grad.isfinite().all()
    layer.eval()
    with torch.no_grad():
        draw = layer(vectors, LENGTHS).draw
    assert draw.z.shape == (1, 5, 4, 4)
