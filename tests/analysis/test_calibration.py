from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_latent.analysis.calibration import entity_calibration_error, expected_calibration_error
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError


def test_error_by_hand() -> None:
    # In [0.5, 0.6): said 0.55 on average, one of two right. At 1: said 1, both right.
    error = expected_calibration_error([0.52, 0.58, 1.0, 1.0], [True, False, True, True], bins=10)
    assert error == pytest.approx(0.5 * 0.05)
    assert expected_calibration_error([1.0] * 4, [False] * 4) == 1.0
    assert expected_calibration_error([0.25] * 4, [True, False, False, False]) == 0.0
    assert math.isnan(expected_calibration_error([], []))
    with pytest.raises(LatentError, match="2 probabilities, 1 outcomes"):
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
