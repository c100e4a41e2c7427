"""Separate embedders: the inputs of the composer and of the scorer are independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from thinc.api import Adam, Model, fix_random_seed

from spacy_latent.errors import IncompatiblePair

EMBED = {"@architectures": "spacy-latent.MultiHashEmbed.v1", "attrs": ["ORTH"], "rows": [100]}
SEPARATE = {
    "@architectures": "spacy-latent.SeparateTok2Vec.v1",
    "composer": {**EMBED, "width": 12},
    "scorer": {**EMBED, "width": 8},
}
CLASSIFIER: dict[str, Any] = {
    "@architectures": "spacy-latent.LatentTextClassifier.v1",
    "tok2vec": SEPARATE,
    "exclusive_classes": True,
    "scorer": {"@misc": "spacy-latent.CounterScorer.v1", "counters": 2, "hidden_width": 8},
}
ENCODER: dict[str, Any] = {
    "@architectures": "spacy-latent.LatentTok2Vec.v1",
    "tok2vec": SEPARATE,
    "scorer": {"@misc": "spacy-latent.BiaffineScorer.v1"},
    "span_getter": {"@misc": "spacy-latent.DocSpans.v1"},
}
WORDS = "a b c d e f g".split()


def classifier(seed: int = 0, **changes: Any) -> Language:
    fix_random_seed(seed)
    nlp = spacy.blank("xx")
    nlp.add_pipe("latent_textcat", config={"model": {**CLASSIFIER, **changes}})
    nlp.initialize(lambda: examples(nlp))
    return nlp


def examples(nlp: Language) -> list[Example]:
    texts = ["a b c d", "b a", "c d e f g", "g f e"]
    made = []
    for number, text in enumerate(texts):
        annotations = {"cats": {"odd": float(number % 2), "even": float(1 - number % 2)}}
        made.append(Example.from_dict(nlp.make_doc(text), annotations))
    return made


def embedders(model: Model) -> list[dict[str, np.ndarray]]:
    """Return the weights of the composer's embedder, and of the scorer's embedder."""
    separate = model.get_ref("tok2vec" if model.has_ref("tok2vec") else "embedder")
    return [
        {
            f"{node.id} {name}": node.get_param(name).copy()
            for node in half.walk()
            for name in node.param_names
        }
        for half in separate.layers
    ]


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> bool:
    return any(not np.array_equal(before[name], after[name]) for name in before)


def predict(nlp: Language, texts: list[str]) -> list[Doc]:
    return list(nlp.pipe(texts))


def test_rows_of_both_stand_side_by_side() -> None:
    model = registry.resolve({"model": SEPARATE})["model"]
    vocab = spacy.blank("xx").vocab
    docs = [Doc(vocab, words=WORDS), Doc(vocab, words=[]), Doc(vocab, words=["a"])]
    model.initialize(X=docs)
    rows, backprop = model(docs, is_train=True)
    composed, scored = (layer.predict(docs) for layer in model.layers)
    for row, left, right in zip(rows, composed, scored, strict=True):
        np.testing.assert_array_equal(row, np.hstack([left, right]))
    assert [row.shape for row in rows] == [(7, 20), (0, 20), (1, 20)]
    assert model.get_dim("nO") == 20

    def slopes() -> list[bool]:
        return [
            any(node.has_grad(name) and np.any(node.get_grad(name)) for node in layer.walk()
                for name in node.param_names)
            for layer in model.layers
        ]  # fmt: skip

    change = [np.zeros_like(row) for row in rows]
    for row in change:
        row[:, 12:] = 1.0
    backprop(change)
    assert slopes() == [False, True]


def test_what_scorer_and_composer_learn_stays_with_their_own_words() -> None:
    given = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "flat"}
    # The scorer has no gradient with given trees.
    for changes, reads in (({"estimator": given}, [True, False]), ({}, [True, True])):
        nlp = classifier(**changes)
        model: Any = nlp.get_pipe("latent_textcat").model  # type: ignore[attr-defined]
        before = embedders(model)
        optimizer = Adam(0.01, L2=0.0)
        # The gradient below the last layer is zero in the first step.
        for _ in range(3):
            nlp.update(examples(nlp), sgd=optimizer)
        assert [moved(*pair) for pair in zip(before, embedders(model))] == reads


@pytest.mark.parametrize("half", [0, 1])
def test_each_sees_only_its_own(half: int) -> None:
    nlp = classifier()
    pipe: Any = nlp.get_pipe("latent_textcat")
    for _ in range(3):
        nlp.update(examples(nlp))
    text = "a b c d e f g"

    def found() -> tuple[np.ndarray, np.ndarray]:
        from spacy_latent.models.latent_text_classifier import run

        made = run(pipe.model, [nlp.make_doc(text)], False)[0].made
        return made.batch.outputs[0].scores.numpy(), np.asarray(made.vectors)

    scores, vectors = found()
    layer = pipe.model.get_ref("tok2vec").layers[half]
    for node in layer.walk():
        for name in node.param_names:
            node.set_param(name, node.get_param(name)[::-1].copy())
    changed_scores, changed_vectors = found()
    assert np.array_equal(scores, changed_scores) == (half == 0)
    if half == 0:
        assert not np.allclose(vectors, changed_vectors)


def test_a_saved_pipeline_predicts_the_same(tmp_path: Any) -> None:
    nlp = classifier()
    for _ in range(3):
        nlp.update(examples(nlp))
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    texts = ["a b c d", "g f e a"]
    for one, other in zip(predict(nlp, texts), predict(again, texts)):
        assert one.cats == other.cats
        held = [doc._.latent["latent_textcat"] for doc in (one, other)]
        np.testing.assert_array_equal(held[0].heads, held[1].heads)
        assert held[0].heads.shape == (4,)


def test_the_encoder_takes_it_too() -> None:
    fix_random_seed(0)
    nlp = spacy.blank("xx")
    nlp.add_pipe("latent_encoder", config={"model": ENCODER})
    tagger = nlp.add_pipe(
        "tagger",
        config={
            "model": {
                "@architectures": "spacy.Tagger.v2",
                "tok2vec": {"@architectures": "spacy-latent.LatentListener.v1", "width": 20},
            }
        },
    )
    docs = [
        Example.from_dict(nlp.make_doc(text), {"tags": [w.upper() for w in text.split()]})
        for text in ("a b c d", "c a", "d c b")
    ]
    nlp.initialize(lambda: docs)
    model: Any = nlp.get_pipe("latent_encoder").model  # type: ignore[attr-defined]
    before = embedders(model)
    for _ in range(20):
        nlp.update(docs)
    assert all(moved(*pair) for pair in zip(before, embedders(model)))
    assert tagger is not None and [t.tag_ for t in nlp("a b c d")] == ["A", "B", "C", "D"]


def test_models_without_use_for_two_refuse_them() -> None:
    for name in ("ParserTok2Vec", "CrfTagger", "RationaleTextCat"):
        architecture = registry.get("architectures", f"spacy-latent.{name}.v1")
        both = registry.resolve({"model": SEPARATE})["model"]
        more: dict[str, Any] = {}
        if name == "RationaleTextCat":
            own = registry.resolve({"model": SEPARATE["scorer"]})["model"]
            more = {"embed": own, "exclusive_classes": True}
        with pytest.raises(IncompatiblePair, match=rf"{name}.*SeparateTok2V"):
            architecture(tok2vec=both, **more)
