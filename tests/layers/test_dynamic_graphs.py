"""Tree-LSTMs over all trees of a support or a sample, against one tree at a time."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry

from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

LENGTHS = torch.tensor([5, 2, 4, 1])
PAIRS = {
    "child-sum": (SpanningTree, "BiaffineScorer", "ChildSumTreeLstm"),
    "child-sum, projective": (ProjectiveTree, "BiaffineScorer", "ChildSumTreeLstm"),
    "binary": (ConstituencyTree, "SpanScorer", "BinaryTreeLstm"),
}
SPARSEMAP = SparseMAP(marginalize=True, tolerance=1e-12)


def layer_of(pair, estimator, temperature=10.0):
    torch.manual_seed(0)
    structure, scorer, composer = PAIRS[pair]
    modules = [registry.get("misc", f"spacy-latent.{name}.v1")() for name in (scorer, composer)]
    return LatentLayer(
        modules[0](6), structure(), estimator, modules[1](6), temperature=temperature
    ).double()


def child_sum(lstm, vectors, z):
    """Return the state of each token of one sentence, by the recursion."""
    heads = z.argmax(0)[1:].tolist()

    def visit(token):
        children = [visit(m) for m, head in enumerate(heads) if head == token + 1]
        x = vectors[token]
        summed = sum((h for h, _ in children), torch.zeros_like(x))
        i, o, u = (lstm.gates(x) + lstm.from_children(summed)).chunk(3)
        cell = torch.sigmoid(i) * torch.tanh(u)
        for h, c in children:
            cell = cell + torch.sigmoid(lstm.forget(x) + lstm.forget_from_child(h)) * c
        return torch.sigmoid(o) * torch.tanh(cell), cell

    return torch.stack([visit(token)[0] for token in range(len(heads))])


def binary(lstm, vectors, z):
    n = len(vectors)
    states = {}

    def visit(i, j):
        if i == j:
            a, o, u = lstm.leaf(vectors[i]).chunk(3)
            cell = torch.sigmoid(a) * torch.tanh(u)
        else:
            (k,) = [
                k
                for k in range(i, j)
                if (k == i or z[i, k] == 1) and (k + 1 == j or z[k + 1, j] == 1)
            ]
            (left, c), (right, d) = visit(i, k), visit(k + 1, j)
            a, o, u, f, g = lstm.gates(torch.cat([left, right])).chunk(5)
            cell = torch.sigmoid(a) * torch.tanh(u) + torch.sigmoid(f) * c + torch.sigmoid(g) * d
        states[i, j] = torch.sigmoid(o) * torch.tanh(cell)
        return states[i, j], cell

    visit(0, n - 1)
    rows = []
    for t in range(n):
        above = [state for (i, j), state in states.items() if i <= t <= j and i < j]
        rows.append(states[t, t] + (sum(above) / len(above) if above else 0.0))
    return torch.stack(rows)


def one_at_a_time(layer, pair, vectors):
    """Return the composed vectors of each sentence, from one tree at a time."""
    recursion = binary if pair == "binary" else child_sum
    rows = []
    # The scores are the same bit by bit, because rounding decides between supports with the same
    # mean.
    together = layer.scorer(vectors, LENGTHS) / layer.temperature
    for item, own, n in zip(vectors, together, LENGTHS.tolist()):
        size = n if pair == "binary" else n + 1
        scores = own[None, :size, :size]
        draw = layer.estimator(layer.structure, scores, torch.tensor([n]), True)
        total = torch.zeros(n, 6, dtype=torch.float64)
        for z, weight in zip(draw.z[:, 0], draw.weights[:, 0]):
            total = total + weight * recursion(layer.composer, item[:n], z)
        rows.append(total)
    return rows


@pytest.mark.parametrize("pair", PAIRS)
def test_the_mean_over_a_support_and_its_gradients(pair):
    layer = layer_of(pair, SPARSEMAP)
    vectors = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    readout = torch.randn(6, dtype=torch.float64)
    weights = [vectors, *layer.parameters()]
    output = layer(vectors, LENGTHS)
    assert output.draw.weights.shape[0] > 2 and (output.draw.weights == 0).any()
    rows = [output.vectors[b, :n] for b, n in enumerate(LENGTHS.tolist())]
    expected = one_at_a_time(layer, pair, vectors)
    for row, other in zip(rows, expected):
        torch.testing.assert_close(row, other, atol=1e-7, rtol=1e-6)
    found, wanted = (
        torch.autograd.grad(torch.tanh(torch.cat(each) @ readout).sum(), weights)
        for each in (rows, expected)
    )
    assert all(gradient.any() for gradient in wanted[: len(list(layer.scorer.parameters()))])
    for gradient, other in zip(found, wanted):
        torch.testing.assert_close(gradient, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pair", PAIRS)
def test_only_trees_of_the_support_are_composed(pair, monkeypatch):
    layer = layer_of(pair, SPARSEMAP)
    seen, compose = [], layer.composer.compose_range

    def counted(vectors, z, lengths, item):
        seen.append(len(z))
        return compose(vectors, z, lengths, item)

    monkeypatch.setattr(layer.composer, "compose_range", counted)
    draw = layer(torch.randn(4, 5, 6, dtype=torch.float64), LENGTHS).draw
    assert seen == [int((draw.weights > 0).sum())] and seen[0] < draw.weights.numel()


@pytest.mark.parametrize("pair", PAIRS)
def test_the_mean_over_samples(pair):
    layer = layer_of(pair, PerturbAndMap(num_samples=3))
    vectors = torch.randn(4, 5, 6, dtype=torch.float64)
    output = layer(vectors, LENGTHS)
    assert not torch.equal(output.draw.z[0], output.draw.z[1])
    alone = [layer.composer(vectors, z, LENGTHS) for z in output.draw.z]
    torch.testing.assert_close(output.vectors, sum(alone) / 3)


def test_one_step_for_each_level_of_all_trees():
    layer, steps = layer_of("binary", SPARSEMAP), []
    layer.composer.gates.register_forward_hook(lambda *_: steps.append(1))
    with torch.no_grad():
        draw = layer(torch.randn(4, 5, 6, dtype=torch.float64), LENGTHS).draw
    deepest = 0
    for k, item in (draw.weights > 0).nonzero().tolist():
        n = int(LENGTHS[item])
        inner = torch.triu(draw.z[k, item, :n, :n], 1).nonzero().tolist()
        deepest = max(deepest, *(sum(i <= t <= j for i, j in inner) for t in range(n)))
    assert len(steps) == deepest > 1


@pytest.mark.parametrize("texts", ["different words", "equal words", "one tree"])
@pytest.mark.parametrize("single_root", [True, False])
def test_shared_subtrees_are_composed_as_each_alone(texts, single_root):
    """Shared subtrees give the results of each tree alone, for texts of any length.

    The trees are the support of SparseMAP. With equal words their scores tie.
    """
    torch.manual_seed(0)
    lengths = torch.tensor([6, 1, 4, 0])
    composer = registry.get("misc", "spacy-latent.ChildSumTreeLstm.v1")()(6).double()
    vectors = torch.randn(4, 6, 6, dtype=torch.float64)
    scores = 0.1 * torch.randn(4, 7, 7, dtype=torch.float64)
    if texts == "equal words":
        vectors[:, 1:4], scores[:] = vectors[:, :1], 0.0
    structure = SpanningTree(single_root=single_root)
    draw = SparseMAP(marginalize=texts != "one tree", prediction="map")(
        structure, scores, lengths, is_train=texts != "one tree"
    )
    k, item = draw.present.nonzero().unbind(1)
    assert texts == "one tree" or len(item) > 10
    vectors.requires_grad_()
    trees = draw.z[k, item]
    composed = composer.compose_several(vectors, trees, lengths, item)
    roots = composer.compose_roots(vectors, trees, lengths, item)
    leaves, weight = [vectors, *composer.parameters()], torch.randn(6, 6, dtype=torch.float64)
    found = wanted = found_roots = wanted_roots = torch.zeros(())
    for one, tree, root, z in zip(item.tolist(), composed, roots, trees):
        n = int(lengths[one])
        alone = child_sum(composer, vectors[one, :n], z[: n + 1, : n + 1]) if n else tree[:0]
        torch.testing.assert_close(tree[:n], alone)
        torch.testing.assert_close(root, alone[z[0, 1 : n + 1] > 0].sum(0))
        found = found + (weight[:n] * tree[:n]).sum()
        wanted = wanted + (weight[:n] * alone).sum()
        found_roots = found_roots + (weight[0] * root).sum()
        wanted_roots = wanted_roots + (weight[0] * alone[z[0, 1 : n + 1] > 0]).sum()
    for made, expected in ((found, wanted), (found_roots, wanted_roots)):
        slopes = (torch.autograd.grad(each, leaves, retain_graph=True) for each in (made, expected))
        for one, other in zip(*slopes):
            torch.testing.assert_close(one, other)


def test_trees_on_half_precision_and_frozen_weights():
    """Under autocast trees are composed level by level.

    Frozen weights get no gradient, and change no other gradient.
    """
    layer = layer_of("child-sum", SPARSEMAP).float()
    vectors = torch.randn(4, 5, 6, requires_grad=True)
    z = SpanningTree().map(torch.randn(4, 6, 6), LENGTHS)
    made = layer.composer(vectors, z, LENGTHS)
    (wanted,) = torch.autograd.grad(made.sum(), vectors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer.composer(vectors, z, LENGTHS)
    inside = torch.arange(5) < LENGTHS[:, None]
    torch.testing.assert_close(half[inside].float(), made[inside], atol=0.05, rtol=0.05)
    layer.composer.from_children.requires_grad_(False)
    made = layer.composer(vectors, z, LENGTHS)
    (found,) = torch.autograd.grad(made.sum(), vectors)
    torch.testing.assert_close(found, wanted)


def test_both_ways_through_a_child_sum_tree_lstm_agree():
    layer = layer_of("child-sum", SPARSEMAP)
    vectors = torch.randn(4, 5, 6, dtype=torch.float64)
    scores = torch.randn(4, 6, 6, dtype=torch.float64)
    for structure in (SpanningTree(), SpanningTree(single_root=False)):
        z = structure.map(scores, LENGTHS)
        products = layer.composer(vectors, z.clone().requires_grad_(), LENGTHS)
        inside = torch.arange(5) < LENGTHS[:, None]
        torch.testing.assert_close(layer.composer(vectors, z, LENGTHS)[inside], products[inside])


@pytest.mark.parametrize("pair", PAIRS)
def test_nothing_to_compose(pair):
    layer = layer_of(pair, SPARSEMAP)
    for batch, longest in [(0, 0), (0, 3), (2, 0), (2, 3)]:
        vectors = torch.randn(batch, longest, 6, dtype=torch.float64)
        size = longest if pair == "binary" else longest + 1
        draw = Draw(
            torch.zeros(2, batch, size, size, dtype=torch.float64), torch.full((2, batch), 0.5)
        )
        result = layer.compose(vectors, draw, torch.zeros(batch, dtype=torch.int64))
        assert result.shape == (batch, longest, 6) and result.isfinite().all()
