"""Arcs scored by learned counters, against a loop over all pairs."""

from __future__ import annotations

import pytest
import spacy
import torch
from spacy.training import Example
from spacy.util import registry
from thinc.api import Adam, fix_random_seed

from spacy_latent.errors import LatentError
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.counter_scorer import (
    CounterScorer,
    build_counter_scorer_v1,
)
from spacy_latent.layers.counter_span_scorer import build_counter_span_scorer_v1
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.latent_layer_model import SpanModule
from spacy_latent.models.latent_text_classifier import latent_layer
from spacy_latent.models.span_groups import group_spans
from spacy_latent.structures.projective_tree import ProjectiveTree
from tests.layers.scored_arcs import LENGTHS, check_gradients, check_padding, real


def make(**options):
    torch.manual_seed(0)
    return build_counter_scorer_v1(**{"counters": 2, "hidden_width": 7, **options})(6)


def by_pairs(scorer: CounterScorer, vectors):
    """Return the scores of one sentence, [head, modifier], each from its own counters."""
    counters, total = [], torch.zeros(scorer.step.out_features, dtype=vectors.dtype)
    for vector in vectors:
        total = total + torch.tanh(scorer.step(vector)) ** 3
        counters.append(total)
    size = len(vectors)
    scores = torch.zeros(size + 1, size + 1, dtype=vectors.dtype)
    for m in range(size):
        before = counters[m - 1] if m else torch.zeros_like(total)
        around = [vectors[m], counters[m].clamp(-1, 1), before.clamp(-1, 1)]
        scores[0, m + 1] = scorer.root(torch.cat(around)).squeeze()
        for h in range(size):
            between = torch.stack(counters[min(h, m) : max(h, m)] or [counters[h]])
            least, greatest = between.amin(0), between.amax(0)
            features = [
                (counters[m] - counters[h]).clamp(-1, 1),
                (least - counters[h]).clamp(-1, 1),
                (least - counters[m]).clamp(-1, 1),
                (greatest - counters[h]).clamp(-1, 1),
                (greatest - counters[m]).clamp(-1, 1),
                torch.exp(-((counters[m] - counters[h]) ** 2)),
                torch.exp(-4 * (counters[m] - counters[h] - 1) ** 2),
                torch.exp(-4 * (counters[m] - counters[h] + 1) ** 2),
                torch.tensor([float(m > h)], dtype=vectors.dtype),
                torch.exp(torch.tensor([-abs(m - h)], dtype=vectors.dtype)),
            ]
            hidden = scorer.hidden(torch.relu(scorer.arc(torch.cat(features))))
            hidden = hidden + scorer.head(vectors[h]) + scorer.modifier(vectors[m])
            scores[h + 1, m + 1] = scorer.output(torch.relu(hidden)).squeeze()
    return scores


def test_equals_a_loop_over_pairs():
    scorer = make().double()
    vectors = torch.randn(3, 5, 6, dtype=torch.float64)
    scores = scorer(vectors, LENGTHS)
    assert scores.shape == (3, 6, 6)
    expected = [by_pairs(scorer, item[:n]) for item, n in zip(vectors, LENGTHS.tolist())]
    for found, wanted in zip(real(scores), real(expected), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4)])
def test_padding_changes_nothing(encoder):
    check_padding(make(encoder=encoder).double())


def test_gradients():
    check_gradients(make().double())


@pytest.mark.parametrize("depth", [1, 3, 40])
def test_it_can_match_brackets_of_any_depth(depth):
    """Weights set by hand match brackets.

    After the opening bracket the counter is one higher than after the closing one, and it is never
    lower in between.
    """
    scorer = build_counter_scorer_v1(counters=1, hidden_width=3)(1)
    with torch.no_grad():
        for weight in scorer.parameters():
            weight.zero_()
        scorer.step.weight.fill_(100.0)
        # Each hidden unit is a penalty: the counter is lower in between, it is not one lower at the
        # modifier, or the head comes second.
        least_after_head, one_lower, first = 1, 7, 8
        scorer.arc.weight[0, least_after_head] = -1.0
        scorer.arc.weight[1, one_lower] = -1.0
        scorer.arc.bias[1] = 1.0
        scorer.arc.weight[2, first] = -1.0
        scorer.arc.bias[2] = 1.0
        scorer.hidden.weight.copy_(torch.eye(3))
        scorer.output.weight.fill_(-1.0)
        scorer.root[2].bias.fill_(-10.0)
    # ( ( ) ( ... ) ): each level has a pair of brackets before the deeper level.
    steps, heads, opened = [], [], []
    for step in [1, *([1, -1, 1] * (depth - 1)), *([-1] * depth)]:
        steps.append(float(step))
        heads.append(0 if step > 0 else opened.pop())
        if step > 0:
            opened.append(len(steps))
    vectors = torch.tensor(steps)[None, :, None]
    found = scorer(vectors, torch.tensor([len(steps)]))[0, :, 1:].argmax(0)
    closing = torch.tensor(steps) < 0
    assert found[closing].tolist() == torch.tensor(heads)[closing].tolist()


def test_counters_are_the_running_sums():
    scorer = make()
    with torch.no_grad():
        scorer.step.weight.zero_()
        scorer.step.weight[0, 0] = 100.0
        scorer.step.bias.zero_()
    vectors = torch.zeros(1, 6, 6)
    vectors[0, :, 0] = torch.tensor([1.0, 1.0, -1.0, 0.0, -1.0, 1.0])
    counters = scorer.counters(vectors, torch.tensor([6]))
    assert counters[0, :, 0].tolist() == [1.0, 2.0, 1.0, 1.0, 0.0, 1.0]
    assert counters[0, :, 1].tolist() == [0.0] * 6


def test_long_sentences_stay_finite():
    scorer = make()
    vectors = (10 * torch.randn(1, 300, 6)).requires_grad_()
    scores = scorer(vectors, torch.tensor([300]))
    scores.sum().backward()
    assert scores.isfinite().all() and vectors.grad.isfinite().all()


def test_no_tokens_and_no_items():
    scorer, vectors = make(), torch.randn(3, 5, 6)
    assert scorer(vectors[:0], LENGTHS[:0]).shape == (0, 6, 6)
    assert scorer(vectors[:, :0], 0 * LENGTHS).shape == (3, 1, 1)


def test_is_registered_and_refuses_wrong_sizes():
    build = registry.get("misc", "spacy-latent.CounterScorer.v1")
    assert isinstance(build()(6), CounterScorer)
    with pytest.raises(LatentError, match="counters"):
        build(counters=0)
    with pytest.raises(LatentError, match="hidden_width"):
        build(hidden_width=0)


def test_noise_is_of_training_alone():
    scorer = build_counter_scorer_v1(noise=0.5)(6).train()
    vectors, lengths = torch.randn(64, 30, 6), torch.full((64,), 30)
    assert not torch.equal(scorer(vectors, lengths), scorer(vectors, lengths))
    quiet = scorer.eval().steps(vectors)
    spread = scorer.train().steps(vectors) - quiet
    # There are 7,680 numbers. The bounds are five standard errors of their mean and of their
    # standard deviation.
    assert abs(spread.mean()) < 5 * 0.5 / 7680**0.5
    assert abs(spread.std() - 0.5) < 5 * 0.5 / (2 * 7680) ** 0.5
    scorer.eval()
    assert torch.equal(scorer(vectors, lengths), scorer(vectors, lengths))


def test_what_is_near_zero_adds_next_to_nothing():
    scorer = build_counter_scorer_v1(counters=1)(1)
    with torch.no_grad():
        scorer.step.weight.fill_(1.0)
        scorer.step.bias.zero_()
    added = scorer.steps(torch.tensor([[[0.1], [-0.1], [5.0], [-5.0]]]))[0, :, 0]
    assert added[:2].abs().max() < 0.001 and added[2:].abs().min() > 0.999


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan")])
def test_noise_that_is_no_standard_deviation_is_refused(noise):
    with pytest.raises(LatentError, match="noise"):
        build_counter_scorer_v1(noise=noise)


def test_whole_steps_are_of_prediction_alone():
    """Prediction rounds each step: a slow drift adds nothing, and a step of nearly 1 adds 1."""
    scorer = build_counter_scorer_v1(counters=2, whole_steps=True)(1)
    with torch.no_grad():
        scorer.step.weight.zero_()
        scorer.step.weight[0] = 1.0
        scorer.step.bias.copy_(torch.tensor([0.0, 0.5]))
    vectors = torch.tensor([-2.0, -0.3, 0.3, 2.0])[None, :, None].repeat(1, 10, 1)
    lengths = torch.tensor([40])
    assert scorer.train().counters(vectors, lengths)[0, -1, 1] > 3
    counters = scorer.eval().counters(vectors, lengths)[0]
    assert counters[:4, 0].tolist() == [-1.0, -1.0, -1.0, 0.0] and not counters[:, 1].any()


def test_more_than_the_limit_is_all_the_same():
    """Differences of counters beyond the limit have equal features, so these heads have equal
    scores.
    """
    scorer = make(counters=1).eval()
    with torch.no_grad():
        scorer.step.weight.zero_()
        scorer.step.weight[0, 0] = 100.0
        scorer.step.bias.zero_()
    vectors = torch.zeros(1, 60, 6)
    vectors[0, :10, 0] = 1.0
    scores = scorer(vectors, torch.tensor([60]))[0]
    far = scores[1:8, 60]
    torch.testing.assert_close(far, far[:1].expand(7))
    assert not torch.isclose(scores[10, 60], far[0])


@pytest.mark.parametrize("build", [build_counter_scorer_v1, build_counter_span_scorer_v1])
def test_what_steps_cost(build) -> None:
    torch.manual_seed(0)
    scorer = build(counters=3, hidden_width=4, noise=0.5, whole_steps=True, step_cost=0.3)(6)
    vectors, lengths = torch.randn(3, 5, 6), torch.tensor([5, 2, 0])
    vectors[1, 2:] = torch.nan
    cost = scorer.cost(vectors, lengths)
    for b, n in ((0, 5), (1, 2)):
        sizes = (torch.tanh(scorer.step(vectors[b, :n])) ** 3).abs()
        torch.testing.assert_close(cost[b], 0.3 * sizes.sum())
    assert cost[2] == 0.0
    (slope,) = torch.autograd.grad(cost.sum(), scorer.step.weight)
    assert slope.isfinite().all() and (slope != 0).all()
    assert build(counters=3)(6).cost(vectors, lengths) is None
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(LatentError, match="step_cost"):
            build(step_cost=wrong)
        with pytest.raises(LatentError, match="input_noise"):
            build(input_noise=wrong)


@pytest.mark.parametrize("build", [build_counter_scorer_v1, build_counter_span_scorer_v1])
def test_noise_before_the_cube_lets_a_step_at_0_move(build) -> None:
    """The slope of the cube at a step of 0 is 0 without noise, for any loss."""
    vectors = torch.ones(1, 2000, 6)
    slopes = {}
    for noise in (0.0, 0.4):
        torch.manual_seed(0)
        scorer = build(counters=1, hidden_width=4, input_noise=noise)(6)
        with torch.no_grad():
            scorer.step.weight.zero_()
            scorer.step.bias.zero_()
        steps = scorer.steps(vectors)
        (slope,) = torch.autograd.grad(steps.mean(), scorer.step.bias)
        slopes[noise] = slope.item()
        assert steps.mean().abs() < 0.02
        assert not scorer.eval().steps(vectors).any(), "prediction has no noise"
    # 3 E[tanh² (1 − tanh²)] over a normal distribution with this standard deviation, by numerical
    # integration.
    grid = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    density = torch.exp(-(grid**2) / 2) / (2 * torch.pi) ** 0.5
    squared = torch.tanh(0.4 * grid) ** 2
    expected = torch.trapezoid(3 * squared * (1 - squared) * density, grid).item()
    assert slopes[0.0] == 0.0
    assert slopes[0.4] == pytest.approx(expected, rel=0.1)


def test_a_layer_adds_the_cost_to_what_it_draws_in_training() -> None:
    torch.manual_seed(0)
    scorer = build_counter_scorer_v1(counters=2, hidden_width=4, step_cost=0.5)(6)
    composer = build_graph_convolution_v1()(6)
    layer = LatentLayer(scorer, ProjectiveTree(), Marginals(), composer)
    vectors = torch.randn(3, 5, 6)
    draw, _ = layer.train().read(vectors, LENGTHS)
    torch.testing.assert_close(draw.cost, scorer.cost(vectors, LENGTHS))
    draw, _ = layer.eval().read(vectors, LENGTHS)
    assert draw.cost is None


def test_a_batch_is_charged_the_same_however_its_texts_are_grouped() -> None:
    fix_random_seed(0)
    layer = LatentLayer(
        build_counter_scorer_v1(counters=2, hidden_width=4, step_cost=1.0)(6),
        ProjectiveTree(),
        Marginals(),
        build_graph_convolution_v1()(6),
    )
    module = SpanModule(layer, None, False, 0.0).train()
    rows = torch.randn(60, 6)
    charged = []
    for sizes in ((30, 30), (48, 12)):
        groups = group_spans(sizes, [[(0, size)] for size in sizes])
        charged.append(module(rows, groups)[1])
    assert len(groups) == 2
    torch.testing.assert_close(charged[0], charged[1])


def size_of_digits(step_cost: float) -> float:
    """Return the mean counter step of digits after training. Only the words before them matter."""
    fix_random_seed(0)
    nlp = spacy.blank("xx")
    embed = {"@architectures": "spacy-latent.MultiHashEmbed.v1", "width": 16, "attrs": ["ORTH"]}
    scorer = {"@misc": "spacy-latent.CounterScorer.v1", "step_cost": step_cost}
    model = {"tok2vec": {**embed, "rows": [100]}, "scorer": scorer}
    nlp.add_pipe("latent_textcat", config={"model": model})
    texts = [f"{first} {a} {b}" for first in "xy" for a in "123" for b in "123"]
    sample = [
        Example.from_dict(nlp.make_doc(t), {"cats": {"x": t[0] == "x", "y": t[0] == "y"}})
        for t in texts
    ]
    nlp.initialize(lambda: sample)
    optimizer = Adam(0.01, L2=0.0)
    for _ in range(40):
        nlp.update(sample, sgd=optimizer)
    classifier = nlp.get_pipe("latent_textcat").model
    step = latent_layer(classifier).scorer.step
    rows = classifier.get_ref("tok2vec").predict([nlp.make_doc("1 2 3")])[0]
    return (torch.tanh(step(torch.tensor(rows))) ** 3).abs().mean().item()


def test_steps_that_make_no_difference_are_taken_back() -> None:
    assert size_of_digits(1.0) < 0.02 < size_of_digits(0.0)


@pytest.mark.parametrize("build", [build_counter_scorer_v1, build_counter_span_scorer_v1])
@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4)])
def test_autocast_on_the_cpu_leaves_the_sums_alone(build, encoder):
    torch.manual_seed(0)
    scorer = build(counters=2, hidden_width=7, encoder=encoder)(6)
    vectors, lengths = torch.randn(2, 30, 6), torch.tensor([30, 12])
    expected = scorer(vectors, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = scorer(vectors, lengths)
    assert found.dtype == torch.float32
    if encoder is None:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    found.sum().backward()
    assert all(weight.grad is not None for weight in scorer.parameters())


@pytest.mark.parametrize("build", [build_counter_scorer_v1, build_counter_span_scorer_v1])
def test_the_integer_type_of_lengths_makes_no_difference(build):
    torch.manual_seed(0)
    scorer = build(counters=2, hidden_width=7)(6)
    vectors, lengths = torch.randn(3, 4, 6), torch.tensor([4, 0, 2])
    found = scorer(vectors, lengths.to(torch.uint8))
    torch.testing.assert_close(found, scorer(vectors, lengths), rtol=0, atol=0)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_refused(precision):
    scorer = build_counter_scorer_v1(counters=2, hidden_width=7)(6).to(precision)
    with pytest.raises(LatentError, match=f"{precision}.*float32.*autocast"):
        scorer(torch.randn(1, 3, 6, dtype=precision), torch.tensor([3]))


@pytest.mark.parametrize("batch, words", [(0, 3), (2, 0), (0, 0)])
def test_an_encoder_of_no_items_and_of_no_words(batch, words):
    encoder = build_bilstm_v1(hidden_width=4)(6)
    found = encoder(torch.zeros(batch, words, 6), torch.zeros(batch, dtype=torch.int64))
    assert found.shape == (batch, words, 8)
