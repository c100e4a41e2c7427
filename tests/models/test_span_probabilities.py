"""Probabilities of spans, compared with sums over all tag sequences."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from spacy_latent.models.span_probabilities import Place, SpanProbabilities, spans_of_tags
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_losses import LOSSES
from spacy_latent.structures.tag_sequence import allowed_transitions, scheme_tags
from tests.models.scored_tags import Scored

LABELS = ("A", "B")
TAGS = scheme_tags(LABELS, "biluo")
KINDS = ("crf", "quadratic", "perceptron", "sparsemap")


def drawn(n: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emissions = scale * torch.randn(n, len(TAGS), generator=generator)
    return emissions, scale * torch.randn(len(TAGS) + 2, len(TAGS), generator=generator)


def by_enumeration(
    emissions: torch.Tensor, transitions: torch.Tensor
) -> dict[tuple[int, int, int], float]:
    between, start, end = allowed_transitions(TAGS, "biluo")
    count, n = len(TAGS), len(emissions)
    between, start, end = (
        between + transitions[:count],
        start + transitions[count],
        end + transitions[count + 1],
    )
    own, first, last, pairs = (p.tolist() for p in (emissions, start, end, between))
    weights: dict[tuple[int, ...], float] = {}
    for tags in itertools.product(range(count), repeat=n):
        score = first[tags[0]] + last[tags[-1]] + sum(own[i][t] for i, t in enumerate(tags))
        weights[tags] = math.exp(score + sum(pairs[a][b] for a, b in itertools.pairwise(tags)))
    total = sum(weights.values())
    found: dict[tuple[int, int, int], float] = {}
    for tags, weight in weights.items():
        for place in spans_of_tags(tags) if weight else ():
            found[place] = found.get(place, 0.0) + weight / total
    return found


def spans(kind: str, group: Scored) -> SpanProbabilities:
    return LOSSES[kind].probabilities(group, within_labels=True).spans()


def above(found: SpanProbabilities, least: float) -> list[tuple[int, Place, float]]:
    docs, *places, values = (each.tolist() for each in found.above(least))
    assert len(set(zip(docs, *places))) == len(docs)
    return list(zip(docs, zip(*places), values))


@pytest.mark.parametrize("seed", range(2))
def test_of_a_crf_they_are_the_sums_over_all_sequences(seed: int) -> None:
    n = 4
    emissions, transitions = drawn(n, seed)
    # An entity that is on the doc forbids tags.
    emissions[1, 0] = -torch.inf
    shorter = torch.cat([drawn(2, seed + 10)[0], torch.full((n - 2, len(TAGS)), 3.0)])
    chain = bound_chain(transitions, TAGS)
    # There is padding before another doc, and at the end.
    scores, lengths = torch.stack([shorter, emissions, shorter]), torch.tensor([2, n, 2])
    found = spans("crf", Scored(chain, scores, lengths))
    for b, own in enumerate((shorter[:2], emissions, shorter[:2])):
        expected = by_enumeration(own, transitions)
        for place, p in expected.items():
            assert found.of(b, place) == pytest.approx(p, abs=1e-7)
        likely = {place: p for c, place, p in above(found, 0.01) if c == b}
        assert likely == pytest.approx({q: p for q, p in expected.items() if p >= 0.01})


@pytest.mark.parametrize("kind", KINDS)
def test_entities_of_the_best_sequence_have_what_they_have_elsewhere(kind: str) -> None:
    for seed in range(4):
        emissions, transitions = drawn(6, seed, 0.5)
        chain, scores = bound_chain(transitions, TAGS), emissions[None]
        lengths = torch.tensor([6])
        best = chain.best_tags(scores, lengths)
        likely = LOSSES[kind].probabilities(Scored(chain, scores, lengths))
        found = spans(kind, Scored(chain, scores, lengths))
        for place in spans_of_tags(best[0].numpy()):
            assert found.of(0, place) == pytest.approx(likely.of_run(0, *place[:2]), abs=1e-5)
        for b, place, p in above(found, 0.05):
            assert b == 0 and found.of(0, place) == pytest.approx(p) and 0.05 <= p <= 1 + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_no_span_leaves_its_doc(kind: str) -> None:
    """No span reaches into the padding, whose scores favour entities."""
    lengths = torch.tensor([1, 2, 3])
    scores = torch.full((3, 3, len(TAGS)), 9.0)
    for b, n in enumerate(lengths.tolist()):
        scores[b, :n] = drawn(n, b, 3.0)[0]
    chain = bound_chain(drawn(1, 7)[1], TAGS)
    found = above(spans(kind, Scored(chain, scores, lengths)), 1e-12)
    assert any(b == 2 for b, _, _ in found)
    assert all(0 <= start < end <= lengths[b] for b, (start, end, _), _ in found)


def test_large_scores_and_long_texts_stay_finite() -> None:
    emissions, transitions = drawn(300, 0, 20.0)
    chain, lengths = bound_chain(transitions, TAGS), torch.tensor([300])
    found = spans("crf", Scored(chain, emissions[None], lengths))
    best = chain.best_tags(emissions[None], lengths)
    likely = LOSSES["crf"].probabilities(Scored(chain, emissions[None], lengths))
    places = spans_of_tags(best[0].numpy())
    assert len(places) > 10
    own = [found.of(0, place) for place in places]
    assert np.isfinite(own).all()
    assert own == pytest.approx([likely.of_run(0, *place[:2]) for place in places], abs=1e-6)


@pytest.mark.parametrize("kind", ["crf", "sparsemap"])
def test_spans_from_one_token_are_in_the_order_of_their_ends_and_labels(kind: str) -> None:
    """Spans with equal probabilities keep this order, since callers use a stable sort."""
    emissions, transitions = torch.zeros(3, 4, len(TAGS)), torch.zeros(len(TAGS) + 2, len(TAGS))
    emissions[1] = drawn(4, 3)[0]
    chain, lengths = bound_chain(transitions, TAGS), torch.tensor([4, 4, 2])
    docs, starts, ends, labels, _ = spans(kind, Scored(chain, emissions, lengths)).above(1e-6)
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for doc, start, end, label in zip(*(each.tolist() for each in (docs, starts, ends, labels))):
        rows.setdefault((doc, start), []).append((end, label))
    assert max(map(len, rows.values())) > 1
    assert all(own == sorted(own) for own in rows.values())
