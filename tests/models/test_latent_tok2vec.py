"""The model of the component ``latent_encoder`` and of the inline architecture."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc
from thinc.api import Adam, RAdam, compounding, fix_random_seed

from spacy_latent.errors import (
    IncompatiblePair,
    InvalidScores,
    LatentError,
    LatentWarning,
    NotTractable,
)
from spacy_latent.models import span_groups
from spacy_latent.models.latent_tok2vec import build_latent_tok2vec_v1, latent_layer, run
from spacy_latent.models.span_getters import DocSpans
from spacy_latent.models.span_groups import group_spans
from spacy_latent.structures.base import Structure
from tests.pipeline.small_pipelines import TOK2VEC, WIDTH

nlp = spacy.blank("en")


class BestOnly(Structure):
    """A structure with no operation except MAP."""

    part_axes = 2

    def _map(self, scores, lengths):
        return torch.zeros_like(scores)


def build(**options):
    embedder = spacy.registry.resolve({"model": TOK2VEC})["model"]
    return build_latent_tok2vec_v1(embedder, **options)


def docs_of(*lengths):
    return [Doc(nlp.vocab, words=[f"w{i}" for i in range(n)]) for n in lengths]


@pytest.fixture
def model():
    fix_random_seed(0)
    return build().initialize(X=docs_of(4, 3))


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0), (1,), (3, 0, 1), (0, 2)])
def test_any_batch(model, lengths):
    docs = docs_of(*lengths)
    for vectors in (model.predict(docs), model.begin_update(docs)[0]):
        assert [v.shape for v in vectors] == [(n, WIDTH) for n in lengths]
    vectors, backprop = model.begin_update(docs)
    backprop([np.ones_like(v) for v in vectors])


def test_white_space_only(model):
    doc = nlp.make_doc(" \n\t ")
    assert len(doc)
    assert np.isfinite(model.predict([doc])[0]).all()


def test_ten_thousand_tokens(model):
    with pytest.warns(LatentWarning, match="windows"):
        (vectors,) = model.predict(docs_of(10_000))
    assert vectors.shape == (10_000, WIDTH) and np.isfinite(vectors).all()


def test_padding_grouping_and_order_change_nothing(model, monkeypatch):
    docs = docs_of(5, 1, 30, 9, 2, 30, 17)
    alone = [model.predict([doc])[0] for doc in docs]
    for cells in (span_groups.MAX_CELLS, 1200):
        monkeypatch.setattr(group_spans, "__defaults__", (cells,))
        for order in (range(7), [6, 2, 0, 5, 1, 3, 4]):
            together = model.predict([docs[i] for i in order])
            for i, vectors in zip(order, together):
                assert vectors == pytest.approx(alone[i], abs=1e-5)


def test_groups_hold_every_token_once_and_bound_the_padding():
    lengths = [40, 0, 7, 100, 3]
    spans = [[(0, 40)], [], [(0, 3), (3, 7)], [(0, 50), (50, 100)], [(0, 3)]]
    groups = group_spans(lengths, spans, max_cells=6000)
    rows = np.concatenate([g.rows.numpy().ravel() for g in groups])
    assert sorted(rows[rows < 150]) == list(range(150))
    for group in groups:
        batch, longest = group.rows.shape
        assert batch == 1 or batch * (longest + 1) ** 2 <= 6000
        assert longest <= 16 or 2 * int(group.lengths.min()) >= longest


@pytest.mark.parametrize("spans", [[(0, 2), (1, 3)], [(2, 3), (0, 1)], [(0, 9)], [(1, 1)]])
def test_impossible_spans_are_refused(spans):
    with pytest.raises(LatentError, match="span"):
        group_spans([3], [spans])


def test_tokens_outside_of_all_spans_keep_the_embedders_vector(model):
    latent = model.get_ref("latent")
    rows = np.random.default_rng(0).normal(size=(5, WIDTH)).astype("float32")
    (vectors,) = latent.predict(([rows], [[(1, 3)]])).vectors
    assert np.array_equal(vectors[[0, 3, 4]], rows[[0, 3, 4]])
    assert not np.allclose(vectors[1:3], rows[1:3])


def test_backprop_is_that_of_each_span_alone(model):
    latent = model.get_ref("latent")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(n, WIDTH)).astype("float32") for n in (5, 0, 3)]
    spans = [[(0, 2), (2, 5)], [], [(0, 3)]]
    gradients = [rng.normal(size=a.shape).astype("float32") for a in arrays]
    _, backprop = latent.begin_update((arrays, spans))
    got = backprop(gradients)
    layer, gain = latent_layer(model), latent.shims[0].module.gain
    for array, given, d, parts in zip(arrays, gradients, got, spans):
        for start, end in parts:
            rows = torch.tensor(array[None, start:end], requires_grad=True)
            output = gain * layer(rows, torch.tensor([end - start])).vectors + rows
            output.backward(torch.tensor(given[None, start:end]))
            assert d[start:end] == pytest.approx(rows.grad[0].numpy(), abs=1e-5)


@pytest.mark.parametrize("optimizer", [Adam, RAdam])
def test_scorer_learn_rate(optimizer):
    docs = docs_of(4, 3)
    fix_random_seed(0)
    model = build(scorer_learn_rate=0.0).initialize(X=docs)
    layer = latent_layer(model)
    scorer, composer = ([p.clone() for p in m.parameters()] for m in (layer.scorer, layer.composer))
    vectors, backprop = model.begin_update(docs)
    backprop([np.ones_like(v) for v in vectors])
    model.finish_update(optimizer(0.01))
    assert all(torch.equal(a, b) for a, b in zip(scorer, layer.scorer.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(composer, layer.composer.parameters()))


@pytest.mark.parametrize("weight", [0.5, -0.5])
def test_entropy_weight(weight):
    docs = docs_of(6, 5)
    fix_random_seed(0)
    model = build(entropy_weight=weight).initialize(X=docs)
    layer = latent_layer(model)

    def entropy():
        (output,), (group,) = (lambda b: (b.outputs, b.groups))(run(model, docs, False)[0])
        return float(layer.structure.entropy(output.scores, group.lengths).sum())

    before = entropy()
    # Small steps, so that none overshoots the optimum.
    optimizer = Adam(0.001)
    for _ in range(5):
        vectors, backprop = model.begin_update(docs)
        backprop([np.zeros_like(v) for v in vectors])
        model.finish_update(optimizer)
    # Entropies are in nats. The change leads to a few likely trees, or to nearly all trees.
    assert entropy() < before - 2 if weight > 0 else entropy() > before + 2


def test_temperature_follows_its_schedule_and_is_stored():
    docs = docs_of(4)
    fix_random_seed(0)
    model = build(temperature=compounding(4.0, 1.0, 0.5)).initialize(X=docs)
    optimizer = Adam(0.001)
    seen = []
    for _ in range(4):
        vectors, backprop = model.begin_update(docs)
        seen.append(latent_layer(model).temperature)
        backprop([np.ones_like(v) for v in vectors])
        model.finish_update(optimizer)
        model.finish_update(optimizer)  # does not count as an update, since there is no gradient
    assert seen == [4.0, 2.0, 1.0, 1.0]
    other = build(temperature=compounding(4.0, 1.0, 0.5)).from_bytes(model.to_bytes())
    assert np.array_equal(other.predict(docs)[0], model.predict(docs)[0])
    assert latent_layer(other).temperature == 1.0
    other.initialize(X=docs).predict(docs)
    assert latent_layer(other).temperature == 4.0


def test_to_bytes_round_trips_to_the_byte(model):
    data = model.to_bytes()
    assert build().from_bytes(data).to_bytes() == data


def test_configs_that_cannot_work_are_refused_when_they_are_read():
    with pytest.raises(IncompatiblePair, match="marginals"):
        build(structure=BestOnly())
    from spacy_latent.estimators.straight_through import StraightThrough

    identity = StraightThrough(backward="identity")
    with pytest.raises(NotTractable, match="entropy"):
        build(structure=BestOnly(), estimator=identity, entropy_weight=0.1)
    for options, message in [
        ({"width": 0}, "width"),
        ({"width": 3, "residual": True}, "residual"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": []}, "schedule"),
        ({"dropout": 1.0}, "dropout"),
        ({"scorer_learn_rate": -1.0}, "scorer_learn_rate"),
    ]:
        with pytest.raises(LatentError, match=message):
            build(**options)


def test_an_impossible_pair_in_a_config_is_refused_when_it_is_loaded():
    @spacy.registry.misc("test.BestOnly.v1")
    def best_only():
        return BestOnly()

    with pytest.raises(IncompatiblePair, match="BestOnly"):
        nlp_here = spacy.blank("en")
        model = {"tok2vec": TOK2VEC, "structure": {"@misc": "test.BestOnly.v1"}}
        nlp_here.add_pipe("latent_encoder", config={"model": model})


def test_nan_is_an_error_that_names_the_item(model):
    with torch.no_grad():
        next(latent_layer(model).scorer.parameters()).fill_(torch.nan)
    with pytest.raises(InvalidScores, match="NaN"):
        model.predict(docs_of(3))


def test_weights_of_another_shape_are_refused(model):
    other = build(width=5).initialize(X=docs_of(3))
    with pytest.raises(ValueError):
        other.from_bytes(model.to_bytes())


def test_windows_ignore_sentences():
    doc = Doc(nlp.vocab, words=["a"] * 6, sent_starts=[True, False, True, False, True, False])
    assert DocSpans(max_length=8)([doc]) == [[(0, 6)]]
    with pytest.raises(LatentError, match="max_length"):
        DocSpans(max_length=0)


def test_small_batches_keep_torch_on_one_thread_and_give_its_threads_back(
    model, monkeypatch, set_threads
):
    seen = []
    structure = latent_layer(model).structure
    marginals = structure.marginals

    def spy(scores, lengths):
        seen.append(torch.get_num_threads())
        return marginals(scores, lengths)

    monkeypatch.setattr(structure, "marginals", spy)
    set_threads(2)
    model.predict(docs_of(4))
    vectors, backprop = model.begin_update(docs_of(4))
    backprop([np.ones_like(v) for v in vectors])
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2


class EightfoldScaler:
    """A stand-in for Thinc's gradient scaler for half precision, which needs a GPU."""

    found_inf = False

    def scale(self, tensors, inplace=False):
        return [8 * tensor for tensor in tensors]

    def unscale(self, tensors):
        for tensor in tensors:
            tensor /= 8
        return False


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_of_several_batches_add_up(model, scaled):
    shim = model.get_ref("latent").shims[0]
    if scaled:
        shim._grad_scaler = EightfoldScaler()
    gradients = []
    for _ in range(2):
        vectors, backprop = model.begin_update(docs_of(4, 2))
        backprop([np.ones_like(v) for v in vectors])
        gradients.append([p.grad.clone() for p in shim.module.parameters()])
    for one, two in zip(*gradients):
        assert two.numpy() == pytest.approx(2 * one.numpy(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "argument, given, expected",
    [
        ("structure", "SentenceSpans", "Structure"),
        ("estimator", "BiaffineScorer", "Estimator"),
        ("scorer", "GraphConvolution", "PartScorer"),
        ("composer", "BiaffineScorer", "Composer"),
    ],
)
def test_a_part_in_the_place_of_another_is_refused(argument, given, expected):
    part = spacy.registry.resolve({argument: {"@misc": f"spacy-latent.{given}.v1"}})
    with pytest.raises(LatentError, match=rf"{argument}.*{expected}"):
        build(**part)


def test_an_infinite_entropy_weight_is_refused():
    with pytest.raises(LatentError, match="entropy_weight"):
        build(entropy_weight=float("inf"))


def test_a_span_getter_that_forgets_docs_is_refused():
    model = build(span_getter=lambda docs: [])
    model.initialize()
    with pytest.raises(LatentError, match=r"spans.*0.*2"):
        model.predict(docs_of(2, 3))


def test_vectors_that_are_not_finite_are_an_error():
    model = build()
    model.initialize()
    with torch.no_grad():
        for parameter in latent_layer(model).composer.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(LatentError, match="NaN"):
        model.predict(docs_of(2, 3))
