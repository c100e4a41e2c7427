"""Warnings about scores in a range that a scorer would evaluate as labels."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from spacy_latent.errors import LatentWarning
from spacy_latent.evaluation.mistakes import about_score_ranges, find_traps
from spacy_latent.pipeline.scores_of_range import JudgedAsLabels
from tests.pipeline.small_pipelines import TOK2VEC

NAME = "latent_textcat_multilabel"
REGRESSION = {"@scorers": "spacy-latent.regression_scorer.v1"}
RATIONALE = {"@scorers": "spacy-latent.rationale_scorer.v1"}
LABELS = {"@scorers": "spacy.textcat_multilabel_scorer.v2"}
WEIGHTS = {"cats_score": None, "cats_r2": 1.0}


def pipeline(**settings: Any) -> Language:
    nlp = spacy.blank("en")
    model = {
        "tok2vec": TOK2VEC,
        "exclusive_classes": False,
        "estimator": {"@misc": "spacy-latent.Marginals.v1"},
    }
    nlp.add_pipe(NAME, config={"score_range": [1.0, 5.0], "model": model, **settings})
    return nlp


def initialized(nlp: Language) -> list[str]:
    """Initialize the pipeline, and return its warnings of this kind."""
    cats = {"cats": {"stars": 1.0}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("a dull film"), cats)])
    return [str(one.message) for one in caught if issubclass(one.category, JudgedAsLabels)]


def weighed(nlp: Language, weights: dict[str, float | None]) -> Language:
    nlp.config["training"]["score_weights"] = weights
    return nlp


@pytest.mark.parametrize(
    ("scorer", "place"),
    [
        (LABELS, "scorer"),
        ({**RATIONALE, "cats_scorer": LABELS}, "scorer.cats_scorer"),
    ],
)
def test_a_scorer_of_labels_is_told_with_the_lines_that_mend_it(
    scorer: dict[str, Any], place: str
) -> None:
    nlp = pipeline(scorer=scorer)
    (finding,) = about_score_ranges(nlp)
    assert (finding.level, finding.code) == ("warning", "range-scorer")
    assert f'"spacy-latent.regression_scorer.v1" in [components.{NAME}.{place}]' in finding.text
    assert "cats_score = null and cats_r2 = 1.0 in [training.score_weights]" in finding.text
    assert initialized(nlp) == [finding.text] and issubclass(JudgedAsLabels, LatentWarning)
    assert finding in find_traps(nlp)


def test_weights_of_labels_are_told() -> None:
    nlp = pipeline(scorer=REGRESSION)
    (finding,) = about_score_ranges(nlp)
    assert (finding.level, finding.code) == ("warning", "range-weights")
    assert "cats_score = 1, a score of labels, which its scorer does not compute" in finding.text
    assert initialized(nlp) == []
    # Another classifier computes cats_score.
    nlp.add_pipe("textcat")
    assert about_score_ranges(nlp) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"scorer": REGRESSION},
        {"scorer": {**RATIONALE, "cats_scorer": REGRESSION}},
        {"scorer": RATIONALE},
        {"scorer": None},
        {"score_range": None},
    ],
)
def test_what_is_right_is_let_be(settings: dict[str, Any]) -> None:
    nlp = weighed(pipeline(**settings), WEIGHTS)
    assert about_score_ranges(nlp) == [] and initialized(nlp) == []
