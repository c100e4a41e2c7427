"""Scores of single texts, and confidence intervals by resampling them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import spacy
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.analysis.task import (
    accuracy,
    best_category,
    confidence_interval,
    f_score,
    find_measures,
    gold_label,
    interval,
    intervals,
    majority_share,
    mean_over,
    only_label,
    paired_drop,
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


def test_nothing_to_count_is_not_a_number() -> None:
    assert math.isnan(accuracy(np.zeros(2))) and math.isnan(f_score(np.zeros(3)))
    assert all(map(math.isnan, interval(accuracy, np.zeros((0, 2)))))
    assert math.isnan(paired_drop(accuracy, np.zeros((0, 2)), np.zeros((0, 2))).drop)
    assert [list(map(math.isnan, row)) for row in intervals([np.zeros((0, 2))])] == [[True] * 3]


def test_an_interval_is_as_wide_as_theory_has_it() -> None:
    right = np.arange(400) < 300
    counts = np.stack([right, np.ones(400)], 1)
    value, low, high = interval(accuracy, counts)
    half = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert value == 0.75
    assert low == pytest.approx(0.75 - half, abs=0.006)
    assert high == pytest.approx(0.75 + half, abs=0.006)
    assert interval(accuracy, counts) == (value, low, high), "the same seed gives the same"
    assert interval(accuracy, counts, seed=1) != (value, low, high)
    assert intervals([counts, 0 * counts + [0, 1]])[0][0] == 0.75


def test_the_score_of_several_trainings_is_the_mean_of_theirs() -> None:
    all_right, collapsed = np.ones((50, 3)), np.tile([0.0, 0.0, 1.0], (50, 1))
    both = np.concatenate([all_right, collapsed], 1)
    mean = mean_over(f_score, 2)
    assert interval(mean, both)[0] == 0.5 == (f_score(all_right.sum(0)) + 0.0) / 2
    assert paired_drop(mean, both, both).drop == 0.0
    nothing = np.zeros((1, 3))
    assert mean(np.concatenate([nothing, collapsed[:1]], 1)).tolist() == [0.5]
    assert np.isnan(mean(np.concatenate([nothing, nothing], 1)))


def test_pairs_make_a_drop_narrower() -> None:
    rng = np.random.default_rng(0)
    before = (rng.random(400) < 0.7).astype(float)
    after = before.copy()
    after[:20] = 0.0
    lost = float(before[:20].sum()) / 400
    ones = np.ones(400)
    found = paired_drop(accuracy, np.stack([before, ones], 1), np.stack([after, ones], 1))
    assert found.drop == pytest.approx(lost) == pytest.approx(found.before - found.after)
    assert 0 < found.low < found.drop < found.high
    assert found.high - found.low < 0.05 < 4 * 1.96 * (0.7 * 0.3 / 400) ** 0.5
    same = paired_drop(accuracy, np.stack([before, ones], 1), np.stack([before, ones], 1))
    # If none of 400 texts differs, a rate of up to 3/400 is still possible.
    assert (same.drop, same.low, same.high) == (0, -3 / 400, 3 / 400)
    assert (same.docs, same.differ) == (400, 0)


@pytest.mark.parametrize("size", [1, 15, 300])
def test_what_no_text_shows_is_not_certain(size: int) -> None:
    right, wrong = np.array([[1.0, 1.0]] * size), np.array([[0.0, 1.0]] * size)
    room = min(1.0, 3 / size)
    assert interval(accuracy, right) == (1.0, pytest.approx(1 - room), 1.0)
    assert interval(accuracy, wrong) == (0.0, 0.0, pytest.approx(room))
    assert intervals([right, wrong]) == [interval(accuracy, right), interval(accuracy, wrong)]
    same = paired_drop(accuracy, right, right)
    assert (same.low, same.high) == (pytest.approx(-room), pytest.approx(room))
    better = paired_drop(accuracy, right, wrong)
    assert (better.drop, better.high) == (1.0, 1.0)
    assert better.low == pytest.approx(max(1 - 3 / size, -1.0)) and better.differ == size
    worse = paired_drop(accuracy, wrong, right)
    assert (worse.low, worse.high) == (-1.0, pytest.approx(-better.low))


def test_one_direction_that_no_text_shows_is_not_ruled_out() -> None:
    """The interval is wider than the resamples if no text shows one direction of change.

    Two of 15 texts are better afterwards and none is worse, so no resample has a drop above 0.
    """
    before = np.stack([np.arange(15) >= 2, np.ones(15)], 1).astype(float)
    after = np.ones((15, 2))
    found = paired_drop(accuracy, before, after)
    assert found.drop == pytest.approx(-2 / 15) and found.high == pytest.approx(-2 / 15 + 3 / 15)
    assert found.low < -0.2 and found.differ == 2
    # If one text is worse, the resamples show drops.
    before[14, 0], after[14, 0] = 1.0, 0.0
    found = paired_drop(accuracy, before, after)
    assert found.drop == pytest.approx(-1 / 15) and found.differ == 3
    assert -1 / 15 < found.high <= 3 / 15


def test_where_texts_are_unlike_resamples_tell() -> None:
    """The interval comes from resamples if many texts change.

    One token of 20 is lost in 40 of 60 texts, and none is gained.
    """
    rng = np.random.default_rng(0)
    size = np.full(60, 20.0)
    after = np.stack([rng.integers(10, 18, 60), size], 1).astype(float)
    before = after + np.stack([np.arange(60) % 3 > 0, 0 * size], 1)
    found = paired_drop(accuracy, before, after)
    half = 1.96 * 0.05 * (2 / 3 * 1 / 3 / 60) ** 0.5
    assert found.differ == 40 and found.drop == pytest.approx(0.05 * 2 / 3)
    assert found.low == pytest.approx(found.drop - half, abs=0.001)
    # If one text changes, unseen texts are assumed to change by at most as much.
    one = after + np.stack([np.arange(60) == 7, 0 * size], 1)
    found = paired_drop(accuracy, one, after)
    assert found.drop == pytest.approx(0.05 / 60)
    assert found.low == pytest.approx(found.drop - 0.05 * 3 / 60)


def test_texts_without_anything_to_count_do_not_count() -> None:
    right = np.array([[1.0, 1.0]] * 15 + [[0.0, 0.0]] * 300)
    assert interval(accuracy, right)[1] == pytest.approx(1 - 3 / 15)
    assert paired_drop(accuracy, right, right).docs == 15
    # Texts without gold entities count: to predict nothing is right there, and an entity is wrong.
    nothing, wrong = np.zeros((10, 3)), np.array([[0.0, 1.0, 0.0]] * 10)
    some = np.array([[1.0, 1.0, 1.0]] * 10)
    found = paired_drop(f_score, np.concatenate([some, nothing]), np.concatenate([some, wrong]))
    assert (found.docs, found.differ) == (20, 10) and found.drop > 0


def test_interval_holds_the_share_and_narrows() -> None:
    low, high = confidence_interval(80, 100)
    assert 0.7 < low < 0.8 < high < 0.9
    assert confidence_interval(8000, 10000)[0] > low
    assert confidence_interval(0, 0) == (0.0, 1.0)


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
