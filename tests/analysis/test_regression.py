"""Squared errors of scores, and the share of the variance that they explain."""

import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from spacy_latent.analysis.regression import score_regression


def examples(*rows):
    """Return examples from pairs of reference and predicted scores."""
    vocab = spacy.blank("en").vocab
    made = []
    for reference, prediction in rows:
        docs = [Doc(vocab, words=["a"]) for _ in range(2)]
        docs[0].cats, docs[1].cats = prediction, reference
        made.append(Example(*docs))
    return made


def test_by_hand():
    given = examples(
        ({"size": 0.0, "price": 2.0}, {"size": 1.0, "price": 2.0}),
        ({"size": 4.0}, {"size": 4.0, "price": 5.0}),
    )
    scores = registry.get("scorers", "spacy-latent.regression_scorer.v1")()(given)
    # "price" has only one gold score, so its variance is 0.
    assert scores["cats_mse_per_type"] == {"price": 0.0, "size": 0.5}
    assert scores["cats_r2_per_type"] == {"size": pytest.approx(1 - 0.5 / 4.0)}
    assert scores["cats_mse"] == 0.25
    assert scores["cats_r2"] == pytest.approx(0.875)


def test_the_mean_explains_nothing_and_worse_than_it_less():
    given = examples(*(({"size": truth}, {"size": 2.0}) for truth in (1.0, 3.0)))
    assert score_regression(given)["cats_r2"] == 0.0
    given = examples(*(({"size": truth}, {"size": -truth}) for truth in (1.0, 3.0)))
    assert score_regression(given)["cats_r2"] < 0.0


def test_scores_that_differ_by_rounding_have_no_variance():
    given = examples(*(({"size": truth}, {"size": 0.5}) for truth in (0.1 + 0.2, 0.3)))
    assert score_regression(given)["cats_r2"] is None


def test_labels_that_references_lack_are_left_out():
    given = examples(({"size": 1.0, "price": 2.0}, {"size": 1.0}))
    assert score_regression(given, labels=["size"])["cats_mse"] == 0.0
    assert score_regression(given, labels=["weight"])["cats_mse"] is None
    assert score_regression([])["cats_r2"] is None
