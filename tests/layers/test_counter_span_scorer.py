"""Spans scored by learned counters, against a loop over all spans."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.counter_span_scorer import CounterSpanScorer

LENGTHS = torch.tensor([5, 3, 1])


def make(**options: object) -> CounterSpanScorer:
    torch.manual_seed(0)
    build = registry.get("misc", "spacy-latent.CounterSpanScorer.v1")
    scorer = build(**{"counters": 2, "hidden_width": 7, **options})(6)
    assert isinstance(scorer, CounterSpanScorer)
    return scorer


def by_spans(scorer: CounterSpanScorer, vectors: Tensor) -> Tensor:
    """Return the scores of one sentence, [first, last], each from its own slice of the counters."""
    size = len(vectors)
    counters = [torch.zeros(scorer.step.out_features, dtype=vectors.dtype)]
    for vector in vectors:
        counters.append(counters[-1] + torch.tanh(scorer.step(vector)) ** 3)
    nothing = torch.zeros_like(vectors[0])
    scores = vectors.new_zeros(size, size)
    for i in range(size):
        for j in range(i, size):
            before, after = counters[i], counters[j + 1]
            infinite = torch.full_like(before, torch.inf)
            least = torch.stack([infinite, *counters[i + 1 : j + 1]]).amin(0)
            greatest = torch.stack([-infinite, *counters[i + 1 : j + 1]]).amax(0)
            features = [
                (after - before).clamp(-1, 1),
                (least - before).clamp(-1, 1),
                (least - after).clamp(-1, 1),
                (greatest - before).clamp(-1, 1),
                (greatest - after).clamp(-1, 1),
                torch.exp(-((after - before) ** 2)),
                torch.exp(-4 * (after - before - 1) ** 2),
                torch.exp(-4 * (after - before + 1) ** 2),
                torch.exp(torch.tensor([-(j - i + 1)], dtype=vectors.dtype)),
            ]
            hidden = scorer.hidden(torch.relu(scorer.span(torch.cat(features))))
            left = vectors[i - 1] if i else nothing
            right = vectors[j + 1] if j + 1 < size else nothing
            hidden = hidden + scorer.first(torch.cat([vectors[i], left]))
            hidden = hidden + scorer.last(torch.cat([vectors[j], right]))
            scores[i, j] = scorer.output(torch.relu(hidden)).squeeze()
    return scores


def test_equals_a_loop_over_spans() -> None:
    scorer = make().double()
    vectors = torch.randn(3, 5, 6, dtype=torch.float64)
    scores = scorer(vectors, LENGTHS)
    assert scores.shape == (3, 5, 5)
    for b, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(scores[b, :n, :n], by_spans(scorer, vectors[b, :n]))


@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4)])
def test_padding_changes_nothing(encoder: object) -> None:
    scorer = make(encoder=encoder).double()
    vectors = torch.randn(3, 5, 6, dtype=torch.float64)
    with_nan = vectors.clone()
    for item, n in zip(with_nan, LENGTHS.tolist()):
        item[n:] = torch.nan
    results = []
    for given in (vectors, with_nan):
        scorer.zero_grad()
        scores = [item[:n, :n] for item, n in zip(scorer(given, LENGTHS), LENGTHS.tolist())]
        torch.cat([item.tanh().flatten() for item in scores]).sum().backward()
        results.append([*scores, *(weight.grad.clone() for weight in scorer.parameters())])
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
    alone = scorer(vectors[1:2, :3], LENGTHS[1:2])
    torch.testing.assert_close(results[0][1], alone[0])
    if encoder is None:
        assert scorer(vectors[:0], LENGTHS[:0]).shape == (0, 5, 5)


def test_gradients() -> None:
    scorer = make().double()
    vectors = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 2])
    inside = torch.ones(2, 4, 4).triu().bool()
    inside[1, :, 2:] = False
    weights = tuple(scorer.parameters())
    assert torch.autograd.gradcheck(lambda v, *_: scorer(v, lengths)[inside], (vectors, *weights))


def test_wrong_sizes_are_refused() -> None:
    build = registry.get("misc", "spacy-latent.CounterSpanScorer.v1")
    with pytest.raises(LatentError, match=r"CounterSpanScorer.*counters"):
        build(counters=0)
    with pytest.raises(LatentError, match=r"CounterSpanScorer.*hidden_width"):
        build(hidden_width=0)
