"""The component ``latent_encoder``: training through its listeners, prediction, annotation."""

import gc
import warnings

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent.errors import LatentError, LatentWarning
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    latent_layers,
    latent_pipeline,
    learn,
    stock,
    stored,
)

DATA = [
    ("this is good stuff", {"cats": {"A": 1.0, "B": 0.0}}),
    ("this is bad", {"cats": {"A": 0.0, "B": 1.0}}),
]


def trained(steps=40):
    fix_random_seed(0)
    nlp = latent_pipeline("textcat")
    examples = [Example.from_dict(nlp.make_doc(text), gold) for text, gold in DATA]
    optimizer = nlp.initialize(lambda: examples)
    losses = {}
    losses = learn(nlp, examples, steps, optimizer)
    return nlp, losses


@pytest.fixture(scope="module")
def nlp():
    return trained()[0]


def test_it_learns_and_the_seed_decides():
    first, losses = trained()
    second, again = trained()
    assert losses["textcat"] < 0.05
    assert losses == again
    assert first("this is bad").cats == second("this is bad").cats


def test_an_update_keeps_nothing_of_those_before():
    """The number of living tensors does not grow from one update to the next.

    A weight whose data is the array of the optimizer would keep all its earlier values alive.
    """
    fix_random_seed(0)
    nlp = latent_pipeline("textcat")
    examples = [Example.from_dict(nlp.make_doc(text), gold) for text, gold in DATA]
    optimizer = nlp.initialize(lambda: examples)
    counts = []
    for _ in range(3):
        learn(nlp, examples, 4, optimizer)
        gc.collect()
        counts.append(sum(isinstance(item, torch.Tensor) for item in gc.get_objects()))
    assert counts[1] == counts[2]


def test_annotation_is_a_tree(nlp):
    doc = nlp("this is good stuff")
    heads = doc._.latent["latent_encoder"].heads
    for token in range(len(doc)):
        path = [token]
        while heads[path[-1]] != path[-1]:
            path.append(int(heads[path[-1]]))
            assert len(path) <= len(doc)


def test_bytes_disk_and_pickle_give_the_same_predictions(nlp, tmp_path):
    expected = nlp("this is good")
    for other in stored(nlp, tmp_path):
        doc = other("this is good")
        assert doc.cats == pytest.approx(expected.cats)
        assert np.array_equal(
            doc._.latent["latent_encoder"].heads, expected._.latent["latent_encoder"].heads
        )


def test_the_state_of_an_estimator_is_stored_and_starts_again_with_the_weights(tmp_path):
    fix_random_seed(0)
    estimator = {"@misc": "spacy-latent.AdaptiveImplicitMLE.v1", "initial": 0.5, "rate": 0.125}
    encoder = {"model": {"tok2vec": TOK2VEC, "estimator": estimator}}
    nlp = latent_pipeline("textcat", encoder=encoder)
    examples = [Example.from_dict(nlp.make_doc(text), gold) for text, gold in DATA]

    def state(nlp):
        (layer,) = latent_layers(nlp, "latent_encoder")
        return layer.estimator.step.item(), layer.estimator.changed.item()

    optimizer = nlp.initialize(lambda: examples)
    before = state(nlp)
    # The step size changes at each backward pass, which comes one update late.
    learn(nlp, examples, 4, optimizer)
    after = state(nlp)
    assert before == (0.5, 1.0) and after[0] != 0.5 and after[1] != 1.0
    for other in stored(nlp, tmp_path):
        assert state(other) == after
    nlp.initialize(lambda: examples)
    assert state(nlp) == before


def test_batches_and_padding_change_nothing(nlp):
    texts = ["good", "this is bad", " ", "this is good stuff and more of it is here", "bad"]
    alone = [nlp(text) for text in texts]
    for together in (list(nlp.pipe(texts)), list(nlp.pipe(texts[::-1]))[::-1]):
        for a, b in zip(alone, together):
            assert a.cats == pytest.approx(b.cats, abs=1e-6)


def test_empty_batches(nlp):
    assert list(nlp.pipe([])) == []
    encoder = nlp.get_pipe("latent_encoder")
    batch, structures = encoder.predict([])
    assert batch.vectors == structures == []
    doc = nlp("")
    assert len(doc._.latent["latent_encoder"].heads) == 0


def test_a_listener_of_the_wrong_width_is_refused():
    other = spacy.blank("en")
    other.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    with pytest.raises(LatentError, match="16"):
        other.add_pipe("textcat", config=stock("textcat", {**LISTENER, "width": 5}))
        other.initialize(lambda: [Example.from_dict(other.make_doc(t), g) for t, g in DATA])


def test_a_model_without_a_structure_is_refused():
    with pytest.raises(LatentError, match="structure"):
        spacy.blank("en").add_pipe("latent_encoder", config={"model": TOK2VEC})


@pytest.mark.parametrize("setting", [{"threshold": 7.0}, {"alternatives": -1}])
def test_a_setting_out_of_range_is_refused(setting):
    (name,) = setting
    with pytest.raises(LatentError, match=rf"{name}.*{setting[name]}"):
        spacy.blank("en").add_pipe("latent_encoder", config=setting)


def test_it_has_no_labels(nlp):
    encoder = nlp.get_pipe("latent_encoder")
    assert encoder.is_trainable
    with pytest.raises(NotImplementedError, match="latent"):
        encoder.add_label("X")
    examples = [Example.from_dict(nlp.make_doc(text), gold) for text, gold in DATA]
    assert nlp.evaluate(examples)["cats_score"] == 1.0


def test_a_pending_batch_is_dropped_with_the_weights_that_it_was_of():
    other, _ = trained(steps=2)
    batch = [Example.from_dict(other.make_doc(text), gold) for text, gold in DATA]
    stored = other.to_bytes()
    for renew in (lambda: other.from_bytes(stored), lambda: other.initialize(lambda: batch)):
        other.update(batch, sgd=False)
        renew()
        assert not other.get_pipe("latent_encoder")._batch.flush()
        losses = other.update(batch, sgd=False)
        assert np.isfinite(losses["textcat"])


@pytest.mark.parametrize("change", ["disable", "rename"])
def test_a_trained_listener_without_its_encoder_says_so(change):
    other, _ = trained(steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        other("this is good")
        examples = [Example.from_dict(other.make_doc(text), gold) for text, gold in DATA]
        other.initialize(lambda: examples)
        other("this is good")
    other, _ = trained(steps=2)
    loaded = spacy.blank("en").from_config(other.config).from_bytes(other.to_bytes())
    if change == "disable":
        loaded.disable_pipe("latent_encoder")
    else:
        loaded.rename_pipe("latent_encoder", "shared")
    with pytest.warns(LatentWarning, match="'latent_encoder'"):
        loaded("this is good")


def tagged(*between):
    """Train an encoder and a tagger that listens to it, and then add components between them.

    Returns:
        The pipeline, and its predicted tags.
    """
    fix_random_seed(0)
    other = latent_pipeline("tagger")
    text = "this is good stuff"
    gold = {"tags": ["D", "V", "A", "N"]}
    examples = [Example.from_dict(other.make_doc(text), gold)]
    optimizer = other.initialize(lambda: examples)
    learn(other, examples, 30, optimizer)
    assert [token.tag_ for token in other(text)] == gold["tags"]
    for name in between:
        other.add_pipe(name, before="tagger")
    return other, [token.tag_ for token in other(text)]


@Language.component("tests_merge_first")
def merge_first(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
    return doc


@Language.component("tests_split_third")
def split_third(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.split(doc[2], ["go", "od"], heads=[doc[1], doc[1]])
    return doc


@Language.component("tests_merge_and_split")
def merge_and_split(doc):
    """Replace tokens by other tokens, so that their number stays the same."""
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
        retokenizer.split(doc[2], ["go", "od"], heads=[doc[3], doc[3]])
    return doc


@pytest.mark.parametrize(
    ("between", "tags"),
    [
        ("tests_merge_first", ["V", "A", "N"]),
        ("tests_split_third", ["D", "V", "A", "A", "N"]),
        ("tests_merge_and_split", ["V", "A", "A", "N"]),
    ],
)
def test_tokens_merged_and_split_before_a_listener_keep_their_vectors(between, tags):
    """A merged token gets the vector of its last token, as with doc.tensor. Otherwise all later
    vectors would shift.
    """
    assert tagged(between)[1] == tags


def test_a_listener_that_was_disabled_gets_vectors_when_it_is_enabled(tmp_path):
    other, tags = tagged()
    other.to_disk(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        for options in ({"disable": ["tagger"]}, {"enable": ["latent_encoder"]}):
            loaded = spacy.load(tmp_path, **options)
            loaded.enable_pipe("tagger")
            assert [token.tag_ for token in loaded("this is good stuff")] == tags


def test_the_embedder_has_the_name_by_which_it_is_pretrained(nlp):
    model = nlp.get_pipe("latent_encoder").model
    assert model.get_ref("tok2vec") is model.get_ref("embedder") is model.layers[0]
