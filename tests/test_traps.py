"""Components over torch have known traps. A test for each shows that it is avoided or reported."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import spacy
import torch
from spacy import displacy
from spacy.tokens import Doc, DocBin
from thinc.api import Adam, fix_random_seed, set_dropout_rate

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.latent_tok2vec import build_latent_tok2vec_v1, latent_layer
from spacy_latent.models.span_getters import SentenceSpans
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    WIDTH,
    copied_weights,
    examples,
    initialized,
    inline_pipeline,
    latent_pipeline,
    moved,
    scorer_weights,
    step,
    stock,
)

TEXT = "I like London a lot"


def trained(*names, steps=3, **encoder):
    nlp = latent_pipeline(*names, encoder=encoder)
    optimizer = initialized(nlp)
    batch = examples(nlp)
    for _ in range(steps):
        step(nlp, batch, optimizer)
    return nlp


def build(**options):
    embedder = spacy.registry.resolve({"model": TOK2VEC})["model"]
    return build_latent_tok2vec_v1(embedder, **options)


@pytest.fixture
def docs():
    nlp = spacy.blank("en")
    return [nlp(TEXT), nlp("this is it")]


@pytest.mark.parametrize("excluded", ["tagger", "textcat"])
def test_trap_01_gradients_arrive_whichever_listener_is_excluded(excluded):
    nlp = latent_pipeline("tagger", "textcat")
    optimizer, batch = initialized(nlp), examples(nlp)
    step(nlp, batch, optimizer, exclude=[excluded])
    before = scorer_weights(nlp, "latent_encoder")
    step(nlp, batch, optimizer, exclude=[excluded])
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))


def test_trap_01_gradients_of_all_listeners_and_of_all_batches_are_added_up():
    nlp = latent_pipeline("tagger", "textcat")
    optimizer, batch = initialized(nlp), examples(nlp)
    step(nlp, batch, optimizer)
    encoder = nlp.get_pipe("latent_encoder")

    def gradient(*excluded, batches=(batch,)):
        for part in batches:
            nlp.update(part, sgd=False, exclude=excluded)
        encoder._batch.flush()
        layer = latent_layer(encoder.model)
        total = np.concatenate([p.grad.numpy().ravel() for p in layer.parameters()])
        for _, pipe in nlp.pipeline:
            pipe.finish_update(_forget)
        return total

    both, tagger, textcat = gradient(), gradient("textcat"), gradient("tagger")
    assert both == pytest.approx(tagger + textcat, rel=1e-3, abs=1e-7)
    twice = gradient(batches=(batch, batch))
    assert twice == pytest.approx(2 * both, rel=1e-3, abs=1e-7)


def _forget(key, weights, gradient):
    """Act as an optimizer that discards the gradient and keeps the weights."""
    gradient *= 0
    return weights, gradient


@pytest.mark.parametrize("excluded", ["tagger", "last_tagger"])
def test_trap_02_an_encoder_over_a_tok2vec_trains_it_wherever_it_listens(excluded):
    """The tok2vec moves. tests/pipeline/test_shared_upstream.py compares all gradients."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
    nlp.add_pipe("tagger", config=stock("tagger", shared))
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": shared}})
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    nlp.add_pipe("tagger", name="last_tagger", config=stock("tagger", shared))
    optimizer, batch = initialized(nlp), examples(nlp)
    tok2vec = nlp.get_pipe("tok2vec").model
    alone = ["tagger", "last_tagger"] if excluded == "tagger" else ["last_tagger"]
    for _ in range(2):
        step(nlp, batch, optimizer, exclude=alone)
    before = copied_weights(tok2vec)
    step(nlp, batch, optimizer, exclude=alone)
    assert moved(before, tok2vec)


def test_trap_03_doc_tensor_belongs_to_the_tok2vec():
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": {**TOK2VEC, "width": 8}})
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": 8, "upstream": "tok2vec"}
    nlp.add_pipe("tagger", config=stock("tagger", shared))
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    optimizer, batch = initialized(nlp), examples(nlp)
    for _ in range(3):
        losses = step(nlp, batch, optimizer)
    assert losses["latent_encoder"] > 0 and losses["tok2vec"] > 0
    assert nlp(TEXT).tensor.shape == (5, 8)


def test_trap_03_a_conflict_over_doc_tensor_is_refused():
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    for name, upstream in (("tagger", "tok2vec"), ("textcat", "latent_encoder")):
        own = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": upstream}
        nlp.add_pipe(name, config=stock(name, own))
    with pytest.raises(LatentError, match="LatentListener"):
        initialized(nlp)


def test_trap_04_the_upstream_is_named():
    with pytest.raises(LatentError, match="name"):
        stars = {**LISTENER, "upstream": "*"}
        spacy.blank("en").add_pipe("textcat", config=stock("textcat", stars))
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    anyone = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "*"}
    nlp.add_pipe("tagger", config=stock("tagger", anyone))
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    nlp.initialize(lambda: examples(nlp))
    assert nlp.get_pipe("tok2vec").listening_components == ["tagger"]
    assert nlp.get_pipe("latent_encoder").listening_components == ["textcat"]


def test_trap_05_nlp_update_is_one_step_late_and_training_is_not():
    for late in (True, False):
        nlp = latent_pipeline("tagger")
        optimizer, batch = initialized(nlp), examples(nlp)
        moved = []
        for _ in range(4):
            before = scorer_weights(nlp, "latent_encoder")
            if late:
                nlp.update(batch, sgd=optimizer)
            else:
                step(nlp, batch, optimizer)
            moved.append(not np.array_equal(before, scorer_weights(nlp, "latent_encoder")))
        assert moved == ([False, False, True, True] if late else [False, True, True, True])


def test_trap_06_the_first_gradient_is_zero_and_the_second_is_not():
    nlp = inline_pipeline("textcat")
    optimizer, batch = initialized(nlp), examples(nlp)
    start = scorer_weights(nlp, "textcat")
    step(nlp, batch, optimizer)
    after_one = scorer_weights(nlp, "textcat")
    step(nlp, batch, optimizer)
    assert start == pytest.approx(after_one, abs=1e-4)
    assert np.abs(scorer_weights(nlp, "textcat") - after_one).max() > 1e-4


def test_trap_07_averages_reach_the_torch_weights():
    nlp = inline_pipeline("textcat")
    initialized(nlp)
    optimizer, batch = Adam(0.01, use_averages=True), examples(nlp)
    for _ in range(5):
        step(nlp, batch, optimizer)
    trained_weights = scorer_weights(nlp, "textcat")
    with nlp.use_params(optimizer.averages):
        averaged = scorer_weights(nlp, "textcat")
        stored = nlp.to_bytes()
    assert not np.array_equal(trained_weights, averaged)
    assert np.array_equal(trained_weights, scorer_weights(nlp, "textcat"))
    other = spacy.blank("en").from_config(nlp.config).from_bytes(stored)
    assert np.array_equal(averaged, scorer_weights(other, "textcat"))


def test_trap_07_dropout_reaches_torch_and_prediction_has_none(docs):
    fix_random_seed(0)
    model = build().initialize(X=docs)
    module = model.get_ref("latent").shims[0].module
    set_dropout_rate(model, 0.5)
    first, second = (model.begin_update(docs)[0] for _ in range(2))
    assert module.dropout.p == 0.5
    assert not np.array_equal(first[0], second[0])
    assert not module.training
    assert np.array_equal(model.predict(docs)[0], model.predict(docs)[0])
    fixed = build(dropout=0.25).initialize(X=docs)
    set_dropout_rate(fixed, 0.5)
    fixed.begin_update(docs)
    assert fixed.get_ref("latent").shims[0].module.dropout.p == 0.25


def test_trap_08_copy_and_pickle_after_training():
    nlp = trained("tagger", "textcat")
    nlp.update(examples(nlp), sgd=False, exclude=["textcat"])  # textcat's callback stays uncalled
    same = pickle.loads(pickle.dumps(nlp))
    assert same(TEXT).cats == nlp(TEXT).cats
    model = nlp.get_pipe("latent_encoder").model
    docs = [nlp.make_doc(TEXT)]
    copied = model.copy()
    assert np.array_equal(copied.predict(docs)[0], model.predict(docs)[0])
    assert copied.layers[1].shims[0].id != model.layers[1].shims[0].id
    nlp.replace_listeners("latent_encoder", "textcat", ["model.tok2vec"])
    replaced = nlp.get_pipe("textcat").model.get_ref("tok2vec")
    assert replaced.get_ref("latent") is replaced.layers[1]
    assert np.array_equal(replaced.predict(docs)[0], model.predict(docs)[0])


def test_trap_09_arrays_of_any_kind_and_no_shared_memory():
    fix_random_seed(0)
    latent = build().get_ref("latent")
    spans = [[(0, 3)], [(0, 2), (2, 4)]]
    rng = np.random.default_rng(0)
    base = [rng.normal(size=(3, WIDTH)), rng.normal(size=(4, WIDTH))]
    single = [array.astype("float32") for array in base]
    expected = latent.predict((single, spans)).vectors
    flipped = [np.ascontiguousarray(array[::-1])[::-1] for array in single]
    for arrays in (base, flipped):
        for got, want in zip(latent.predict((arrays, spans)).vectors, expected):
            assert got.dtype == np.float32
            assert got == pytest.approx(want, abs=1e-6)
    integers = latent.predict(([np.ones((3, WIDTH), dtype="int32")], [[(0, 3)]])).vectors
    assert np.isfinite(integers[0]).all()

    gradients = [np.ones_like(array) for array in single]
    _, backprop = latent.begin_update((single, spans))
    want = backprop(gradients)
    batch, backprop = latent.begin_update((single, spans))
    for vectors in batch.vectors:
        vectors *= 0
    assert not batch.outputs[0].draw.z.requires_grad
    for got, other in zip(backprop([d[::-1] for d in gradients]), want):
        assert got == pytest.approx(other, abs=1e-6)


def test_trap_11_annotations_survive_serialization():
    nlp = trained("textcat", annotate="probabilities", alternatives=2)
    doc = nlp(TEXT)
    expected = doc._.latent["latent_encoder"]
    stored = DocBin(store_user_data=True, docs=[doc]).to_bytes()
    copies = [
        Doc(nlp.vocab).from_bytes(doc.to_bytes()),
        next(iter(DocBin().from_bytes(stored).get_docs(nlp.vocab))),
        pickle.loads(pickle.dumps(doc)),
        doc.copy(),
        doc[:].as_doc(copy_user_data=True),
    ]
    for other in copies:
        got = other._.latent["latent_encoder"]
        assert np.array_equal(got.heads, expected.heads)
        assert got.arcs(threshold=0.0) == expected.arcs(threshold=0.0)
        assert len(got.spans[0].alternatives) == len(expected.spans[0].alternatives) == 2
    joined = Doc.from_docs([doc, nlp("Berlin is grey")])
    first, second = joined._.latent["latent_encoder"].spans
    assert (first.start, first.end, second.start, second.end) == (0, 5, 5, 8)
    without = next(iter(DocBin(docs=[doc]).get_docs(nlp.vocab)))
    assert not without._.latent


def test_trap_11_nothing_of_the_batch_stays_on_a_doc():
    nlp = trained("textcat", annotate="probabilities")
    for doc in nlp.pipe([TEXT, "I like it"]):
        assert doc.tensor.size == 0
        for record in doc.user_data.values():
            for name in ("decoded", "parts", "probabilities"):
                array = record["latent_encoder"][name]
                assert type(array) is np.ndarray and array.base is None


def test_trap_12_mixed_precision_without_a_gpu_and_inference_in_float32(docs):
    model = build(mixed_precision=True).initialize(X=docs)
    if not torch.cuda.is_available():
        vectors, backprop = model.begin_update(docs)
        backprop([np.ones_like(v) for v in vectors])
        assert vectors[0].dtype == np.float32
    layer = LatentLayer(
        build_biaffine_scorer_v1()(WIDTH),
        SpanningTree(),
        Marginals(),
        build_graph_convolution_v1()(WIDTH),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(torch.randn(2, 5, WIDTH), torch.tensor([5, 3]))
    assert output.scores.dtype == output.draw.z.dtype == torch.float32
    assert output.draw.z[0, 0, :, 1:].sum(0).tolist() == pytest.approx([1.0] * 5, abs=1e-5)


def test_trap_13_heads_are_written_only_when_asked_and_safely():
    nlp = trained("textcat")
    assert not nlp(TEXT).has_annotation("DEP")
    nlp.get_pipe("latent_encoder").cfg["set_heads"] = True
    nlp.add_pipe("sentencizer", first=True)
    doc = nlp("I like London. Berlin is very grey. " + TEXT)
    assert [sentence.start for sentence in doc.sents] == [0, 4, 9]
    for token in doc:
        assert token.sent.root in [token, *token.ancestors]
        assert token.dep_ in ("latent", "latent-root", "ROOT")
    again = nlp(doc)
    assert [token.head.i for token in again] == [token.head.i for token in doc]
    parsed = Doc(nlp.vocab, words=["a", "b"], heads=[0, 0], deps=["ROOT", "x"])
    with pytest.raises(LatentError, match="overwrite"):
        nlp.get_pipe("latent_encoder")(parsed)


def test_trap_14_long_texts_are_split_with_one_warning():
    nlp = spacy.blank("en")
    getter = SentenceSpans(max_length=10)
    doc = nlp.make_doc("word " * 25)
    with pytest.warns(LatentWarning, match="windows"):
        (spans,) = getter([doc])
    assert spans == [(0, 8), (8, 16), (16, 25)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getter([doc])
    sentences = Doc(nlp.vocab, words=["a"] * 12, sent_starts=[i % 4 == 0 for i in range(12)])
    assert getter([sentences]) == [[(0, 4), (4, 8), (8, 12)]]


def test_trap_15_options_survive_bytes_and_the_seed_decides(docs):
    getter = SentenceSpans(max_length=2)
    model = build(span_getter=getter, dropout=0.1)
    fix_random_seed(3)
    model.initialize(X=docs)
    with pytest.warns(LatentWarning):
        expected = model.predict(docs)
    other = build(span_getter=getter, dropout=0.1).from_bytes(model.to_bytes())
    assert other.attrs["span_getter"].max_length == 2
    assert other.get_ref("latent").attrs["fixed_dropout_rate"] == 0.1
    assert np.array_equal(other.predict(docs)[0], expected[0])
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(docs)[0], expected[0])
    again = build(span_getter=getter, dropout=0.1)
    fix_random_seed(3)
    assert np.array_equal(again.initialize(X=docs).predict(docs)[0], expected[0])


def test_trap_16_drawings_are_escaped_and_thinned():
    nlp = trained("textcat", annotate="probabilities", threshold=0.0)
    doc = nlp("I like <b>London</b> a & b")
    annotation = doc._.latent["latent_encoder"]
    drawings = annotation.to_displacy(threshold=0.0) + annotation.to_displacy()
    for drawing in drawings:
        for arc in drawing["arcs"]:
            assert arc["start"] < arc["end"]
    svg = displacy.render(annotation.to_displacy(), style="dep", manual=True)
    assert "<b>" not in svg
    n = len(doc)
    assert len(annotation.arcs(threshold=0.0)) == n * n
    assert len(annotation.arcs(threshold=0.9)) <= n
    assert sum(word["tag"] == "root" for word in annotation.to_displacy()[0]["words"]) >= 1


def test_trap_19_it_looks_like_the_embedder(docs):
    model = build()
    assert model.get_dim("nO") == WIDTH
    assert model.get_ref("embed") is model.layers[0].get_ref("embed")
    assert model.get_ref("encode") is model.layers[0].get_ref("encode")
    embedded = model.layers[0].initialize(X=docs).predict(docs)
    module = model.get_ref("latent").shims[0].module
    with torch.no_grad():
        for parameter in module.latent.composer.parameters():
            parameter.zero_()
    assert model.predict(docs)[0] == pytest.approx(embedded[0], abs=1e-6)


def test_one_bad_doc_goes_to_the_error_handler_and_the_others_survive():
    nlp = trained("textcat")
    encoder = nlp.get_pipe("latent_encoder")
    predict, failed = encoder.predict, []

    def picky(docs):
        docs = list(docs)
        if any("bad" in doc.text for doc in docs):
            raise ValueError("a bad doc")
        return predict(docs)

    encoder.predict = picky
    nlp.set_error_handler(lambda name, pipe, docs, error: failed.extend(d.text for d in docs))
    texts = ["I like London", "a bad one", TEXT]
    assert [doc.text for doc in nlp.pipe(texts)] == [texts[0], texts[2]]
    assert failed == ["a bad one"]
