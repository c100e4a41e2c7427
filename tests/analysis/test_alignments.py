"""Precision, recall and error rate of alignments, and the controls, on cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
from spacy import registry
from spacy.training import Example

from spacy_latent import annotations
from spacy_latent.analysis.alignments import (
    alignment_scores,
    diagonal,
    f1_difference,
    nearest_same_word,
    same_word,
    score_alignment,
)
from spacy_latent.annotations import SpanStructure
from spacy_latent.corpora.text_pairs import make_pair_doc


def test_scores_are_over_all_links():
    predicted = [[(0, 0), (1, 1), (2, 0)], [(0, 1)]]
    sure = [[(0, 0), (1, 0)], [(0, 1)]]
    possible = [[(1, 1)], []]
    scores = alignment_scores(predicted, sure, possible)
    assert scores.precision == pytest.approx(3 / 4) and scores.recall == pytest.approx(2 / 3)
    assert scores.f1 == pytest.approx(2 * (3 / 4) * (2 / 3) / (3 / 4 + 2 / 3))
    assert scores.error_rate == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert alignment_scores(predicted, sure).precision == pytest.approx(2 / 4)


def test_no_links_at_all():
    nothing = alignment_scores([[]], [[]])
    assert (nothing.f1, nothing.error_rate) == (0.0, 0.0)
    assert alignment_scores([[]], [[(0, 0)]]).error_rate == 1.0
    with pytest.raises(ValueError, match="zip"):
        alignment_scores([[]], [])


def test_differences_are_of_the_same_pairs():
    sure = [[(0, 0)], [(1, 1)], [(0, 1)], [(1, 0)]]
    wrong = [[(5, 5)]] * 4
    assert f1_difference(sure, sure, sure, sure) == (0.0, 0.0)
    assert f1_difference(sure, wrong, sure, sure) == (1.0, 1.0)
    half = [*sure[:2], *wrong[:2]]
    low, high = f1_difference(sure, half, sure, sure)
    assert 0 <= low < 0.5 < high <= 1
    assert (low, high) == f1_difference(sure, half, sure, sure)


def test_controls():
    first, second = "The cat saw the dog".split(), "the dog saw the cat".split()
    assert same_word(first, second) == [(0, 0), (0, 3), (1, 4), (2, 2), (3, 0), (3, 3), (4, 1)]
    assert nearest_same_word(first, second) == [(0, 0), (1, 4), (2, 2), (3, 3), (4, 1)]
    assert nearest_same_word(["a", "a"], ["b", "b", "a"]) == [(1, 2)]
    assert diagonal("a b c".split(), "d e f g h".split()) == [(0, 0), (1, 2), (2, 4)]
    assert diagonal(["a"], ["b", "c"]) == [(0, 0)]
    for control in (same_word, nearest_same_word, diagonal):
        assert control([], ["a"]) == control(["a"], []) == []


def annotated(nlp, component, cells):
    doc = make_pair_doc(nlp, "a b", "c d e")
    span = SpanStructure(0, 2, "any", "cells", np.array(cells).reshape(-1, 2))
    span.other_start, span.other_end = 2, 5
    annotations.write(doc, component, [span])
    return doc


def test_the_scorer_reads_annotations():
    nlp = spacy.blank("en")
    predicted = annotated(nlp, "latent_textcat", [[0, 0], [1, 2]])
    gold = annotated(nlp, "sure", [[0, 0], [1, 1]])
    without = Example(annotated(nlp, "latent_textcat", [[0, 0]]), make_pair_doc(nlp, "a b", "c"))
    pairs = [Example(predicted, gold), without]
    found = score_alignment(pairs, "latent_textcat")
    assert found["latent_align_p"] == found["latent_align_f"] == 0.5
    assert score_alignment([without], "latent_textcat") == {}
    # In a pair with possible links alone, all others are wrong.
    unsure = Example(predicted, annotated(nlp, "possible", [[0, 1]]))
    found = score_alignment([*pairs, unsure], "latent_textcat")
    assert (found["latent_align_p"], found["latent_align_r"]) == (0.25, 0.5)
    scorer = registry.get("scorers", "spacy-latent.alignment_scorer.v1")()
    for example in pairs:
        example.reference.cats = {"A": 1.0, "B": 0.0}
        example.predicted.cats = {"A": 0.9, "B": 0.1}
    options = {"labels": ["A", "B"], "threshold": 0.0}
    scores = scorer(pairs, **options)
    assert scores["cats_micro_f"] == 1.0 and scores["latent_align_f"] == 0.5
