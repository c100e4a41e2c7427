"""Warnings about weighted scores that no component of the pipeline computes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.scores_given import ScoreNotGiven
from tests.pipeline.small_pipelines import TOK2VEC, examples


def phrases(nlp: Language) -> list[Example]:
    made = examples(nlp)
    for one in made:
        one.reference.spans["phrases"] = list(one.reference.spans["sc"])
    return made


def pipeline(name: str, **config: Any) -> Language:
    nlp = spacy.blank("xx")
    nlp.add_pipe(name, config={**config, "model": {"tok2vec": TOK2VEC}})
    return nlp


def codes(nlp: Language) -> set[str]:
    found = find_traps(nlp, phrases(nlp))
    return {one.code for one in found if one.code.startswith(("score-", "no-score"))}


def test_weights_follow_the_key_of_spans() -> None:
    nlp = pipeline("tree_spancat", spans_key="phrases")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScoreNotGiven)
        nlp.initialize(lambda: phrases(nlp))
    weights = nlp.config["training"]["score_weights"]
    assert weights["spans_phrases_f"] == 1.0 and weights["spans_sc_f"] is None
    assert "spans_phrases_f" in nlp.evaluate(phrases(nlp))
    assert codes(nlp) == {"score-renamed"}
    again = spacy.util.load_model_from_config(nlp.config, auto_fill=True)
    again.initialize(lambda: phrases(again))
    assert codes(again) == set()


def test_another_component_may_have_the_usual_one() -> None:
    nlp = pipeline("tree_spancat", spans_key="phrases")
    nlp.add_pipe("tree_spancat", name="other", config={"model": {"tok2vec": TOK2VEC}})
    nlp.initialize(lambda: phrases(nlp))
    assert nlp.config["training"]["score_weights"]["spans_sc_f"] == 1.0


@pytest.mark.parametrize("name", ["latent_parser", "crf_ner", "tree_spancat"])
def test_a_component_without_a_scorer_is_told(name: str) -> None:
    nlp = pipeline(name, scorer=None)
    nlp.initialize(lambda: phrases(nlp))
    assert codes(nlp) == {"score-not-given"}


def test_a_supervised_encoder_alone_is_judged_by_nothing() -> None:
    nlp = pipeline("latent_encoder", supervision=1.0)
    nlp.initialize(lambda: phrases(nlp))
    assert codes(nlp) == {"no-score"}


def test_the_scorer_of_a_component_of_another_name() -> None:
    scorer = {"@scorers": "spacy-latent.attachment_scorer.v2", "component": "encoder"}
    nlp = pipeline("latent_encoder", supervision=1.0, scorer=scorer)
    nlp.config["training"]["score_weights"] = {"latent_uas": 1.0}
    nlp.initialize(lambda: phrases(nlp))
    assert codes(nlp) == {"score-not-given"}
