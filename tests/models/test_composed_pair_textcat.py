"""The classifier of two composed texts: exact sums over pairs of trees, training and errors."""

from __future__ import annotations

from functools import cache, partial

import pytest
import spacy
import torch
from spacy.tokens import Doc
from thinc.api import fix_random_seed
from torch import Tensor

from spacy_latent.corpora.text_pairs import is_of_pairs, make_pair_doc
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.given_trees import GivenTrees
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.child_sum_tree_lstm import build_child_sum_tree_lstm_v1
from spacy_latent.models import composed_pair_textcat
from spacy_latent.models.composed_pair_textcat import PairModule
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.span_groups import group_spans
from spacy_latent.models.text_module import Kept, TextModule, build_text_module
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.enumeration import arcs, dependency_trees
from tests.models.pair_pipelines import NAME, PAIRS, docs, misc, trained
from tests.models.pair_pipelines import pipeline as pipeline_of

pipeline = partial(pipeline_of, "ComposedPairTextCat")
WITH_ONE_WORD = [*PAIRS, ("so", "so", "same")]

WIDTH = 6
# The numbers of words of the two texts of each doc.
SIZES = [(3, 2), (1, 1), (2, 4)]


# ---------------------------------------------------------------- the module


def module_of(estimator: Estimator, kind: type[TextModule] = PairModule) -> TextModule:
    torch.manual_seed(0)
    settings = LayerSettings(
        SpanningTree(single_root=True),
        estimator,
        build_biaffine_scorer_v1(),
        build_child_sum_tree_lstm_v1(),
    )
    made = build_text_module(WIDTH, settings=settings, pooling=("root",), texts=1, module=kind)
    for parameter in made.latent.scorer.parameters():
        # The initial scores are nearly equal, so spread them.
        torch.nn.init.normal_(parameter, std=0.2)
    return made.train()


def batch(sizes: list[tuple[int, int]] = SIZES) -> tuple[Tensor, list, list[tuple[int, int]]]:
    """Return vectors of words, groups of texts, and the range of each doc's rows."""
    lengths = [sum(both) for both in sizes]
    spans = [[(0, first), (first, first + second)] for first, second in sizes]
    groups = group_spans(lengths, spans)  # type: ignore[arg-type]
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ends[-1], WIDTH, generator=generator).requires_grad_()
    return rows, groups, list(zip(ends, ends[1:]))


@cache
def readout() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.tensor([0, 2, 1])
    return torch.randn(4 * WIDTH, 3, generator=generator), labels


def loss_of(vector: Tensor, label: Tensor) -> Tensor:
    return -(vector @ readout()[0]).log_softmax(-1)[..., label]


def losses_of(vectors: Tensor) -> Tensor:
    """Return the losses ``(K, D)``."""
    return torch.stack([loss_of(vectors[:, d], readout()[1][d]) for d in range(len(SIZES))], 1)


def features_of(u: Tensor, v: Tensor) -> Tensor:
    return torch.cat([u, v, (u - v).abs(), u * v])


def all_trees(module: TextModule, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the probability and the root's vector of each tree of a text, by enumeration."""
    lengths = torch.tensor([len(rows)])
    _, scores = module.latent.score(rows[None], lengths)
    found, totals = [], []
    for heads in dependency_trees(len(rows), single_root=True):
        z = torch.as_tensor(arcs(heads)).to(scores)
        totals.append((scores[0] * z).nan_to_num(0.0, 0.0, 0.0).sum())
        composed = module.latent.composer(rows[None], z[None], lengths)[0]
        found.append(composed[heads.index(0)])
    return list(zip(torch.stack(totals).softmax(0), found))


def its_support(module: TextModule, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the weight and the root's vector of each tree in SparseMAP's support for a text."""
    draw, _ = module.latent.read(rows[None], torch.tensor([len(rows)]))
    roots = module.latent.compose_roots(rows[None], draw, torch.tensor([len(rows)]))
    return list(zip(draw.weights[:, 0], roots[:, 0]))


@pytest.mark.parametrize("criterion", ["expected_loss", "marginal_likelihood"])
@pytest.mark.parametrize(
    "make, trees_of", [(DenseMarginalization, all_trees), (SparseMAP, its_support)]
)
def test_the_loss_and_its_gradient_sum_over_all_pairs_of_trees(make, trees_of, criterion):
    options = {"marginalize": True} if make is SparseMAP else {"max_structures": 500}
    estimator = make(criterion=criterion, **options)
    module = module_of(estimator)
    rows, groups, docs = batch()
    (vectors, weights, *_), _, _ = module(rows, groups, docs, docs)
    assert (weights > 0).sum(0).tolist()[1] == 1 and int((weights > 0).sum()) > 10
    total = estimator.objective(losses_of(vectors), weights, None, None)
    expected = []
    for (first, _), sizes, label in zip(docs, SIZES, readout()[1]):
        texts = rows[first:][: sizes[0]], rows[first + sizes[0] :][: sizes[1]]
        a, b = (trees_of(module, text) for text in texts)
        terms = [(p * q, loss_of(features_of(u, v), label)) for p, u in a for q, v in b]
        if criterion == "expected_loss":
            expected.append(sum(p * loss for p, loss in terms))
        else:
            expected.append(-sum(p * (-loss).exp() for p, loss in terms).log())
    together = torch.stack(expected)
    torch.testing.assert_close(total, together, rtol=1e-4, atol=1e-5)
    weighted = [rows, *module.latent.scorer.parameters(), *module.latent.composer.parameters()]
    found = torch.autograd.grad(total.sum(), weighted, allow_unused=True)
    wanted = torch.autograd.grad(together.sum(), weighted, allow_unused=True)
    assert found[0].abs().sum() > 0
    for one, other in zip(found, wanted):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_samples_of_both_texts_are_pairs_with_the_sum_of_their_log_probabilities():
    fix_random_seed(0)
    module = module_of(ScoreFunction(num_samples=3))
    rows, groups, docs = batch()
    (vectors, weights, log_probs, _), _, (outputs, _) = module(rows, groups, docs, docs)
    assert vectors.shape == (3, len(SIZES), 4 * WIDTH)
    torch.testing.assert_close(weights, torch.full((3, len(SIZES)), 1 / 3))
    expected = torch.zeros(3, len(SIZES))
    for group, output in zip(groups, outputs):
        for (doc, _), log_prob in zip(group.members, output.draw.log_probs.T):
            expected[:, doc] += log_prob
    torch.testing.assert_close(log_probs, expected)
    drawn = Kept(rows, groups, len(docs), [output.draw.z for output in outputs])
    torch.testing.assert_close(module.again(drawn), log_probs)


def test_a_pair_of_texts_is_composed_as_each_text_alone():
    rows, groups, docs = batch([(3, 2)])
    module, alone = (module_of(GivenTrees("left"), kind) for kind in (PairModule, TextModule))
    trees = [torch.tensor([2, 3, 0]).numpy(), torch.tensor([2, 0]).numpy()]
    (vectors, *_), *_ = module(rows, groups, docs, docs, [trees])
    both = []
    for text, tree in zip((rows[:3], rows[3:]), trees):
        span = [(0, len(text))]
        (vector, *_), *_ = alone(text, group_spans([len(text)], [span]), span, span, [[tree]])
        both.append(vector[0, 0])
    torch.testing.assert_close(vectors[0, 0], features_of(*both))


# ---------------------------------------------------------------- the component


ESTIMATORS = {
    "default": {},
    "likelihood": {
        "estimator": misc(
            "SparseMAP", marginalize=True, max_iter=5, criterion="marginal_likelihood"
        )
    },
    "mean": {"estimator": misc("SparseMAP"), "composer": misc("GraphConvolution")},
    "samples": {"estimator": misc("ScoreFunction", num_samples=2)},
    "PPO": {"estimator": misc("ScoreFunction", inner_steps=3)},
    "perturbed": {"estimator": misc("PerturbAndMap"), "composer": misc("GraphConvolution")},
    "choices": {
        "structure": misc("Bits"),
        "scorer": misc("ItemScorer"),
        "estimator": misc("Marginals"),
        "composer": misc("Selection"),
        "use_reduce_root": False,
        "use_reduce_mean": True,
    },
    **{
        trees: {"estimator": misc("GivenTrees", trees=trees)}
        for trees in ("left", "right", "balanced", "flat", "random", "root", "heads")
    },
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_learns_with_every_kind_of_estimator_and_is_stored(name):
    options = {"with_heads": name == "heads", "pairs": WITH_ONE_WORD}
    nlp = trained(pipeline(**ESTIMATORS[name]), **options)
    found = docs(nlp, **options)
    for doc, (_, _, label) in zip(found, WITH_ONE_WORD):
        assert doc.cats[label] > 0.5
        texts = [(doc.spans[key][0].start, doc.spans[key][0].end) for key in "ab"]
        assert [(span.start, span.end) for span in doc._.latent[NAME].spans] == texts
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    for doc, same in zip(found, docs(again, **options)):
        assert doc.cats == same.cats


def test_each_prediction_is_that_of_the_pair_alone_with_words_of_neither_around():
    nlp = trained(pipeline(), pairs=WITH_ONE_WORD)
    for together, (first, second, _) in zip(docs(nlp, pairs=WITH_ONE_WORD), WITH_ONE_WORD):
        one, other = first.split(), second.split()
        doc = Doc(nlp.vocab, words=["so", *one, "and", *other, "end"])
        doc.spans["a"] = [doc[1 : 1 + len(one)]]
        doc.spans["b"] = [doc[2 + len(one) : -1]]
        assert nlp(doc).cats == pytest.approx(together.cats, abs=1e-5)


def test_pairs_in_another_order_and_long_ones_are_refused() -> None:
    nlp = trained(pipeline(span_getter=misc("PairSpans", max_length=5)), steps=1)
    turned = make_pair_doc(nlp, "a b", "c d")
    turned.spans["a"], turned.spans["b"] = [turned[2:4]], [turned[0:2]]
    for doc in (turned, make_pair_doc(nlp, "a", "b c d e f g")):
        with pytest.raises(LatentError):
            nlp(doc)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(IncompatiblePair):
        parts = {"scorer": misc("CellScorer"), "composer": misc("AlignedComparison")}
        pipeline(structure=misc("OneToOneAlignment"), estimator=misc("SparseMAP"), **parts)
    with pytest.raises(LatentError):
        pipeline(span_getter=misc("DocSpans"))
    with pytest.raises(LatentError):
        pipeline(use_reduce_root=False)
    # This estimator has samples, and the weights of its structures differ between texts.
    with pytest.raises(LatentError):
        pipeline(estimator=misc("SumAndSample", k=2))
    later = {"first": misc("ScoreFunction"), "then": misc("SumAndSample", k=2), "switch_at": 2}
    with pytest.raises(LatentError):
        pipeline(estimator=misc("EstimatorSequence", **later))


def test_too_many_pairs_of_trees_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(composed_pair_textcat, "MAX_NUMBERS", 1000)
    with pytest.raises(LatentError):
        trained(pipeline(), steps=1)


def test_its_config_is_known_to_be_of_pairs():
    assert is_of_pairs(pipeline().config)
