"""Parsers that learn from rewards alone, by REINFORCE and by PPO's inner steps."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.estimators.control_variates import SelfCritical
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.shift_reduce import ShiftReduce

LENGTHS = torch.tensor([5, 4, 5, 3, 1])
PARSERS = {
    "shift-reduce": ("ShiftReduce", "StackScorer", "BinaryTreeLstm"),
    "shift-reduce, spans": ("ShiftReduce", "SpanScorer", "BinaryTreeLstm"),
    "merges": ("MergeSequence", "MergeScorer", "MergeTreeLstm"),
}


def layer_of(parser: str, estimator: ScoreFunction) -> LatentLayer:
    torch.manual_seed(0)
    structure, scorer, composer = (
        registry.get("misc", f"spacy-latent.{name}.v1")() for name in PARSERS[parser]
    )
    return LatentLayer(scorer(8), structure, estimator, composer(8))


def costs(layer: LatentLayer, z: torch.Tensor) -> torch.Tensor:
    """Return ``(K, B)``: the share of spans of each tree that are not in the target tree.

    The target is right-branching for items with an even index, and left-branching for the others.
    """
    found = torch.zeros(z.shape[:2])
    for k in range(z.shape[0]):
        for b, n in enumerate(LENGTHS.tolist()):
            spans = layer.structure.decode(z[k, b].numpy(), n).tolist()
            inner = [(i, j) for i, j in spans if j > i]
            wrong = sum((i > 0) if b % 2 else (j < n - 1) for i, j in inner)
            found[k, b] = wrong / max(1, len(inner))
    return found


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("parser", PARSERS)
def test_the_rewarded_trees_are_found(parser: str, inner_steps: int) -> None:
    layer = layer_of(parser, ScoreFunction(num_samples=4, control_variate=SelfCritical()))
    vectors = torch.randn(5, 5, 8)
    optimizer = torch.optim.Adam(layer.scorer.parameters(), lr=0.02)
    for _ in range(40):
        draw, _ = layer.read(vectors, LENGTHS)
        assert draw.log_probs is not None
        cost = costs(layer, draw.z)
        leaf = draw.log_probs.detach().requires_grad_()
        objective = layer.estimator.objective(cost, draw.weights, leaf, vectors.mean(1))
        (advantage,) = torch.autograd.grad(objective.sum(), leaf)
        optimizer.zero_grad()
        draw.log_probs.backward(advantage)
        optimizer.step()
        for _ in range(inner_steps - 1):
            structure = layer.scorer.bind(layer.structure, vectors, LENGTHS, 1.0)
            now = structure.log_prob(draw.z, layer.scorer(vectors, LENGTHS), LENGTHS)
            ratio = (now - leaf.detach()).exp()
            loss = torch.maximum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    layer.eval()
    with torch.no_grad():
        draw, _ = layer.read(vectors, LENGTHS)
    assert costs(layer, draw.z).sum() == 0


@pytest.mark.parametrize("count", [1, 2])
def test_the_entropy_bonus_has_the_gradient_of_the_entropy(count: int) -> None:
    """The expectation is over all trees of four words, or all pairs of them."""
    structure, lengths = ShiftReduce(), torch.tensor([4])
    torch.manual_seed(0)
    scores = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    z = structure.top_k(scores.detach(), lengths, 5).z
    log_p = structure.log_prob(z, scores, lengths)[:, 0]
    values = torch.randn(5, dtype=torch.float64)
    estimator = ScoreFunction(num_samples=count, entropy_bonus=0.7)
    drawn = torch.cartesian_prod(*[torch.arange(5)] * count).view(-1, count).t()
    weights = torch.full(drawn.shape, 1 / count, dtype=torch.float64)
    objective = estimator.objective(values[drawn], weights, log_p[drawn], weights.t())
    probability = log_p[drawn].sum(0).detach().exp()
    (found,) = torch.autograd.grad(probability @ objective, scores, retain_graph=True)
    exact = log_p.exp() @ (values + 0.7 * log_p)
    (expected,) = torch.autograd.grad(exact, scores)
    torch.testing.assert_close(found, expected)
    with pytest.raises(LatentError, match="entropy_bonus"):
        ScoreFunction(entropy_bonus=-1)
