from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_latent.analysis.calibration import (
    entity_calibration_error,
    entity_figures,
    error_by_chance,
    expected_calibration_error,
    reliability,
)
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.thresholds import (
    apply_threshold,
    conformal_threshold,
    in_digits,
    threshold_for,
)
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError, LatentWarning


def test_error_by_hand() -> None:
    # The bin [0.5, 0.6) has a mean probability of 0.55, and one of two predictions is right. Both
    # predictions with probability 1 are right.
    error = expected_calibration_error([0.52, 0.58, 1.0, 1.0], [True, False, True, True], bins=10)
    assert error == pytest.approx(0.5 * 0.05)
    assert expected_calibration_error([1.0] * 4, [False] * 4) == 1.0
    assert expected_calibration_error([0.25] * 4, [True, False, False, False]) == 0.0
    assert math.isnan(expected_calibration_error([], []))
    with pytest.raises(LatentError, match=r"2.*1"):
        expected_calibration_error([0.1, 0.2], [True])


def example(probability: float | None, right: bool, annotated: bool = True) -> Example:
    vocab = spacy.blank("en").vocab
    predicted, reference = Doc(vocab, words=["in", "Rome"]), Doc(vocab, words=["in", "Rome"])
    place = 1 if right else 0
    if annotated:
        reference.ents = [Span(reference, place, place + 1, label="GPE")]
    tags = np.array([0, 4], dtype="int32")
    names = ("O", "B-GPE", "I-GPE", "L-GPE", "U-GPE")
    found = SpanStructure(0, 2, "TagSequence", "tags", tags, labels=names)
    if probability is not None:
        found.entity_probabilities = np.array([probability], dtype="float32")
    write(predicted, "crf_ner", [found])
    predicted.ents = [Span(predicted, 1, 2, label="GPE")]
    return Example(predicted, reference)


def test_error_of_entities() -> None:
    examples = [example(0.75, True), example(0.75, False), example(0.9, True, annotated=False)]
    assert entity_calibration_error(examples) == pytest.approx(0.25)
    missing = example(0.9, False)
    missing.reference.set_ents([], default="missing")
    assert entity_calibration_error([*examples, missing]) == pytest.approx(0.25)
    assert entity_calibration_error([example(None, True)]) is None
    assert entity_calibration_error(examples, component="other") is None
    assert entity_calibration_error([]) is None


def test_entities_that_were_there_before_do_not_count() -> None:
    given = example(1.0, True)
    (found,) = given.predicted._.latent["crf_ner"].spans
    found.given = np.array([True])
    write(given.predicted, "crf_ner", [found])
    assert entity_calibration_error([given]) is None
    assert entity_calibration_error([given, example(0.75, False)]) == pytest.approx(0.75)


def test_the_scorer_adds_it_to_those_of_spacy() -> None:
    scorer: Any = registry.get("scorers", "spacy-latent.entity_scorer.v1")()
    scores = scorer([example(0.75, True), example(0.75, False)])
    assert scores["ents_f"] == 0.5 and scores["ents_ece"] == pytest.approx(0.25)


def test_the_scorer_of_a_component_with_another_name_says_so() -> None:
    build: Any = registry.get("scorers", "spacy-latent.entity_scorer.v1")
    with pytest.warns(LatentWarning, match=r"'ner'.*crf_ner"):
        scores = build(component="ner")([example(0.75, True)])
    assert scores["ents_f"] == 1.0 and scores["ents_ece"] is None


FOUND = JudgedEntities(
    [0.9, 0.9, 0.8, 0.6, 0.55, 0.2], [True, True, True, False, True, False], ["A"] * 6, gold=8
)


def test_precision_and_recall_of_what_is_left() -> None:
    row = apply_threshold(FOUND, 0.55)
    assert (row.kept, row.precision, row.recall) == (5, 0.8, 0.5)
    assert row.low < 0.8 < row.high < 1 and row.low == pytest.approx(0.376, abs=0.001)
    nothing = apply_threshold(FOUND, 0.95)
    assert nothing.kept == 0 and math.isnan(nothing.precision) and nothing.recall == 0
    found = [threshold_for(FOUND, precision) for precision in (0.5, 0.8, 0.81, 1.0)]
    assert [one and one.threshold for one in found] == [0.0, 0.375, 0.7, 0.7]
    assert threshold_for(JudgedEntities([0.9], [False], ["A"], 1), 0.5) is None
    assert threshold_for(JudgedEntities(), 0.5) is None


def test_entities_that_are_all_precise_need_no_threshold() -> None:
    found = JudgedEntities([0.99997, 0.99996], [True, True], ["A"] * 2, gold=2)
    least = threshold_for(found, 0.97)
    assert least is not None and (least.threshold, least.kept) == (0.0, 2)


def test_digits_tell_from_one() -> None:
    given = (0.0, 0.001234, 0.25, 0.9, 0.9156, 0.99996, 0.9999634182, 1.0)
    expected = ["0", "0.00123", "0.25", "0.9", "0.9156", "0.99996", "0.9999634", "1"]
    assert [in_digits(p) for p in given] == expected


def test_bins_add_up_to_the_error() -> None:
    figures = entity_figures(FOUND)
    assert sum(one.count for one in figures.bins) == figures.found == 6 and figures.gold == 8
    error = sum(one.count * abs(one.said - one.right) for one in figures.bins if one.count) / 6
    assert error == pytest.approx(figures.error)
    assert all(b.right_low <= b.right <= b.right_high for b in figures.bins if b.count)
    assert [one.count for one in reliability([1.0, 0.0], [True, False], 2)] == [1, 1]


def test_what_chance_makes_of_right_probabilities() -> None:
    generator = np.random.default_rng(1)
    said = generator.random(400)
    mean, high = error_by_chance(said.tolist())
    # The outcomes are drawn from these probabilities, so all errors are by chance.
    errors = [
        expected_calibration_error(said.tolist(), (generator.random(400) < said).tolist())
        for _ in range(200)
    ]
    assert np.mean(errors) == pytest.approx(mean, rel=0.1) and mean < high
    assert 0.85 <= np.mean(np.array(errors) <= high) <= 1
    assert all(math.isnan(value) for value in error_by_chance([]))


def test_a_threshold_covers_what_it_is_to() -> None:
    assert conformal_threshold([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.9) == 0.1
    assert conformal_threshold([0.9, 0.5, 0.1], 0.5) == 0.5
    generator = np.random.default_rng(0)
    covered = [
        generator.random() >= conformal_threshold(generator.random(30).tolist(), 0.8)
        for _ in range(3000)
    ]
    assert 0.78 <= np.mean(covered) <= 0.85
    with pytest.raises(LatentError, match=r"9.*8"):
        conformal_threshold([0.5] * 8, 0.9)
    with pytest.raises(LatentError, match="coverage"):
        conformal_threshold([0.5], 1)


def test_a_threshold_covers_a_share_of_each_text() -> None:
    # Each text has the same weight: one of the four has ten low scores.
    scores, texts = [0.9, 0.8, 0.7, *[0.1] * 10], [0, 1, 2, *[3] * 10]
    assert conformal_threshold(scores, 0.6, texts) == 0.7
    assert conformal_threshold(scores, 0.62, texts) == 0.1
    assert conformal_threshold(scores, 0.8, texts) == 0.1
    generator = np.random.default_rng(0)
    each = generator.random(40)
    assert conformal_threshold(each, 0.85, range(40)) == conformal_threshold(each.tolist(), 0.85)
    with pytest.raises(LatentError, match=r"4.*3"):
        conformal_threshold([0.5] * 8, 0.8, [0, 0, 0, 1, 1, 2, 2, 2])
    # Even the smallest coverage needs scores.
    with pytest.raises(LatentError, match=r"1.*0"):
        conformal_threshold([], 1e-10, [])

    def text() -> np.ndarray:
        # The scores of a text are similar, and a long text has lower ones.
        size = int(generator.integers(1, 30))
        return np.clip(generator.normal(0.6 - size / 100, 0.1) + generator.random(size) / 5, 0, 1)

    shares = []
    for _ in range(1500):
        drawn = [text() for _ in range(12)]
        numbers = np.repeat(range(12), [len(own) for own in drawn])
        least = conformal_threshold(np.concatenate(drawn), 0.8, numbers)
        shares.append(np.mean(text() >= least))
    # The standard error is .008. With 12 texts the coverage is at most 1 / 13 above the target.
    assert 0.78 <= np.mean(shares) <= 0.9
