"""Sequences of merges, with static scores and with the decisions of a parser, against plain
references.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import IncompatiblePair, InfeasibleError, InvalidScores, NotTractable
from spacy_latent.estimators.best_straight_through import BestStraightThrough
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.merge_sequence import MergeSequence, merged_spans
from spacy_latent.structures.shift_reduce import ShiftReduce
from tests.layers.plain_tree_lstm import leaf, merge

N = 4
LENGTHS = torch.tensor([4, 1, 3, 0, 2])
TEMPERATURE = 0.6


def sequences(n):
    return product(*(range(n - 1 - step) for step in range(n - 1)))


def array(places, size=N - 1):
    z = torch.zeros(size, size, dtype=torch.float64)
    for step, place in enumerate(places):
        z[step, place] = 1.0
    return z


def spans_of(places, n):
    row, spans = [(t, t) for t in range(n)], [(t, t) for t in range(n)]
    for place in places:
        row[place : place + 2] = [(row[place][0], row[place + 1][1])]
        spans.append(row[place])
    return sorted(spans)


def scores_of():
    torch.manual_seed(0)
    return torch.randn(5, N - 1, N - 1, dtype=torch.float64)


def static(scores, b, n):
    """Return log p of each sequence of item b."""
    found = {}
    for places in sequences(n):
        steps = (scores[b, s, : n - 1 - s].log_softmax(0)[p] for s, p in enumerate(places))
        found[places] = sum(steps, torch.zeros((), dtype=torch.float64))
    return found


def parser():
    torch.manual_seed(0)
    scorer = registry.get("misc", "spacy-latent.MergeScorer.v1")(state_width=5)(6)
    for parameter in scorer.parameters():
        torch.nn.init.normal_(parameter)
    torch.manual_seed(1)
    return scorer.double(), torch.randn(5, N, 6, dtype=torch.float64, requires_grad=True)


def dynamic(scorer, vectors, n):
    """Return log p of each sequence of one sentence (Havrylov et al. 2019, section 2.1)."""
    lstm, found = scorer.lstm, {}
    for places in sequences(n):
        row = [leaf(lstm, x) for x in vectors[:n]]
        total = torch.zeros((), dtype=torch.float64)
        for place in places:
            pairs = [merge(lstm, *two) for two in zip(row, row[1:])]
            logits = torch.cat([scorer.query(h) for h, _ in pairs]) / TEMPERATURE
            total = total + logits.log_softmax(0)[place]
            row[place : place + 2] = [pairs[place]]
        found[places] = total
    return found


def case(kind):
    """Return a structure, its scores, and log p of each sequence of each item."""
    if kind == "static":
        scores = scores_of()
        logs = [static(scores, b, n) for b, n in enumerate(LENGTHS.tolist())]
        return MergeSequence(), scores, logs
    scorer, vectors = parser()
    structure = scorer.bind(MergeSequence(), vectors, LENGTHS, TEMPERATURE)
    logs = [dynamic(scorer, vectors[b], n) for b, n in enumerate(LENGTHS.tolist())]
    return structure, scorer(vectors, LENGTHS), logs


def every(logs, b):
    """Return all sequences of item b, beside an arbitrary sequence for the other items."""
    z = torch.zeros(len(logs[b]), 5, N - 1, N - 1, dtype=torch.float64)
    for k, places in enumerate(logs[b]):
        for other in range(5):
            z[k, other] = array(places if other == b else next(iter(logs[other])))
    return z


KINDS = pytest.mark.parametrize("kind", ["static", "dynamic"])


@KINDS
def test_log_probabilities(kind):
    structure, scores, logs = case(kind)
    for b in range(5):
        found = structure.log_prob(every(logs, b), scores, LENGTHS)[:, b]
        torch.testing.assert_close(found, torch.stack(list(logs[b].values())))
        assert found.exp().sum().item() == pytest.approx(1.0)
    assert structure.log_prob(every(logs, 0)[0], scores, LENGTHS).shape == (5,)


def test_gradients_of_the_parser_and_the_expected_score():
    scorer, vectors = parser()
    structure = scorer.bind(MergeSequence(), vectors, LENGTHS, TEMPERATURE)
    logs = [dynamic(scorer, vectors[b], n) for b, n in enumerate(LENGTHS.tolist())]
    weights = [vectors, *scorer.parameters()]
    found = structure.log_prob(every(logs, 0), scorer(vectors, LENGTHS), LENGTHS)[:, 0]
    expected = torch.stack(list(logs[0].values()))
    readout = torch.randn(len(found), dtype=torch.float64)
    for gradient, other in zip(
        torch.autograd.grad(found @ readout, weights, retain_graph=True),
        torch.autograd.grad(expected @ readout, weights),
    ):
        torch.testing.assert_close(gradient, other)
        assert gradient.any()
    # E[∇log p] is 0 for every weight.
    for gradient in torch.autograd.grad(found.detach().exp() @ found, weights):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


@KINDS
def test_samples_have_the_probabilities(kind):
    """Each frequency among 8,000 samples is within four standard errors of its probability."""
    structure, scores, logs = case(kind)
    z = structure.sample(scores, LENGTHS, 8000, torch.Generator().manual_seed(0))
    for b in range(5):
        known = {tuple(array(places).flatten().tolist()): p for places, p in logs[b].items()}
        drawn, counts = z[:, b].flatten(1).unique(dim=0, return_counts=True)
        for row, count in zip(drawn, counts.tolist()):
            p = known[tuple(row.tolist())].exp().item()
            assert abs(count / 8000 - p) <= 4 * math.sqrt(max(p * (1 - p), 0.0) / 8000) + 1e-9


@KINDS
def test_a_wide_beam_finds_the_best_and_greedy_the_next(kind):
    structure, scores, logs = case(kind)
    best, greedy = structure.top_k(scores, LENGTHS, 7), structure.map(scores, LENGTHS)
    for b in range(5):
        ordered = sorted(logs[b].items(), key=lambda pair: -pair[1])
        expected = torch.stack([array(places) for places, _ in ordered])
        torch.testing.assert_close(best.z[: len(ordered), b], expected)
        values = torch.stack([p.detach() for _, p in ordered])
        torch.testing.assert_close(best.scores[: len(ordered), b], values)
        assert best.scores[len(ordered) :, b].eq(-math.inf).all()
        # The greedy choice is the most probable first merge, then the most probable merge after it.
        known = {places: p.exp().item() for places, p in logs[b].items()}
        chosen: tuple[int, ...] = ()
        for _ in range(int(LENGTHS[b]) - 1):
            mass: dict[int, float] = {}
            for places, p in known.items():
                if places[: len(chosen)] == chosen:
                    mass[places[len(chosen)]] = mass.get(places[len(chosen)], 0.0) + p
            chosen += (max(mass, key=lambda place: mass[place]),)
        torch.testing.assert_close(greedy[b], array(chosen))


@pytest.mark.parametrize("n", range(6))
def test_merges_make_spans_and_back(n):
    structure = MergeSequence()
    for places in sequences(n):
        z = array(places, max(n - 1, 0))
        spans = structure.decode(z.numpy(), n)
        assert spans.tolist() == [list(span) for span in spans_of(places, n)]
        again = structure.encode(spans, n)
        np.testing.assert_array_equal(structure.decode(again, n), spans)
    last = merged_spans(array((1, 0, 0), 3)[None], torch.tensor([4]))
    assert last.first[0, 1, :3].tolist() == [0, 1, 3] and last.last[0, 1, :3].tolist() == [0, 2, 3]


@pytest.mark.parametrize("spans", [[(0, 2)], [(0, 1), (1, 2)], [(0, 2), (0, 2)], [(0, 2), (2, 3)]])
def test_spans_that_are_no_tree_are_refused(spans):
    with pytest.raises(ValueError):
        MergeSequence().encode(np.array(spans), 3)


def test_what_cannot_be_is_refused():
    structure, scores = MergeSequence(), scores_of()
    for name in ("log_partition", "marginals", "sparsemap", "entropy"):
        with pytest.raises(NotTractable, match="ConstituencyTree"):
            getattr(structure, name)(scores, LENGTHS)
    forbidden = scores.clone()
    forbidden[2, 1] = -math.inf
    with pytest.raises(InfeasibleError, match=r"\b2\b"):
        structure.map(forbidden, LENGTHS)
    with pytest.raises(InvalidScores, match=r"\bk\b"):
        structure.top_k(scores, LENGTHS, 0)
    with pytest.raises(InvalidScores, match=r"lengths are 5"):
        structure.map(scores[:1], torch.tensor([5]))


def test_it_trains_in_a_latent_layer_and_only_with_merges():
    scorer, vectors = parser()
    composer = registry.get("misc", "spacy-latent.MergeTreeLstm.v1")(output="root")(6).double()
    with pytest.raises(IncompatiblePair, match=r"MergeScorer.*ShiftReduce"):
        LatentLayer(scorer, ShiftReduce(), BestStraightThrough(), composer)
    layer = LatentLayer(scorer, MergeSequence(), BestStraightThrough(k=3), composer)
    layer(vectors, LENGTHS).vectors.square().sum().backward()
    assert scorer.query.weight.grad.any() and vectors.grad.isfinite().all()
    layer.eval()
    with torch.no_grad():
        output = layer(vectors, LENGTHS)
    assert output.draw.z.shape == (1, 5, 3, 3) and output.vectors.shape == (5, 4, 6)
    for batch, longest in [(0, 4), (2, 0), (2, 1)]:
        nothing = torch.zeros(batch, dtype=torch.int64)
        assert layer(vectors[:batch, :longest], nothing).vectors.shape == (batch, longest, 6)
