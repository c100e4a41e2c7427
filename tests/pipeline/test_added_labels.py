"""Labels that are added to a trained component.

Predictions stay the same, and no text gets the new label until the component is trained on it.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Adam, fix_random_seed

from tests.pipeline.small_pipelines import TOK2VEC, examples, step

MARGINALS = {"@misc": "spacy-latent.Marginals.v1"}
ARCS = {"@misc": "spacy-latent.BiaffineScorer.v1", "hidden_width": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "latent_textcat": {"model": {"estimator": MARGINALS, "scorer": ARCS}},
    "latent_textcat_multilabel": {"model": {"estimator": MARGINALS, "scorer": ARCS}},
    "latent_parser": {"annotate": "probabilities", "model": {"scorer": ARCS}},
    "crf_ner": {"model": {"hidden_width": None}},
    "tree_spancat": {"model": {"hidden_width": 8}},
}


def trained(name: str, **settings: Any) -> tuple[Language, Any]:
    nlp = spacy.blank("xx")
    config = copy.deepcopy({**CONFIGS[name], **settings})
    config["model"]["tok2vec"] = TOK2VEC
    pipe: Any = nlp.add_pipe(name, config=config)
    fix_random_seed(0)
    nlp.initialize(lambda: examples(nlp))
    optimizer = Adam(0.01)
    for _ in range(5):
        step(nlp, examples(nlp), optimizer)
    return nlp, pipe


def said(nlp: Language) -> list[Any]:
    texts = ["I like London a lot", "Berlin Berlin", "hate", "very grey Paris"]
    return [_of(doc) for doc in nlp.pipe(texts)]


def _of(doc: Doc) -> Any:
    spans = [(span.start, span.end, span.label_) for span in doc.spans.get("sc", ())]
    cats = {name: value for name, value in doc.cats.items() if name != "NEW"}
    arcs = [
        None if span.labelled_probabilities is None else span.labelled_probabilities.tolist()
        for found in doc._.latent.values()
        for span in found.spans
    ]
    trees = [(token.head.i, token.dep_) for token in doc]
    return doc.ents and [span.text for span in doc.ents], spans, cats, arcs, trees


@pytest.mark.parametrize("name", CONFIGS)
def test_predictions_stay(name: str) -> None:
    nlp, pipe = trained(name)
    before = said(nlp)
    assert pipe.add_label("NEW") == 1
    again = spacy.blank("xx").from_config(nlp.config).from_bytes(nlp.to_bytes())
    for pipeline in (nlp, again):
        assert said(pipeline) == before
        assert [doc.cats.get("NEW", 0.0) for doc in pipeline.pipe(["Berlin", "I"])] == [0.0, 0.0]
    # A step on texts without the new label does not make it likely.
    step(nlp, examples(nlp), Adam(0.001))
    threshold = pipe.cfg.get("threshold", 0.5) or 0.5
    assert all(doc.cats.get("NEW", 0.0) < threshold for doc in nlp.pipe(["Berlin", "I like"]))


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_it_is_learned_and_not_rehearsed_away(name: str) -> None:
    nlp, pipe = trained(name)
    pipe.add_label("NEW")
    nlp.resume_training()
    batch = examples(nlp)
    batch[0].reference.cats = {"NEW": 1.0, "good": 0.0, "bad": 0.0}
    optimizer = Adam(0.02)
    for _ in range(30):
        step(nlp, batch, optimizer)
        nlp.rehearse(batch[1:], sgd=optimizer)
    assert nlp(batch[0].reference.text).cats["NEW"] > 0.5


def test_numbers_of_a_range_begin_in_its_middle() -> None:
    nlp, pipe = trained("latent_textcat_multilabel", score_range=[0.0, 4.0])
    before = said(nlp)
    pipe.add_label("NEW")
    assert said(nlp) == before and nlp("Berlin").cats["NEW"] == pytest.approx(2.0)
