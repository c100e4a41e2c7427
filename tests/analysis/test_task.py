"""Scores of single texts."""

from __future__ import annotations

import pytest
import spacy
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.analysis.resampling import (
    f_score,
)
from spacy_latent.analysis.task import (
    best_category,
    find_measures,
    gold_label,
    majority_share,
    only_label,
)
from tests.pipeline.small_pipelines import STOCK, TOK2VEC, stock

WORDS = ["I", "like", "London"]


def example(nlp: spacy.Language, **both: tuple[object, object]) -> Example:
    docs = [Doc(nlp.vocab, words=WORDS), Doc(nlp.vocab, words=WORDS)]
    for name, values in both.items():
        for doc, value in zip(docs, values):
            setattr(doc, name, value)
    return Example(*docs)


def test_categories() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat", config=stock("textcat", TOK2VEC))
    right = example(nlp, cats=({"a": 0.9, "b": 0.1}, {"a": 1.0, "b": 0.0}))
    wrong = example(nlp, cats=({"a": 0.9, "b": 0.1}, {"a": 0.0, "b": 1.0}))
    (measure,) = find_measures(nlp, [right, wrong])
    assert measure.name == "accuracy"
    assert measure.counts([right, wrong]).tolist() == [[1, 1], [0, 1]]
    assert majority_share([right, wrong, right]) == ("a", pytest.approx(2 / 3))
    assert best_category({"b": 0.5, "a": 0.5}) == "a" and best_category({}) == ""
    assert find_measures(nlp, [example(nlp)]) == []


def test_each_of_two_classifiers_is_judged_by_its_own_labels() -> None:
    nlp = spacy.blank("en")
    for name, labels in (("mood", "ab"), ("topic", "xy")):
        pipe = nlp.add_pipe("textcat", name=name, config=stock("textcat", TOK2VEC))
        for label in labels:
            pipe.add_label(label)
    said = {"a": 0.7, "b": 0.3, "x": 0.2, "y": 0.8}
    both = example(nlp, cats=(said, {"a": 1.0, "b": 0.0, "x": 1.0, "y": 0.0}))
    mood, topic = find_measures(nlp, [both])
    assert mood.counts([both]).tolist() == [[1, 1]] and topic.counts([both]).tolist() == [[0, 1]]
    assert mood.majority == ("a", 1.0) and topic.majority == ("x", 1.0)
    one = example(nlp, cats=(said, {"a": 1.0, "b": 0.0}))
    (mood,) = find_measures(nlp, [one])
    assert mood.counts([one]).tolist() == [[1, 1]]
    unknown = example(nlp, cats=(said, {"z": 1.0}))
    mood = find_measures(nlp, [unknown])[0]
    assert mood.counts([unknown]).tolist() == [[0, 1]]


def test_labels_and_numbers() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat_multilabel", config=stock("textcat_multilabel", TOK2VEC))
    both = {"a": 1.0, "b": 1.0, "c": 0.0}
    one = example(nlp, cats=({"a": 0.9, "b": 0.1, "c": 0.8}, both))
    (measure,) = find_measures(nlp, [one])
    assert measure.counts([one]).tolist() == [[1, 2, 2]]
    number = example(nlp, cats=({"a": 0.25}, {"a": 0.75}))
    (measure,) = find_measures(nlp, [number])
    assert measure.value(measure.counts([number]).sum(0)) == pytest.approx(0.5)


def test_texts_that_only_tell_a_wrong_label_do_not_count_for_a_single_label() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat", config=stock("textcat", TOK2VEC))
    predicted = {"a": 0.9, "b": 0.1}
    right = example(nlp, cats=(predicted, {"a": 1.0, "b": 0.0}))
    rejected = example(nlp, cats=(predicted, {"a": 0.0}))
    (measure,) = find_measures(nlp, [right, rejected])
    assert measure.name == "accuracy"
    assert measure.counts([right, rejected]).tolist() == [[1, 1], [0, 0]]
    assert majority_share([right, rejected]) == ("a", 1.0)
    assert find_measures(nlp, [rejected]) == []
    assert only_label({"a": 1.0, "b": 0.0}) == "a" and only_label({"a": 1.0, "b": 1.0}) is None


def test_one_category_of_several_is_judged_by_its_threshold() -> None:
    """Accuracy was 100 % for a single category, and counted categories that are not annotated."""
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat_multilabel", config=stock("textcat_multilabel", TOK2VEC))
    missed = example(nlp, cats=({"a": 0.1}, {"a": 1.0}))
    found = example(nlp, cats=({"a": 0.7, "b": 0.8}, {"a": 1.0}))
    (measure,) = find_measures(nlp, [missed, found])
    assert measure.counts([missed, found]).tolist() == [[0, 0, 1], [1, 1, 1]]


def test_numbers_of_a_range_may_all_be_0_or_1() -> None:
    nlp = spacy.blank("en")
    model = {"exclusive_classes": False, "tok2vec": TOK2VEC}
    settings = {"model": model, "score_range": [0.0, 5.0]}
    nlp.add_pipe("latent_textcat_multilabel", config=settings)
    number = example(nlp, cats=({"stars": 3.5}, {"stars": 1.0}))
    (measure,) = find_measures(nlp, [number])
    assert measure.value(measure.counts([number]).sum(0)) == pytest.approx(0.5)


def test_entities_spans_tags_and_heads() -> None:
    nlp = spacy.blank("en")
    for name in ("ner", "spancat", "tagger", "parser"):
        assert name in STOCK
        nlp.add_pipe(name, config=stock(name, TOK2VEC))
    made = example(nlp)
    for doc, label in ((made.predicted, "ORG"), (made.reference, "GPE")):
        doc.ents = [Span(doc, 2, 3, "GPE")]
        doc.spans["sc"] = [Span(doc, 2, 3, label)]
        for token, tag in zip(doc, "PVN"):
            token.tag_ = tag if label == "GPE" or tag != "V" else "N"
            token.head, token.dep_ = doc[1], "x" if token.i else label
    values = {m.name: m.value(m.counts([made]).sum(0)) for m in find_measures(nlp, [made])}
    assert values == {
        "F1 of the entities": 1.0,
        "F1 of the spans": 0.0,
        "accuracy of the tags": pytest.approx(2 / 3),
        "labelled attachment of the parser": pytest.approx(2 / 3),
    }


def test_entities_and_spans_that_references_say_nothing_of_do_not_count() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("ner", config=stock("ner", TOK2VEC))
    nlp.add_pipe("spancat", config=stock("spancat", TOK2VEC))

    def doc(*labels: str) -> Doc:
        made = Doc(nlp.vocab, words=WORDS)
        found = [Span(made, i, i + 1, label) for i, label in enumerate(labels) if label]
        made.set_ents(found, default="missing" if "" in labels else "outside")
        made.spans["sc"] = found
        return made

    partly = Example(doc("A", "A", "B"), doc("A", "", ""))
    unknown = Example(doc("A", "A"), Doc(nlp.vocab, words=WORDS))
    of_one_label = Example(doc("A", "B", "B"), doc("A", "B"))
    of_one_label.reference._.annotated_labels = ["A"]
    made = [partly, unknown, of_one_label]
    entities, spans = find_measures(nlp, made)
    assert entities.counts(made).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert spans.counts(made).tolist() == [[1, 3, 1], [0, 0, 0], [1, 1, 1]]
    assert get_ner_prf(made[:2])["ents_f"] == 1.0 == f_score(entities.counts(made[:2]).sum(0))


def test_arcs_of_unknown_labels_do_not_count() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("parser", config=stock("parser", TOK2VEC))
    predicted = Doc(nlp.vocab, words=WORDS, heads=[1, 1, 1], deps=["s", "ROOT", "o"])
    made = [
        Example(predicted, Doc(nlp.vocab, words=WORDS, heads=heads, deps=["s", "ROOT", "_"]))
        for heads in ([1, 1, 1], [1, 1, 2])
    ]
    (measure,) = find_measures(nlp, made)
    assert measure.counts(made).tolist() == [[2, 2], [2, 2]]
    # The reference has "b" and "c" as one word, so that the heads of its parts are unknown.
    words = [WORDS[0], "".join(WORDS[1:])]
    joined = Doc(nlp.vocab, words=words, heads=[0, 0], deps=["ROOT", "o"])
    spaces, deps = [True, False, True], ["ROOT", "x", "x"]
    parts = Doc(nlp.vocab, words=WORDS, spaces=spaces, heads=[0, 0, 0], deps=deps)
    assert measure.count(Example(parts, joined)) == (1, 1)


@pytest.mark.parametrize(
    ("cats", "told"),
    [
        ({"bad": 0.0, "good": 1.0}, "good"),
        ({"short": 1.0, "dull": 0.0, "loud": 1.0}, "short, loud"),
        ({"short": 0.0, "dull": 0.0}, "none"),
        ({"score": 0.0}, "score 0"),
        ({"score": 3.5}, "score 3.5"),
        ({"a": 0.25, "b": 0.75}, "b 0.75"),
    ],
)
def test_annotated_labels_as_text(cats: dict[str, float], told: str) -> None:
    assert gold_label(cats) == told
