"""Explanations by sufficient words, for pipelines whose decisive words are known."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.evaluation.explanation import (
    LEAVE_ONE_OUT,
    MASK,
    RANDOM,
    NoSuchEntity,
    explain,
)
from spacy_latent.models.hidden_words import find_word_readers, known_words
from spacy_latent.models.learned_mask import learn_mask, shortest_prefix
from tests.pipeline.keyword_pipelines import CHOICE, keyword_examples, keyword_pipeline
from tests.pipeline.small_pipelines import (
    LISTENER,
    REDUCE,
    TO_TRANSFORMER,
    TOK2VEC,
    TRANSFORMER_WIDTH,
    add_transformer,
    initialized,
    learn,
    save_small_transformer,
    step,
    stock,
)

GOOD = "filler1 filler2 good filler3 filler4 filler5"
BAD = "filler1 filler2 bad filler3 filler4 filler5"
SHARED = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16}
MULTILABEL = {**REDUCE, "exclusive_classes": False}
BAG = {
    "@architectures": "spacy.TextCatBOW.v3",
    "exclusive_classes": True,
    "ngram_size": 2,
    "no_output_layer": False,
}
PIPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "inline": [("textcat", {"model": {**REDUCE, "tok2vec": TOK2VEC}})],
    "listener": [
        ("tok2vec", {"model": TOK2VEC}),
        ("textcat_multilabel", {"model": {**MULTILABEL, "tok2vec": SHARED}}),
    ],
    "bag of bigrams": [("textcat", {"model": BAG})],
}


def trained(pipes: list[tuple[str, dict[str, Any]]]) -> Language:
    nlp = spacy.blank("xx")
    for name, config in pipes:
        nlp.add_pipe(name, config=config)
    examples = keyword_examples(nlp, 64, seed=0, heads=False)
    fix_random_seed(0)
    nlp.initialize(lambda: examples)
    optimizer = Adam(0.02)
    learn(nlp, examples, 40, optimizer)
    return nlp


@pytest.fixture(scope="module")
def made() -> dict[str, Language]:
    found = {name: trained(pipes) for name, pipes in PIPES.items()}
    found["latent encoder"] = keyword_pipeline(CHOICE, steps=30)
    return found


@pytest.mark.parametrize("kind", [*PIPES, "latent encoder"])
def test_the_word_that_decides_is_chosen(made: dict[str, Language], kind: str) -> None:
    nlp = made[kind]
    assert nlp(GOOD).cats["good"] > 0.8 and nlp(BAD).cats["bad"] > 0.8
    before = nlp.to_bytes()
    words = 0
    for text, label in ((GOOD, "good"), (BAD, "bad")):
        found = explain(nlp, text, steps=20 if kind == "latent encoder" else 80)
        assert found.hidden == "vectors" and found.label == found.what == label
        assert found.probability == pytest.approx(nlp(text).cats[label], abs=1e-4)
        assert found.erased.keys() == found.faithfulness.keys() == {MASK, LEAVE_ONE_OUT, RANDOM}
        own = found.faithfulness[MASK]
        assert own.sufficiency <= 0.1 + 1e-6
        # The model may predict one of the two labels without any word.
        assert bool(found.words) == (found.probability - found.without > 0.1)
        if found.words:
            assert label in found.words and len(found.words) <= 3
            assert found.weights[2] > 0.3 and found.chosen[found.weights.argmax()]
            assert own.sufficiency < found.faithfulness[RANDOM].sufficiency
        words += len(found.words)
    assert words and nlp.to_bytes() == before


def test_a_word_that_alone_decides_is_comprehensive(made: dict[str, Language]) -> None:
    found = explain(made["listener"], BAD, label="bad")
    assert found.faithfulness[MASK].comprehensiveness > 0.3
    assert found.falls.argmax() == 2
    random = found.faithfulness[RANDOM]
    assert found.faithfulness[MASK].comprehensiveness > random.comprehensiveness


def test_the_same_seed_gives_the_same(made: dict[str, Language]) -> None:
    fix_random_seed(3)
    first = explain(made["inline"], GOOD, seed=5, steps=10)
    fix_random_seed(4)
    again = explain(made["inline"], GOOD, seed=5, steps=10)
    other = explain(made["inline"], GOOD, seed=6, steps=10)
    assert first.weights.tolist() == again.weights.tolist()
    assert first.faithfulness == again.faithfulness
    assert first.weights.tolist() != other.weights.tolist()


def test_the_model_reads_as_before_whatever_happens(made: dict[str, Language]) -> None:
    nlp = made["listener"]
    pipe: Any = nlp.get_pipe("textcat_multilabel")
    nodes = [*pipe.model.walk(), *nlp.get_pipe("tok2vec").model.walk()]  # type: ignore[attr-defined]
    own = [node._func for node in nodes]
    doc = nlp(GOOD)
    upstream = {listener: nlp.get_pipe("tok2vec").model for listener in pipe.model.walk()}  # type: ignore[attr-defined]
    upstream = {node: m for node, m in upstream.items() if node.name == "tok2vec-listener"}
    readers = find_word_readers(pipe.model, upstream, doc, pipe.predict)
    assert readers is not None
    with pytest.raises(ZeroDivisionError), readers.hiding(np.zeros((1, len(doc)))):
        hidden = pipe.predict([doc])
        raise ZeroDivisionError
    assert [node._func for node in nodes] == own
    # All words are hidden, so a text with as many other words gets the same scores.
    other = nlp(BAD)
    with readers.hiding(np.zeros((1, len(doc)))):
        np.testing.assert_allclose(pipe.predict([other]), hidden, atol=1e-6)
    assert pipe.predict([doc])[0] == pytest.approx(list(doc.cats.values()), abs=1e-5)
    assert abs(pipe.predict([doc]) - hidden).max() > 0.01


def test_known_words_are_no_new_strings(made: dict[str, Language]) -> None:
    vocab = made["inline"].vocab
    before = len(vocab.strings)
    words = known_words(vocab)
    Doc(vocab, words=words)
    assert {"good", "filler3"} & set(words) and len(vocab.strings) == before
    assert len(set(words)) == len(words) <= 256


def test_another_label(made: dict[str, Language]) -> None:
    found = explain(made["listener"], GOOD, label="bad", steps=5)
    assert found.label == "bad" and found.probability < 0.5


@pytest.mark.parametrize("kind", ["inline", "listener", "bag of bigrams"])
def test_one_word_and_none(made: dict[str, Language], kind: str) -> None:
    if kind != "bag of bigrams":
        # spaCy's own bag of bigrams fails on a text with one word.
        assert explain(made[kind], "good", steps=20).weights.shape == (1,)
    empty = explain(made[kind], "", steps=20)
    assert not len(empty.weights) and empty.words == [] and empty.faithfulness == {}


def test_what_reads_no_word_alone_has_words_taken_out_of_its_text(
    made: dict[str, Language],
) -> None:
    nlp = spacy.blank("xx", vocab=made["listener"].vocab)
    for name in ("tok2vec", "textcat_multilabel"):
        nlp.add_pipe(name, source=made["listener"])
    assert explain(nlp, GOOD, steps=2).hidden == "vectors"
    # Without the map, the source of the listener's vectors is unknown.
    nlp.get_pipe("tok2vec").listener_map.clear()  # type: ignore[attr-defined]
    found = explain(nlp, GOOD, label="good")
    assert found.hidden == "text" and "good" in found.words
    assert found.faithfulness == found.erased


def over_a_transformer(path: Path, kind: str, encoder: bool) -> Language:
    """Train a component over a shared transformer, or over a latent encoder above it.

    One word of each training text decides the category, and another is the entity.
    """
    nlp = spacy.blank("en")
    add_transformer(nlp, path)
    shared = TO_TRANSFORMER
    if encoder:
        own = {"tok2vec": shared, "width": TRANSFORMER_WIDTH}
        nlp.add_pipe("latent_encoder", config={"model": own})
        shared = {**LISTENER, "width": TRANSFORMER_WIDTH}
    if kind == "crf_ner":
        nlp.add_pipe(kind, config={"annotate": "probabilities", "model": {"tok2vec": shared}})
    else:
        nlp.add_pipe(kind, config=stock(kind, shared))
    train = []
    for words, label in (("i like {} s", "good"), ("i hate {} s", "bad"), ("{} s i hate", "bad")):
        text = words.format("london")
        start = text.index("london")
        gold = {
            "cats": {"good": float(label == "good"), "bad": float(label == "bad")},
            "entities": [(start, start + len("london"), "PLACE")],
        }
        train.append(Example.from_dict(nlp.make_doc(text), gold))
    optimizer = initialized(nlp, sample=train)
    for _ in range(60):
        step(nlp, train, optimizer)
    return nlp


@pytest.mark.parametrize("encoder", [False, True], ids=["transformer", "latent encoder over it"])
@pytest.mark.parametrize("kind", ["textcat", "textcat_multilabel", "ner", "crf_ner"])
def test_over_a_shared_transformer(kind: str, encoder: bool, tmp_path: Path) -> None:
    save_small_transformer(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    nlp = over_a_transformer(tmp_path, kind, encoder)
    text, of_entities = "i hate london s", kind.endswith("ner")
    doc, before = nlp(text), nlp.to_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = explain(nlp, text, steps=20)
    assert found.hidden == "text" and found.faithfulness == found.erased
    decides = 2 if of_entities else 1
    assert doc[decides].text in found.words and found.falls[decides] == found.falls.max()
    if not of_entities:
        assert found.label == "bad"
        assert found.probability == pytest.approx(doc.cats["bad"], abs=1e-4)
    assert nlp.to_bytes() == before and nlp(text).cats == pytest.approx(doc.cats)


@pytest.mark.parametrize("kind", ["ner", "crf_ner"])
def test_an_entity(kind: str) -> None:
    nlp = spacy.blank("xx")
    own = {"annotate": "probabilities", "model": {"tok2vec": TOK2VEC}}
    nlp.add_pipe(kind, config=stock("ner", TOK2VEC) if kind == "ner" else own)
    texts = [(f"we saw {w} there", w) for w in ("London", "Paris", "Berlin")]
    train = []
    for text, word in texts:
        start = text.index(word)
        gold = {"entities": [(start, start + len(word), "PLACE")]}
        train.append(Example.from_dict(nlp.make_doc(text), gold))
    fix_random_seed(0)
    nlp.initialize(lambda: train)
    optimizer = Adam(0.02)
    learn(nlp, train, 25, optimizer)
    before = nlp.to_bytes()
    found = explain(nlp, nlp.make_doc("we saw Paris there"), steps=30)
    assert found.what == "Paris (PLACE)" and found.entity == (2, 3) and found.hidden == "vectors"
    assert found.faithfulness[MASK].sufficiency <= 0.1 + 1e-6
    # ner gives no probabilities, so scores are 0 or 1.
    assert (set(found.falls) <= {0.0, 1.0} and found.probability == 1) == (kind == "ner")
    assert nlp.to_bytes() == before
    for wrong in ({"entity": 1}, {"label": "PERSON"}):
        with pytest.raises(LatentError, match=r"\b1\b|'PERSON'"):
            explain(nlp, "we saw Paris there", **wrong)  # type: ignore[arg-type]
    if kind == "crf_ner":
        # Explanations depend neither on min_confidence nor on the extension "confidence".
        pipe, known = nlp.get_pipe(kind), Span.get_extension("confidence")
        pipe.cfg["min_confidence"] = found.probability - 1e-4  # type: ignore[union-attr]
        Span.set_extension("confidence", default="high", force=True)
        try:
            again = explain(nlp, nlp.make_doc("we saw Paris there"), steps=30)
        finally:
            Span.set_extension("confidence", getter=known[2], force=True)
            pipe.cfg["min_confidence"] = 0.0  # type: ignore[union-attr]
        assert again.falls == pytest.approx(found.falls) and again.words == found.words
    # Entities that are already on a doc would stay, so that no word would seem to matter.
    with pytest.raises(NoSuchEntity, match=r"Paris.*PLACE") as told:
        explain(nlp, nlp("we saw Paris there"))
    sent = pickle.loads(pickle.dumps(told.value))
    assert (str(sent), sent.component) == (str(told.value), told.value.component)
    assert sent.doc.text == "we saw Paris there"
    ruler: Any = nlp.add_pipe("entity_ruler", first=True)
    ruler.add_patterns([{"label": "VERB", "pattern": "saw"}])
    with pytest.raises(NoSuchEntity, match=r"saw.*VERB"):
        explain(nlp, "we saw Paris there")
    assert explain(nlp, "we saw Paris there", entity=1, steps=5).what == "Paris (PLACE)"


def test_a_shared_embedder_that_ran_is_not_said_to_be_missing() -> None:
    nlp = spacy.blank("xx")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    model = {"@architectures": "spacy-latent.CrfTagger.v2", "tok2vec": SHARED}
    nlp.add_pipe("crf_ner", config={"model": model})
    gold = {"entities": [(7, 12, "PLACE")]}
    train = [Example.from_dict(nlp.make_doc("we saw Paris there"), gold)]
    fix_random_seed(0)
    nlp.initialize(lambda: train)
    learn(nlp, train, 10, Adam(0.02))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        found = explain(nlp, "we saw Paris there", steps=2)
    assert found.hidden == "vectors"


def test_what_cannot_be_explained_is_told(made: dict[str, Language]) -> None:
    nlp = spacy.blank("xx")
    with pytest.raises(LatentError, match="explain"):
        explain(nlp, GOOD)
    nlp.add_pipe("ner", config=stock("ner", TOK2VEC))
    with pytest.raises(LatentError, match=r"E109.*'ner'"):
        explain(nlp, GOOD)
    nlp.remove_pipe("ner")
    nlp.add_pipe("textcat").add_label("good")  # type: ignore[attr-defined]
    with pytest.raises(LatentError, match=r"E109.*'textcat'"):
        explain(nlp, GOOD)
    nlp.remove_pipe("textcat")
    nlp.add_pipe("tagger", config=stock("tagger", TOK2VEC))
    initialized(nlp)
    with pytest.raises(LatentError, match="'tagger'"):
        explain(nlp, GOOD, "tagger")
    with pytest.raises(LatentError, match=r"'fine'.*good, bad"):
        explain(made["inline"], GOOD, label="fine")
    for wrong in ({"steps": 0}, {"margin": 0.0}, {"margin": 1.0}):
        with pytest.raises(LatentError, match="expected"):
            explain(made["inline"], GOOD, **wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- learning a mask


def test_words_that_stand_for_each_other() -> None:
    """Either of two words suffices, and the mask keeps at least one of them.

    The score does not fall if one word alone is left out.
    """

    def scores(masks: np.ndarray) -> np.ndarray:
        return 0.2 + 0.8 * masks[:, [1, 4]].max(1)

    weights = learn_mask(scores, 6, 80, 0.1, seed=0)
    assert weights[[1, 4]].max() > 0.5 and weights[[0, 2, 3, 5]].max() < 0.2
    assert shortest_prefix(scores, np.argsort(-weights), 0.1) == 1


def test_longer_texts_than_a_step_tries() -> None:
    def scores(masks: np.ndarray) -> np.ndarray:
        assert masks.shape[0] <= 97 and masks.min() >= 0 and masks.max() <= 1
        return masks[:, 100] * masks[:, 7]

    weights = learn_mask(scores, 120, 120, 0.1, seed=0)
    assert set(np.argsort(-weights)[:2]) == {7, 100}


def test_no_word_is_kept_for_what_is_said_anyway() -> None:
    weights = learn_mask(lambda masks: np.ones(len(masks)), 5, 60, 0.1, seed=0)
    assert weights.max() < 0.5
    assert shortest_prefix(lambda masks: np.ones(len(masks)), np.arange(5), 0.1) == 0
