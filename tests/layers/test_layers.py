"""Every registered scorer and composer: shapes, padding, and gradients if they are promised."""

import numpy as np
import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.child_sum_tree_lstm import ChildSumTreeLstm, levels
from spacy_latent.layers.recursive_message_passing import RecursiveMessagePassing, depth
from spacy_latent.structures.spanning_tree import SpanningTree

SCORERS = {
    "BiaffineScorer": {"hidden_width": 7},
    "MlpScorer": {"hidden_width": 7},
    "DotScorer": {"hidden_width": 7},
    "BilinearScorer": {},
}
COMPOSERS = ("GraphConvolution", "HeadAttention", "RecursiveMessagePassing", "ChildSumTreeLstm")
LENGTHS = torch.tensor([5, 3, 1])


def make(name, **options):
    torch.manual_seed(0)
    return registry.get("misc", f"spacy-latent.{name}.v1")(**options)(6)


def hard_trees(size=5):
    torch.manual_seed(1)
    return SpanningTree().map(torch.randn(3, size + 1, size + 1), LENGTHS)


def from_heads(heads):
    return torch.as_tensor(SpanningTree().encode(np.asarray(heads), len(heads)))[None]


@pytest.mark.parametrize("options", [{}, {"distance": True, "direction": True}])
@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4, layers=2)])
@pytest.mark.parametrize("name", SCORERS)
def test_scorers_ignore_padding(name, encoder, options):
    scorer = make(name, encoder=encoder, **SCORERS[name], **options)
    vectors = torch.randn(3, 5, 6)
    scores = scorer(vectors, LENGTHS)
    assert scores.shape == (3, 6, 6)
    alone = scorer(vectors[1:2, :3], LENGTHS[1:2])
    torch.testing.assert_close(scores[1:2, :4, :4], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SCORERS)
def test_position_terms_depend_on_position_alone(name):
    scorer = make(name, distance=True, direction=True)
    with torch.no_grad():
        scorer.distance_bias.copy_(torch.arange(11.0))
        scorer.direction_bias.fill_(100.0)
    bias = scorer._position(torch.zeros(1, 8, 8))
    assert bias[0].eq(0).all()
    assert bias[1, 2] == 100.0 and bias[2, 1] == 0.0
    assert bias[1, 3] == 101.0 and bias[1, 4] == bias[1, 5] == 102.0 and bias[1, 6] == 103.0


def test_distance_buckets_do_not_overflow():
    scorer = make("DotScorer", distance=True)
    assert scorer(torch.randn(1, 1500, 6), torch.tensor([1500])).isfinite().all()


@pytest.mark.parametrize("name", COMPOSERS)
def test_composers_ignore_padding_and_batch_order(name):
    composer = make(name, output_width=4)
    vectors, z = torch.randn(3, 5, 6), hard_trees()
    result = composer(vectors, z, LENGTHS)
    assert result.shape == (3, 5, 4) and composer.output_width == 4
    assert result.isfinite().all()
    alone = composer(vectors[1:2, :3], z[1:2, :4, :4], LENGTHS[1:2])
    torch.testing.assert_close(result[1:2, :3], alone, atol=1e-6, rtol=1e-5)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(composer(vectors[order], z[order], LENGTHS[order]), result[order])


@pytest.mark.parametrize("name", COMPOSERS)
def test_gradients_of_vectors_and_structure(name):
    composer = make(name, **({"rounds": 2} if name == "RecursiveMessagePassing" else {})).double()
    vectors = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    z = hard_trees().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v, a: composer(v, a, LENGTHS), (vectors, z))
    (gradient,) = torch.autograd.grad(composer(vectors, z, LENGTHS)[:, 0].sum(), z)
    assert gradient.abs().sum() > 0


def test_tree_lstm_equals_the_recursion():
    lstm = make("ChildSumTreeLstm").double()
    assert isinstance(lstm, ChildSumTreeLstm)
    heads = [3, 1, 0, 3, 4]
    vectors = torch.randn(1, 5, 6, dtype=torch.float64)

    def visit(token):
        children = [visit(m) for m, head in enumerate(heads) if head == token + 1]
        x = vectors[0, token]
        zero = torch.zeros(6, dtype=torch.float64)
        i, o, u = (lstm.gates(x) + lstm.from_children(sum((h for h, _ in children), zero))).chunk(3)
        cell = torch.sigmoid(i) * torch.tanh(u)
        for h, c in children:
            cell = cell + torch.sigmoid(lstm.forget(x) + lstm.forget_from_child(h)) * c
        return torch.sigmoid(o) * torch.tanh(cell), cell

    result = lstm(vectors, from_heads(heads).double(), torch.tensor([5]))
    for token in range(5):
        torch.testing.assert_close(result[0, token], visit(token)[0])


def test_message_passing_equals_the_recursion():
    composer = make("RecursiveMessagePassing").double()
    assert isinstance(composer, RecursiveMessagePassing)
    heads = [3, 1, 0, 3, 4]
    vectors = torch.randn(1, 5, 6, dtype=torch.float64)

    def visit(token):
        zero = torch.zeros(6, dtype=torch.float64)
        children = [visit(m) for m, head in enumerate(heads) if head == token + 1]
        if not children:
            # A leaf receives no message in any round.
            received = zero
        else:
            received = sum((composer.message(child) for child in children), zero)
        return composer.norm(composer.update(torch.cat([vectors[0, token], received])))

    assert composer.rounds is None
    result = composer(vectors, from_heads(heads).double(), torch.tensor([5]))
    for token in range(5):
        torch.testing.assert_close(result[0, token], visit(token))


@pytest.mark.parametrize("name", COMPOSERS[:3])
def test_soft_trees_do_not_hear_of_the_rest_of_the_batch(name):
    composer = make(name)
    torch.manual_seed(2)
    scores, vectors = torch.randn(3, 6, 6), torch.randn(3, 5, 6)
    z = SpanningTree().marginals(scores, LENGTHS)
    together = composer(vectors, z, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        one = slice(b, b + 1)
        alone = composer(vectors[one, :n], z[one, : n + 1, : n + 1], LENGTHS[one])
        torch.testing.assert_close(together[one, :n], alone)


def test_depth_and_levels():
    z = from_heads([3, 1, 0, 3, 4])
    assert levels(z).tolist() == [[1, 2, 0, 1, 2]]
    assert depth(z).tolist() == [3]
    assert depth(from_heads([0, 0])).tolist() == [1]
    cyclic = torch.zeros(1, 3, 3)
    cyclic[0, 1, 2] = cyclic[0, 2, 1] = 1.0
    assert depth(cyclic).tolist() == [1]
    assert depth(torch.cat([0.5 * cyclic, from_heads([0, 0])])).tolist() == [32, 1]
    assert depth(cyclic[:0]).tolist() == []


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("BiaffineScorer", {"hidden_width": 0}, "hidden_width"),
        ("BiLSTM", {"layers": 0}, "layers"),
        ("GraphConvolution", {"layers": 0}, "layers"),
        ("RecursiveMessagePassing", {"rounds": 0}, "rounds"),
        *[(name, {"output_width": 0}, f"{name}.*output_width") for name in COMPOSERS],
    ],
)
def test_bad_options_are_refused(name, options, said):
    with pytest.raises(LatentError, match=said):
        registry.get("misc", f"spacy-latent.{name}.v1")(**options)
