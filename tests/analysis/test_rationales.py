"""Measures of rationales, against counts by hand and classifiers with known scores."""

from __future__ import annotations

import random

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.analysis.rationales import (
    CONTROLS,
    agreement,
    erasure,
    listed_words,
    rationale_words,
    report,
    score_rationales,
)
from spacy_latent.annotations import runs
from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import TOK2VEC


def mask(text: str) -> np.ndarray:
    return np.array([letter == "x" for letter in text])


@pytest.mark.parametrize(
    "own, gold, token_f, iou_f",
    [
        ("xx..x", "xx..x", 1.0, 1.0),
        (".....", "xx...", 0.0, 0.0),
        ("...xx", "xx...", 0.0, 0.0),
        # Two of three chosen words are right, and none is missed. The spans share 2 of 3 words.
        ("xxx..", "xx...", 0.8, 1.0),
        # Spans match if they share at least half of their union.
        ("xx...", "x....", 2 / 3, 1.0),
        ("xxx..", "x....", 0.5, 0.0),
        # One of the two chosen spans matches the only gold span.
        ("xx.x.", "xx...", 0.8, 2 / 3),
    ],
)
def test_agreement_of_one_doc(own: str, gold: str, token_f: float, iou_f: float) -> None:
    found = agreement([mask(own)], [mask(gold)])
    assert found is not None
    assert found.token_f == pytest.approx(token_f) and found.iou_f == pytest.approx(iou_f)


def test_agreement_is_a_mean_over_docs_with_a_reference() -> None:
    found = agreement([mask("x.."), mask("x."), mask("xx")], [mask("x.."), mask(".x"), mask("..")])
    assert found is not None and found.token_f == 0.5 and found.precision == 0.5
    assert agreement([mask("x")], [mask(".")]) is None and agreement([], []) is None
    with pytest.raises(LatentError, match=r"3 tokens.*2"):
        agreement([mask("x..")], [mask("x.")])


def test_runs() -> None:
    assert runs(mask("xx.x")) == [(0, 2), (3, 4)] and runs(mask("...")) == runs(mask("")) == []


@Language.component("by_the_word_bad")
def by_the_word_bad(doc: Doc) -> Doc:
    bad = 0.9 if any(token.text == "bad" for token in doc) else 0.2
    doc.cats = {"B": bad, "A": 1 - bad}
    if len(doc):
        doc.spans["rationale"] = [
            Span(doc, token.i, token.i + 1, "rationale") for token in doc if token.text == "bad"
        ]
    return doc


@pytest.fixture(scope="module")
def nlp() -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("by_the_word_bad")
    return nlp


def gold(nlp: Language, text: str, label: str) -> Doc:
    doc = nlp.make_doc(text)
    doc.cats = {"A": float(label == "A"), "B": float(label == "B")}
    return doc


def test_erasure_of_a_classifier_that_reads_one_word(nlp) -> None:
    doc = gold(nlp, "a bad film", "B")
    right = erasure(nlp, [doc], [mask(".x.")], ["B"])
    # The score of 0.9 falls to 0.2 without the word, and stays the same with only this word.
    assert right.comprehensiveness == pytest.approx(0.7)
    assert right.sufficiency == pytest.approx(0.0) and right.accuracy == right.alone == 1.0
    wrong = erasure(nlp, [doc], [mask("x.x")], ["B"])
    assert wrong.comprehensiveness == pytest.approx(0.0)
    assert wrong.sufficiency == pytest.approx(0.7)
    assert wrong.accuracy == 1.0 and wrong.alone == 0.0


def test_erasure_where_nothing_is_left(nlp) -> None:
    doc = gold(nlp, "a bad film", "B")
    everything = erasure(nlp, [doc], [mask("xxx")])
    assert np.isnan(everything.comprehensiveness) and everything.sufficiency == 0.0
    assert everything.accuracy is None
    nothing = erasure(nlp, [doc], [mask("...")], ["B"])
    assert nothing.comprehensiveness == 0.0
    assert nothing.sufficiency == pytest.approx(0.9 - 0.5) and nothing.alone == 0.0
    with pytest.raises(LatentError, match="words"):
        erasure(nlp, [nlp.make_doc("")], [mask("")])
    with pytest.raises(LatentError, match=r"doc\.cats"):
        erasure(spacy.blank("en"), [doc], [mask("xxx")])


class ByTheWordBad:
    """Numbers from 0 to 10: 2 for a text with the word "bad", else 7; and its length."""

    def __init__(self) -> None:
        self.cfg = {"score_range": [0.0, 10.0]}

    def __call__(self, doc: Doc) -> Doc:
        by_the_word_bad(doc)
        bad = any(token.text == "bad" for token in doc)
        doc.cats = {"stars": 2.0 if bad else 7.0, "length": float(len(doc))}
        return doc


Language.factory("numbers_by_the_word_bad", func=lambda nlp, name: ByTheWordBad())


def test_numbers_are_neither_right_nor_wrong_and_change_by_shares_of_their_range() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("numbers_by_the_word_bad")
    doc = nlp.make_doc("a bad film")
    doc.cats = {"stars": 1.0, "length": 0.0}
    own = report(nlp, [doc])["rationale"]
    assert own.accuracy is None and own.alone is None
    # Without the word the stars rise by 5 of 10, and the length falls by 1.
    assert own.comprehensiveness == pytest.approx((0.5 + 0.1) / 2)
    assert own.sufficiency == pytest.approx((0.0 + 0.2) / 2)
    nothing = erasure(nlp, [doc], [mask("...")])
    assert nothing.sufficiency == pytest.approx((0.3 + 0.2) / 2)


def test_a_text_of_several_labels_has_no_accuracy(nlp) -> None:
    docs = [gold(nlp, "a bad film", "B"), gold(nlp, "a bad film", "A")]
    docs[1].cats = {"A": 1.0, "B": 1.0}
    assert report(nlp, docs)["rationale"].accuracy == 1.0


@Language.component("only_by_the_word_bad")
def only_by_the_word_bad(doc: Doc) -> Doc:
    by_the_word_bad(doc).cats.pop("A")
    return doc


def test_a_single_label_has_no_accuracy() -> None:
    """It would be right in all texts that have it, whatever its probability."""
    nlp = spacy.blank("en")
    nlp.add_pipe("only_by_the_word_bad")
    doc = nlp.make_doc("a good film")
    doc.cats = {"B": 1.0}
    assert erasure(nlp, [doc], [mask(".x.")], ["B"]).accuracy is None


def test_controls_have_the_size_of_the_rationale(nlp) -> None:
    doc = nlp.make_doc("it is a very bad film")
    for control in CONTROLS.values():
        for count in (0, 3, 6):
            assert control(doc, count, random.Random(0)).sum() == count
    found = listed_words(doc, 1, random.Random(0), words={"very", "bad"})
    assert np.flatnonzero(found).tolist() == [3, 4]


def test_the_report_compares_with_controls_and_people(nlp) -> None:
    docs = [gold(nlp, "a bad film", "B"), gold(nlp, "a good film it is", "A"), gold(nlp, "", "A")]
    docs[0].spans["rationale"] = [docs[0][1:3]]
    found = report(nlp, docs, words={"good"})
    assert list(found) == ["rationale", "random words", "first words", "listed words"]
    own = found["rationale"]
    assert own.rate == pytest.approx(1 / 8) and own.spans == 0.5
    assert own.token_f == pytest.approx(2 / 3) and own.iou_f == 1.0
    # No word of the second doc is chosen, so erasing changes nothing there.
    assert own.comprehensiveness == pytest.approx(0.7 / 2)
    assert found["first words"].token_f == 0.0 and found["first words"].rate == own.rate
    assert found["listed words"].rate == pytest.approx(1 / 8)
    with pytest.raises(LatentError, match=r"doc\.spans\['marked'\]"):
        report(nlp, docs, spans_key="marked")


class Chooser:
    """Classifier with labels and settings: of the word "bad", or sure of "Y" in any text."""

    def __init__(self, labels: str, spans_key: str | None) -> None:
        self.labels, self.cfg = tuple(labels), {"spans_key": spans_key}

    def __call__(self, doc: Doc) -> Doc:
        if self.cfg["spans_key"] is None:
            doc.cats.update({"X": 0.0, "Y": 1.0})
            return doc
        return by_the_word_bad(doc)


def test_the_report_is_of_the_classifier_that_chooses() -> None:
    Language.factory(
        "chooser",
        default_config={"spans_key": None},
        assigns=["doc.cats"],
        func=lambda nlp, name, labels, spans_key: Chooser(labels, spans_key),
    )
    nlp = spacy.blank("en")
    nlp.add_pipe("chooser", name="one", config={"labels": "AB", "spans_key": "rationale"})
    nlp.add_pipe("chooser", name="two", config={"labels": "XY"})
    doc = gold(nlp, "a bad film", "B")
    doc.cats = {**doc.cats, "X": 1.0, "Y": 0.0}
    own = report(nlp, [doc])["rationale"]
    assert own.comprehensiveness == pytest.approx(0.7) and own.accuracy == own.alone == 1.0


def test_a_text_whose_other_labels_are_not_known_has_no_accuracy() -> None:
    """The most probable label may be right as well, and the reference does not say so."""
    nlp = spacy.blank("en")
    model = {
        "@architectures": "spacy-latent.RationaleTextCat.v1",
        "exclusive_classes": False,
        "tok2vec": TOK2VEC,
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 16,
            "attrs": ["NORM"],
            "rows": [100],
            "include_static_vectors": False,
        },
        "structure": {"@misc": "spacy-latent.KOfN.v1", "k": 1},
        "estimator": {"@misc": "spacy-latent.SparseMAP.v1", "prediction": "map"},
    }
    config = {"model": model, "spans_key": "rationale"}
    nlp.add_pipe("latent_textcat_multilabel", config=config)
    doc = gold(nlp, "a bad film", "B")
    nlp.initialize(lambda: [Example(nlp.make_doc(doc.text), doc)])
    assert report(nlp, [doc])["rationale"].accuracy in (0.0, 1.0)
    doc.cats = {"B": 1.0}
    assert report(nlp, [doc])["rationale"].accuracy is None


def test_the_report_takes_words_without_spaces_as_they_are(nlp) -> None:
    doc = Doc(nlp.vocab, words=["it's", "bad", "film."])
    doc.cats = {"A": 0.0, "B": 1.0}
    assert report(nlp, [doc])["rationale"].rate == pytest.approx(1 / 3)


def test_the_scorer_adds_to_the_scores_of_labels(nlp) -> None:
    from spacy.util import registry

    build = registry.get("scorers", "spacy-latent.rationale_scorer.v1")
    scorer = build(cats_scorer=registry.get("scorers", "spacy.textcat_scorer.v2")())
    reference = nlp.make_doc("a bad film")
    reference.cats = {"A": 0.0, "B": 1.0}
    reference.spans["rationale"] = [reference[1:3]]
    examples = [Example(nlp("a bad film"), reference)]
    found = scorer(examples, labels=["A", "B"], threshold=0.0, spans_key="x")
    assert found["cats_micro_f"] == 1.0
    assert found["rationale_rate"] == pytest.approx(1 / 3) and found["rationale_p"] == 1.0
    assert found["rationale_f"] == pytest.approx(2 / 3) and found["rationale_iou_f"] == 1.0
    unmarked = [Example(nlp("a bad film"), nlp.make_doc("a bad film"))]
    assert build()(unmarked)["rationale_f"] is None
    assert build()([])["rationale_rate"] == 0.0


def test_marked_words_whose_tokens_are_others_are_not_lost(nlp) -> None:
    split, whole = ["It", "is", "do", "n't", "good"], ["It", "is", "don't", "good"]
    reference = Doc(nlp.vocab, words=split, spaces=[True, True, False, True, False])
    reference.spans["rationale"] = [Span(reference, 3, 5)]
    predicted = Doc(nlp.vocab, words=whole, spaces=[True, True, True, False])
    predicted.spans["rationale"] = [Span(predicted, 3, 4)]
    scores = score_rationales([Example(predicted, reference)])
    assert (scores["rationale_p"], scores["rationale_r"]) == (1.0, 0.5)


def test_the_scorer_aligns_other_tokens(nlp) -> None:
    reference = Doc(nlp.vocab, words=["a", "b", "ad", "film"], spaces=[True, False, True, False])
    reference.spans["rationale"] = [reference[1:3]]
    found = score_rationales([Example(nlp("a bad film"), reference)])
    assert found["rationale_f"] == 1.0


def test_words_of_a_doc_without_the_key(nlp) -> None:
    assert not rationale_words(nlp.make_doc("a film")).any()
