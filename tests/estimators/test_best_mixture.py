"""The mixture of the k best structures, against the mixture of all structures."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.estimators.best_mixture import BestMixture
from spacy_latent.estimators.best_straight_through import BestStraightThrough
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.layers.merge_scorer import build_merge_scorer_v1
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.merge_sequence import MergeSequence

LENGTHS = torch.tensor([4, 1, 3, 0, 2])


def scores_of(structure):
    torch.manual_seed(0)
    size = 4 if structure is ConstituencyTree else 3
    return torch.randn(5, size, size, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("structure", [ConstituencyTree, MergeSequence])
def test_with_room_for_all_it_is_the_expectation(structure):
    """The value and the gradient are exact if all structures are among the k best."""
    scores = scores_of(structure)
    kind = structure()
    draw = BestMixture(k=6)(kind, scores, LENGTHS, is_train=True)
    assert draw.weights.shape[0] == (5 if structure is ConstituencyTree else 6)
    torch.testing.assert_close(draw.weights.sum(0), torch.ones(5, dtype=torch.float64))
    expected = kind.log_prob(draw.z, scores, LENGTHS).exp()
    there = ~draw.padding if draw.padding is not None else torch.ones_like(expected).bool()
    torch.testing.assert_close(draw.weights, expected * there)
    values = torch.rand_like(draw.weights)
    (found,) = torch.autograd.grad((draw.weights * values).sum(), scores, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected * there * values).sum(), scores)
    torch.testing.assert_close(found, wanted)
    assert found.any()


def test_a_part_of_them_share_by_their_probabilities_and_the_best_comes_first():
    scores, kind = scores_of(ConstituencyTree), ConstituencyTree()
    draw = BestMixture(k=2)(kind, scores, LENGTHS, is_train=True)
    log_prob = kind.log_prob(draw.z, scores, LENGTHS)
    odds = (log_prob[0] - log_prob[1])[[0, 2]]
    torch.testing.assert_close((draw.weights[0] / draw.weights[1])[[0, 2]], odds.exp())
    # Items with a single tree have no second one, and lose no weight to it.
    assert draw.weights[:, [1, 3, 4]].tolist() == [[1.0] * 3, [0.0] * 3]
    torch.testing.assert_close(draw.z[0], kind.map(scores, LENGTHS))


def test_prediction_is_the_best_or_the_mixture():
    scores, kind = scores_of(MergeSequence), MergeSequence()
    best = BestMixture(k=3)(kind, scores, LENGTHS, is_train=False)
    assert best.weights.tolist() == [[1.0] * 5]
    mixture = BestMixture(k=3, prediction="marginal")
    predicted = mixture(kind, scores, LENGTHS, is_train=False)
    trained = mixture(kind, scores, LENGTHS, is_train=True)
    assert torch.equal(predicted.weights, trained.weights)
    assert torch.equal(predicted.z, trained.z) and torch.equal(best.z[0], trained.z[0])


@pytest.mark.parametrize("name", ["MergeTreeLstm", "MergeGatedRecursiveTree"])
def test_a_beam_of_merges_learns_in_a_latent_layer(name):
    """The result is the mixture of the vectors that the sequences compose.

    The gradient of the scorer is right, although the merges themselves get no gradient.
    """
    torch.manual_seed(1)
    scorer = build_merge_scorer_v1()(6).double()
    composer = registry.get("misc", f"spacy-latent.{name}.v1")(output="root")(6).double()
    layer = LatentLayer(scorer, MergeSequence(), BestMixture(k=3), composer)
    vectors = torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)
    output = layer(vectors, LENGTHS)
    z, weights = output.draw.z, output.draw.weights
    each = torch.stack([composer(vectors, one, LENGTHS) for one in z])
    expected = (weights[..., None, None] * each).sum(0)
    for b, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(output.vectors[b, :n], expected[b, :n])
    query = scorer.query.weight
    loss = output.vectors[0].square().sum()
    (found,) = torch.autograd.grad(loss, query, retain_graph=True)
    step = 1e-6 * torch.randn_like(query)
    with torch.no_grad():
        query += step
        above = layer(vectors, LENGTHS).vectors[0].square().sum()
        query -= 2 * step
        below = layer(vectors, LENGTHS).vectors[0].square().sum()
    torch.testing.assert_close((found * step).sum() * 2, above - below, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"k": 0}, r"BestMixture.*\bk\b"),
        ({"k": 1}, r"BestMixture.*\bk\b"),
        ({"prediction": "best"}, "BestMixture.*prediction"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(LatentError, match=said):
        BestMixture(**options)


@pytest.mark.parametrize(
    "estimator",
    [BestMixture(k=5), BestStraightThrough(k=5), TopKSparsemax(k=5)],
    ids=lambda estimator: estimator.name,
)
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_weights_hold_their_digits_beside_an_offset(estimator, offset):
    """All spans have the offset, and a tree has 2n − 1 spans. Totals in single precision keep no
    digits.
    """
    torch.manual_seed(0)
    scores = 0.5 * torch.randn(2, 30, 30) + offset
    lengths, values = torch.tensor([30, 21]), torch.arange(5.0)[:, None]

    def found(given):
        given = given.requires_grad_()
        weights = estimator(ConstituencyTree(), given, lengths, is_train=True).weights
        return weights, torch.autograd.grad((weights * values).sum(), given)[0]

    single, double = found(scores.clone()), found(scores.double())
    for own, exact in zip(single, double):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own, exact.float(), rtol=1e-5, atol=1e-6)
