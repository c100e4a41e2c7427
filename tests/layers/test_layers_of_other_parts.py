"""Scorers and composers of items, tags, transitions, segments and spans."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.binary_tree_lstm import BinaryTreeLstm, read_spans
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.tag_sequence import TagSequence

LENGTHS = torch.tensor([5, 3, 1])
SCORERS = {
    "ItemScorer": (),
    "TransitionScorer": (8, 8),
    "EmissionScorer": (8,),
    "SegmentScorer": (6, 4),
    "SpanScorer": (5,),
}
COMPOSERS = {
    "Selection": {"unchosen": True},
    "TagEmbedding": {"num_tags": 4},
    "TagSequenceEmbedding": {"num_tags": 4},
    "SegmentAttention": {"num_tags": 4, "output_width": 4},
    "SpanAttention": {"output_width": 4},
    "BinaryTreeLstm": {"output_width": 4},
    "ChartTreeLstm": {"output_width": 4},
    "GatedRecursiveTree": {"output_width": 4, "hidden_width": 7},
}


def make(name, **options):
    torch.manual_seed(0)
    return registry.get("misc", f"spacy-latent.{name}.v1")(**options)(6)


def tree(*spans, size=5):
    """Return a tree with these spans of two or more tokens."""
    z = torch.zeros(size, size)
    for first, last in spans:
        z[first, last] = 1.0
    return z


def trees():
    deep = tree((0, 4), (1, 4), (1, 3), (2, 3))
    return torch.stack([deep, tree((0, 2), (0, 1)), tree()])


def structures(name):
    torch.manual_seed(1)
    if name == "Selection":
        return (torch.rand(3, 5) < 0.5).float()
    if name == "TagEmbedding":
        return LinearChain().map(torch.randn(3, 5, 4, 4), LENGTHS)
    if name == "TagSequenceEmbedding":
        return TagSequence().map(torch.randn(3, 5, 4), LENGTHS)
    if name == "SegmentAttention":
        return SemiMarkov().map(torch.randn(3, 5, 3, 4), LENGTHS)
    return trees()


def window(name, z, length):
    """Return the entries of ``z`` for an item alone."""
    spans = ("SpanScorer", "SpanAttention", "BinaryTreeLstm", "ChartTreeLstm", "GatedRecursiveTree")
    if name in spans:
        return z[:, :length, :length]
    return z[:, :length]


@pytest.mark.parametrize("encoder", [None, build_bilstm_v1(hidden_width=4)])
@pytest.mark.parametrize("name, options", [(name, {"hidden_width": 7}) for name in SCORERS])
def test_scorers_ignore_padding(name, options, encoder):
    scorer = make(name, encoder=encoder, **options)
    vectors = torch.randn(3, 5, 6)
    scores = scorer(vectors, LENGTHS)
    assert scores.shape == (3, 5, *SCORERS[name])
    alone = scorer(vectors[1:2, :3], LENGTHS[1:2])
    expected = window(name, scores, 3)[1:2]
    if name == "SegmentScorer":
        inside = (torch.arange(3)[:, None] + torch.arange(6) < 3)[None, :, :, None]
        expected, alone = expected * inside, alone * inside
    torch.testing.assert_close(expected, alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", COMPOSERS)
def test_composers_ignore_padding_and_batch_order(name):
    composer = make(name, **COMPOSERS[name])
    vectors, z = torch.randn(3, 5, 6), structures(name)
    result = composer(vectors, z, LENGTHS)
    assert result.shape == (3, 5, composer.output_width) and result.isfinite().all()
    for b, n in enumerate(LENGTHS.tolist()):
        one = slice(b, b + 1)
        alone = composer(vectors[one, :n], window(name, z[one], n), LENGTHS[one])
        torch.testing.assert_close(result[one, :n], alone, atol=1e-6, rtol=1e-5)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(composer(vectors[order], z[order], LENGTHS[order]), result[order])
    assert composer(vectors[:0], z[:0], LENGTHS[:0]).shape == (0, 5, composer.output_width)


@pytest.mark.parametrize("name", COMPOSERS)
def test_gradients_of_vectors_and_structure(name):
    composer = make(name, **COMPOSERS[name]).double()
    vectors = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    z = structures(name).double()
    if name in ("SpanAttention", "SegmentAttention", "ChartTreeLstm"):
        # The divisor has a kink if the spans that contain a token sum to 1.
        z = 0.9 * z + 0.01
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda v, a: composer(v, a, LENGTHS), (vectors, z))
    (gradient,) = torch.autograd.grad(composer(vectors, z, LENGTHS)[0].sum(), z)
    assert gradient[z > 0.5].view(-1).abs().sum() > 0


def test_a_score_is_that_of_emission_and_transition():
    scorer = make("TransitionScorer", num_tags=3)
    torch.nn.init.normal_(scorer.start)
    vectors = torch.randn(1, 4, 6)
    scores, emissions = scorer(vectors, torch.tensor([4])), scorer.emission(vectors)
    tags = [2, 0, 1, 1]
    z = torch.as_tensor(LinearChain().encode(tags, 4, num_tags=3))
    expected = scorer.start[2] + sum(scorer.transition[p, t] for p, t in zip(tags, tags[1:]))
    expected = expected + sum(emissions[0, i, t] for i, t in enumerate(tags))
    torch.testing.assert_close((z * scores[0]).sum(), expected)


def test_the_width_term_depends_on_the_width_alone():
    plain, scorer = make("SpanScorer"), make("SpanScorer", span_width=True)
    with torch.no_grad():
        scorer.width_bias.copy_(torch.arange(11.0))
    vectors = torch.randn(1, 6, 6)
    term = (scorer(vectors, LENGTHS[:1]) - plain(vectors, LENGTHS[:1]))[0].detach()
    widths = [term[0, last].item() for last in range(6)]
    assert widths == pytest.approx([0, 1, 2, 2, 3, 3], abs=1e-5)
    assert term[2, 4].item() == pytest.approx(2, abs=1e-5)


def test_selection_takes_the_chosen():
    vectors, z = torch.randn(1, 3, 6), torch.tensor([[1.0, 0.0, 0.25]])
    bare = make("Selection")
    torch.testing.assert_close(bare(vectors, z, LENGTHS[1:2]), vectors * z[..., None])
    learned = make("Selection", unchosen=True)
    result = learned(vectors, z, LENGTHS[1:2])[0]
    torch.testing.assert_close(result[:2], torch.stack([vectors[0, 0], learned.unchosen]))
    torch.testing.assert_close(result[2], 0.25 * vectors[0, 2] + 0.75 * learned.unchosen)


@pytest.mark.parametrize("name", ["TagEmbedding", "TagSequenceEmbedding", "SegmentAttention"])
def test_tags_of_another_number_are_refused(name):
    composer = make(name, num_tags=3)
    with pytest.raises(LatentError, match=rf"{name}.*num_tags.*3.*4"):
        composer(torch.randn(3, 5, 6), structures(name), LENGTHS)


@pytest.mark.parametrize("name", ["TagEmbedding", "TagSequenceEmbedding"])
def test_the_embedding_of_the_tag_is_added(name):
    composer = make(name, num_tags=4)
    vectors, z = torch.randn(3, 5, 6), structures(name)
    kind = LinearChain() if name == "TagEmbedding" else TagSequence()
    result = composer(vectors, z, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        tags = torch.as_tensor(kind.decode(z[b].numpy(), n)).long()
        torch.testing.assert_close(result[b, :n], vectors[b, :n] + composer.embedding[tags])


def test_segment_scores_are_of_first_and_last_token():
    scorer = make("SegmentScorer", num_tags=2, max_length=3)
    torch.nn.init.normal_(scorer.length_bias)
    vectors = torch.randn(1, 5, 6)
    scores = scorer(vectors, LENGTHS[:1])[0]
    for first, extra in ((0, 0), (1, 2), (2, 2), (4, 0)):
        pair = scorer.first(vectors[0, first]) + scorer.last(vectors[0, first + extra])
        expected = scorer.output(torch.tanh(pair + scorer.length_bias[extra]))
        torch.testing.assert_close(scores[first, extra], expected)


def test_segment_attention_knows_the_segment_and_its_label():
    composer = make("SegmentAttention", num_tags=3)
    vectors = torch.randn(1, 5, 6)
    segments = [[0, 2, 1], [2, 5, 0]]
    z = SemiMarkov().encode(segments, 5, num_tags=3)
    result = composer(vectors, torch.as_tensor(z)[None], torch.tensor([5]))[0]
    for first, end, label in segments:
        own = vectors[0, first:end]
        about = torch.cat([own[0], own[-1], own.mean(0), torch.eye(3)[label]])
        for t in range(first, end):
            expected = torch.tanh(composer.output(torch.cat([vectors[0, t], about])))
            torch.testing.assert_close(result[t], expected)


def test_span_attention_is_the_average_over_spans():
    composer = make("SpanAttention").double()
    torch.manual_seed(3)
    vectors, z = torch.randn(5, 6).double(), torch.rand(5, 5).double()
    z[:, 4] = z[0] = 0.0
    expected = []
    for t in range(5):
        total, weight = torch.zeros(18).double(), 0.0
        for i in range(t + 1):
            for j in range(t, 5):
                mean = vectors[i : j + 1].mean(0)
                total = total + z[i, j] * torch.cat([vectors[i], vectors[j], mean])
                weight += float(z[i, j])
        average = total / max(weight, 1.0)
        expected.append(torch.tanh(composer.output(torch.cat([vectors[t], average]))))
    result = composer(vectors[None], z[None], torch.tensor([5]))
    torch.testing.assert_close(result[0], torch.stack(expected))


def test_tree_lstm_equals_the_recursion():
    lstm = make("BinaryTreeLstm").double()
    assert isinstance(lstm, BinaryTreeLstm)
    vectors, z = torch.randn(5, 6).double(), trees()[0].double()
    states = {}

    def visit(i, j):
        if i == j:
            a, o, u = lstm.leaf(vectors[i]).chunk(3)
            cell = torch.sigmoid(a) * torch.tanh(u)
        else:
            (split,) = [
                k
                for k in range(i, j)
                if (k == i or z[i, k] == 1) and (k + 1 == j or z[k + 1, j] == 1)
            ]
            (left, c), (right, d) = visit(i, split), visit(split + 1, j)
            a, o, u, f, g = lstm.gates(torch.cat([left, right])).chunk(5)
            cell = torch.sigmoid(a) * torch.tanh(u) + torch.sigmoid(f) * c + torch.sigmoid(g) * d
        states[i, j] = torch.sigmoid(o) * torch.tanh(cell)
        return states[i, j], cell

    visit(0, 4)
    for given in (z, z + torch.eye(5)):
        result = lstm(vectors[None], given[None], torch.tensor([5]))[0]
        for t in range(5):
            above = [state for (i, j), state in states.items() if i <= t <= j and i < j]
            torch.testing.assert_close(result[t], states[t, t] + torch.stack(above).mean(0))


@pytest.mark.parametrize("output", ["constituents", "root"])
def test_the_chart_of_a_hard_tree_is_its_tree_lstm(output):
    chart = make("ChartTreeLstm", output=output, output_width=4).double()
    lstm = make("BinaryTreeLstm", output=output, output_width=4).double()
    lstm.load_state_dict(chart.state_dict())
    vectors, z = torch.randn(3, 5, 6, dtype=torch.float64), trees().double()
    given = [z, z + torch.eye(5)]
    expected = lstm(vectors, z, LENGTHS)
    for one in given:
        found = chart(vectors, one, LENGTHS)
        for b, n in enumerate(LENGTHS.tolist()):
            torch.testing.assert_close(found[b, :n], expected[b, :n])


def test_the_chart_of_soft_trees_by_the_recursion():
    """The trees have three tokens. The inner spans have the marginals ⅓ and ⅔."""
    chart = make("ChartTreeLstm", output_width=4).double()
    vectors, lengths = torch.randn(1, 3, 6, dtype=torch.float64), torch.tensor([3])
    z = (tree((0, 1), (0, 2), size=3) / 3 + 2 * tree((1, 2), (0, 2), size=3) / 3)[None].double()
    hidden, cell = chart.leaves(vectors[0])
    leaf = list(zip(hidden, cell))
    first, second = chart.merge(leaf[0], leaf[1]), chart.merge(leaf[1], leaf[2])
    # The first two tokens are a span with marginal ⅓, which is the weight of the split after them.
    # The split after the first token has ⅔.
    left = [(a / 3 + 2 * b / 3) for a, b in zip(first, leaf[0])]
    right = [(a / 3 + 2 * b / 3) for a, b in zip(leaf[2], second)]
    root = chart.merge(tuple(left), tuple(right))
    weights = torch.tensor([[1 / 3, 0, 1], [1 / 3, 2 / 3, 1], [0, 2 / 3, 1]], dtype=torch.float64)
    above = weights @ torch.stack([first[0], second[0], root[0]]) / weights.sum(1, keepdim=True)
    torch.testing.assert_close(chart(vectors, z, lengths)[0], hidden + above)
    one = make("ChartTreeLstm", output_width=4, output="root").double()
    one.load_state_dict(chart.state_dict())
    torch.testing.assert_close(one(vectors, z, lengths)[0], root[0].expand(3, -1))


def test_the_chart_tells_which_other_spans_would_be_better():
    """Unlike BinaryTreeLstm, it gives spans outside of a hard tree a gradient, for surrogate
    gradients.
    """
    chart = make("ChartTreeLstm", output="root").double()
    z = trees()[:1].double().requires_grad_()
    vectors = torch.randn(1, 5, 6, dtype=torch.float64)
    (found,) = torch.autograd.grad(chart(vectors, z, LENGTHS[:1]).sum(), z)
    assert found[0, 0, 3] != 0 and z[0, 0, 3] == 0


@pytest.mark.parametrize("output", ["constituents", "root"])
def test_gated_recursive_tree_equals_the_recursion(output):
    composer = make("GatedRecursiveTree", hidden_width=9, output=output).double()
    vectors, (left, right) = torch.randn(5, 6).double(), (((0, 1), (0, 2)), ((1, 2), (0, 2)))
    leaf = composer.leaf[1](composer.leaf[0](vectors))

    def merge(l, r):
        hidden = torch.nn.functional.gelu(composer.hidden(torch.cat([l, r])))
        product = composer.left(l) * composer.right(r)
        a, b, c, u = composer.gates(torch.cat([hidden, product])).chunk(4)
        return composer.norm(torch.sigmoid(a) * l + torch.sigmoid(b) * r + torch.sigmoid(c) * u)

    first = merge(leaf[0], leaf[1])
    second = merge(leaf[1], leaf[2])
    states = {
        left: [first, merge(first, leaf[2])],
        right: [second, merge(leaf[0], second)],
    }
    for spans, (inner, root) in states.items():
        result = composer(vectors[None, :3], tree(*spans, size=3)[None].double(), LENGTHS[1:2])[0]
        if output == "root":
            expected = torch.stack([root] * 3)
        else:
            inside = [spans[0][0] <= t <= spans[0][1] for t in range(3)]
            expected = leaf[:3] + torch.stack([(inner + root) / 2 if i else root for i in inside])
        torch.testing.assert_close(result, expected)


def test_the_integer_type_of_lengths_makes_no_difference():
    composer = make("BinaryTreeLstm", output_width=4)
    vectors = torch.randn(3, 5, 6)
    found = composer(vectors, trees(), LENGTHS.to(torch.uint8))
    torch.testing.assert_close(found, composer(vectors, trees(), LENGTHS), rtol=0, atol=0)


def test_spans_that_are_no_tree_are_refused():
    """Among all sets of spans of four tokens, only the five binary trees are accepted."""
    spans = [(i, j) for j in range(4) for i in range(j)]
    taken = 0
    for count in range(len(spans) + 1):
        for chosen in combinations(spans, count):
            try:
                found = read_spans(tree(*chosen, size=4)[None], torch.tensor([4]))
            except LatentError as error:
                assert "no binary tree" in str(error)
            else:
                taken += 1
                assert len(found.node) == 3 and found.levels in (2, 3)
    assert taken == 5


@pytest.mark.parametrize(
    "name, options, said",
    [
        *[(name, {"hidden_width": 0}, f"{name}.*hidden_width") for name in SCORERS],
        ("TransitionScorer", {"num_tags": 0}, "TransitionScorer.*num_tags"),
        ("TagEmbedding", {"num_tags": 0}, "TagEmbedding.*num_tags"),
        ("EmissionScorer", {"num_tags": 0}, "EmissionScorer.*num_tags"),
        ("TagSequenceEmbedding", {"num_tags": 0}, "TagSequenceEmbedding.*num_tags"),
        ("SegmentScorer", {"num_tags": 0}, "SegmentScorer.*num_tags"),
        ("SegmentScorer", {"max_length": 0}, "SegmentScorer.*max_length"),
        ("SegmentAttention", {"num_tags": 0}, "SegmentAttention.*num_tags"),
        ("SegmentAttention", {"output_width": 0}, "SegmentAttention.*output_width"),
        ("SpanAttention", {"output_width": 0}, "SpanAttention.*output_width"),
        ("ChartTreeLstm", {"output_width": 0}, "ChartTreeLstm.*output_width"),
        ("ChartTreeLstm", {"output": "leaf"}, "ChartTreeLstm.*output"),
        ("BinaryTreeLstm", {"output_width": 0}, "BinaryTreeLstm.*output_width"),
        ("BinaryTreeLstm", {"output": "leaf"}, "BinaryTreeLstm.*output"),
        *[
            (name, {option: value}, f"{name}.*{option}")
            for name in ("GatedRecursiveTree", "MergeGatedRecursiveTree")
            for option, value in (("output_width", 0), ("hidden_width", 0), ("output", "leaf"))
        ],
    ],
)
def test_bad_options_are_refused(name, options, said):
    with pytest.raises(LatentError, match=said):
        registry.get("misc", f"spacy-latent.{name}.v1")(**options)
