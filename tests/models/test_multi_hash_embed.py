"""A faster MultiHashEmbed, compared with spaCy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model, fix_random_seed, set_dropout_rate

from spacy_latent.models import multi_hash_embed

SETTINGS: list[dict[str, Any]] = [
    {"width": 8, "attrs": ["ORTH"], "rows": [50]},
    {"width": 8, "attrs": ["NORM", "PREFIX", "SHAPE"], "rows": [50, 40, 30]},
]


def build(name: str, settings: dict[str, Any], docs: list[Doc]) -> Model:
    fix_random_seed(0)
    return registry.get("architectures", name)(**settings).initialize(X=docs)


def some_docs() -> list[Doc]:
    vocab = spacy.blank("en").vocab
    texts = [["a", "rose", "is", "a", "rose"], [], ["A", "rose", "!"], ["!"]]
    return [Doc(vocab, words=words) for words in texts]


@pytest.mark.parametrize("settings", SETTINGS)
def test_results_and_gradients_are_those_of_spacy(settings: dict[str, Any]) -> None:
    docs = some_docs()
    ours = build("spacy-latent.MultiHashEmbed.v1", settings, docs)
    theirs = build("spacy.MultiHashEmbed.v2", {**settings, "include_static_vectors": False}, docs)
    rng = np.random.default_rng(0)
    change = [rng.normal(size=(len(doc), 8)).astype("float32") for doc in docs]
    slopes = []
    for model in (ours, theirs):
        vectors, backprop = model(docs, is_train=True)
        backprop([one.copy() for one in change])
        held = {
            (node.name, name): node.get_grad(name)
            for node in model.walk()
            for name in node.param_names
        }
        slopes.append((vectors, held))
    for one, other in zip(slopes[0][0], slopes[1][0]):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert slopes[0][1].keys() == slopes[1][1].keys() and len(slopes[0][1]) > 3
    for name, slope in slopes[0][1].items():
        np.testing.assert_allclose(slope, slopes[1][1][name], atol=1e-5, err_msg=str(name))
    assert [len(vectors) for vectors in ours.predict(docs)] == [5, 0, 3, 1]
    assert ours.predict([docs[1]])[0].shape == (0, 8)


def test_words_are_embedded_once_but_for_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    docs, seen = some_docs(), []
    model = build("spacy-latent.MultiHashEmbed.v1", SETTINGS[0], docs)
    (inner,) = (node for node in model.walk() if node.name == "once_each")
    layer = inner.layers[0]
    run = layer._func

    def watch(model: Model, X: Any, is_train: bool) -> Any:
        seen.append(len(X.dataXd))
        return run(model, X, is_train)

    monkeypatch.setattr(layer, "_func", watch)
    model(docs, is_train=True)
    set_dropout_rate(model, 0.5)
    model(docs, is_train=True)
    model.predict(docs)
    assert seen == [5, 9, 5]


def test_it_is_saved_and_loaded() -> None:
    docs = some_docs()
    model = build("spacy-latent.MultiHashEmbed.v1", SETTINGS[0], docs)
    other = multi_hash_embed.build_multi_hash_embed_v1(**SETTINGS[0]).initialize(X=docs)
    assert not np.array_equal(model.predict(docs)[0], other.predict(docs)[0])
    other.from_bytes(model.to_bytes())
    np.testing.assert_array_equal(model.predict(docs)[0], other.predict(docs)[0])
