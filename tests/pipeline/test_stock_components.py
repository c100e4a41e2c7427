"""spaCy's own components train through a latent structure unchanged."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import spacy
from spacy.training import Example

from tests.pipeline.small_pipelines import (
    INLINE,
    LISTENER,
    STOCK,
    TOK2VEC,
    WIDTH,
    examples,
    initialized,
    inline_pipeline,
    latent_layers,
    latent_pipeline,
    save_small_transformer,
    scorer_weights,
    step,
    stock,
)


def assert_it_trains(nlp, names, owner, steps=12):
    """Train, and assert that losses fall and the scorer's weights move in the second step."""
    batch = examples(nlp)
    optimizer = initialized(nlp)
    first = step(nlp, batch, optimizer)
    before = scorer_weights(nlp, owner)
    step(nlp, batch, optimizer)
    assert not np.array_equal(before, scorer_weights(nlp, owner))
    for _ in range(steps):
        last = step(nlp, batch, optimizer)
    for name in names:
        assert last[name] < first[name]
    docs = list(nlp.pipe([example.reference.text for example in batch]))
    assert len(docs) == len(batch)


@pytest.mark.parametrize("name", STOCK)
def test_by_listener(name):
    nlp = latent_pipeline(name)
    assert_it_trains(nlp, [name], "latent_encoder")
    assert nlp.get_pipe("latent_encoder").listening_components == [name]


@pytest.mark.parametrize("name", STOCK)
def test_inline(name):
    assert_it_trains(inline_pipeline(name), [name], name)


def test_several_at_once():
    assert_it_trains(latent_pipeline(*STOCK), list(STOCK), "latent_encoder")


def test_spacys_own_listener():
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    own = {
        "@architectures": "spacy.Tok2VecListener.v1",
        "width": WIDTH,
        "upstream": "latent_encoder",
    }
    nlp.add_pipe("tagger", config=stock("tagger", own))
    assert_it_trains(nlp, ["tagger"], "latent_encoder")
    assert nlp("I like London").tensor.shape == (3, WIDTH)
    nlp.update(examples(nlp), sgd=False, exclude=["tagger"])
    assert pickle.loads(pickle.dumps(nlp))("I like London")[0].tag_


def test_over_static_vectors():
    nlp = spacy.blank("en")
    for i, word in enumerate(["I", "like", "hate", "London", "Paris"]):
        nlp.vocab.set_vector(word, np.eye(5, dtype="float32")[i])
    tok2vec = {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": WIDTH,
            "attrs": ["NORM"],
            "rows": [50],
            "include_static_vectors": True,
        },
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": WIDTH,
            "window_size": 1,
            "maxout_pieces": 2,
            "depth": 1,
        },
    }
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": tok2vec}})
    nlp.add_pipe("ner", config=stock("ner", LISTENER))
    assert_it_trains(nlp, ["ner"], "latent_encoder")


def test_over_a_transformer(tmp_path):
    """The width of a transformer is known only when its weights have been read."""
    save_small_transformer(tmp_path)
    tok2vec = {
        "@architectures": "spacy-transformers.Tok2VecTransformer.v3",
        "name": str(tmp_path),
        "tokenizer_config": {"use_fast": True},
        "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
        "pooling": {"@layers": "reduce_mean.v1"},
    }
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": tok2vec}})
    nlp.add_pipe("textcat", config=stock("textcat", {**LISTENER, "width": 12}))
    assert_it_trains(nlp, ["textcat"], "latent_encoder", steps=8)
    expected = nlp("I like London").cats
    other = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert other("I like London").cats == pytest.approx(expected)
    nlp.to_disk(tmp_path / "saved")
    assert spacy.load(tmp_path / "saved")("I like London").cats == pytest.approx(expected)


def test_inline_over_a_tok2vec_listener():
    """A latent layer of one component can be over a tok2vec that other components share."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
    nlp.add_pipe("tagger", config=stock("tagger", shared))
    inline = {"@architectures": "spacy-latent.LatentTok2Vec.v1", "tok2vec": shared}
    nlp.add_pipe("textcat", config=stock("textcat", inline))
    assert_it_trains(nlp, ["tagger", "textcat"], "textcat")


def test_frozen_encoder_annotates_for_its_listeners():
    nlp = latent_pipeline("tagger")
    batch, optimizer = examples(nlp), initialized(nlp)
    before = scorer_weights(nlp, "latent_encoder")
    options = {"exclude": ["latent_encoder"], "annotates": ["latent_encoder"]}
    first = step(nlp, batch, optimizer, **options)
    for _ in range(12):
        last = step(nlp, batch, optimizer, **options)
    assert last["tagger"] < first["tagger"]
    assert np.array_equal(before, scorer_weights(nlp, "latent_encoder"))


def test_frozen_encoder_that_does_not_annotate_is_refused():
    nlp = latent_pipeline("tagger")
    batch, optimizer = examples(nlp), initialized(nlp)
    with pytest.raises(ValueError, match="annotating_components"):
        step(nlp, batch, optimizer, exclude=["latent_encoder"])


def test_frozen_listener():
    nlp = latent_pipeline("tagger", "textcat")
    batch, optimizer = examples(nlp), initialized(nlp)
    for _ in range(3):
        before = scorer_weights(nlp, "latent_encoder")
        step(nlp, batch, optimizer, exclude=["textcat"])
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))


def test_replaced_listeners_predict_the_same_and_train_alone(tmp_path):
    nlp = latent_pipeline("tagger", "textcat")
    batch, optimizer = examples(nlp), initialized(nlp)
    for _ in range(3):
        step(nlp, batch, optimizer)
    expected = nlp("I like London").cats
    nlp.replace_listeners("latent_encoder", "textcat", ["model.tok2vec"])
    assert nlp("I like London").cats == pytest.approx(expected)
    assert nlp.get_pipe("latent_encoder").listening_components == ["tagger"]
    nlp.to_disk(tmp_path)
    assert spacy.load(tmp_path)("I like London").cats == pytest.approx(expected)
    shared, own = scorer_weights(nlp, "latent_encoder"), scorer_weights(nlp, "textcat")
    for _ in range(2):
        step(nlp, batch, optimizer, exclude=["latent_encoder", "tagger"])
    assert np.array_equal(shared, scorer_weights(nlp, "latent_encoder"))
    assert not np.array_equal(own, scorer_weights(nlp, "textcat"))


@pytest.mark.parametrize("replace", [False, True])
def test_sourced(tmp_path, replace):
    nlp = latent_pipeline("tagger", "textcat")
    batch, optimizer = examples(nlp), initialized(nlp)
    for _ in range(3):
        step(nlp, batch, optimizer)
    expected = nlp("I like London").cats
    nlp.to_disk(tmp_path)
    config = copy.deepcopy(spacy.blank("en").config)
    source = {"source": str(tmp_path)}
    if replace:
        config["nlp"]["pipeline"] = ["textcat"]
        config["components"] = {"textcat": {**source, "replace_listeners": ["model.tok2vec"]}}
    else:
        config["nlp"]["pipeline"] = ["latent_encoder", "textcat"]
        config["components"] = {"latent_encoder": dict(source), "textcat": dict(source)}
    other = spacy.util.load_model_from_config(config, auto_fill=True)
    assert other("I like London").cats == pytest.approx(expected)
    owner = "textcat" if replace else "latent_encoder"
    optimizer = other.resume_training()
    before = scorer_weights(other, owner)
    for _ in range(2):
        step(other, batch, optimizer)
    assert not np.array_equal(before, scorer_weights(other, owner))


def test_training_can_resume():
    nlp = latent_pipeline("textcat")
    batch, optimizer = examples(nlp), initialized(nlp)
    for _ in range(2):
        step(nlp, batch, optimizer)
    other = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    optimizer = other.resume_training()
    before = scorer_weights(other, "latent_encoder")
    step(other, [Example(other.make_doc(e.text), e.reference) for e in batch], optimizer)
    assert not np.array_equal(before, scorer_weights(other, "latent_encoder"))


def test_width_and_residual():
    nlp = inline_pipeline("textcat", width=7)
    assert_it_trains(nlp, ["textcat"], "textcat")
    (layer,) = latent_layers(nlp, "textcat")
    assert layer.composer.output_width == WIDTH
    with pytest.raises(ValueError, match="residual"):
        inline_pipeline("textcat", width=7, residual=True)
    assert INLINE.keys() == {"@architectures", "tok2vec"}
