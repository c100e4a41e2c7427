"""Checks of references for the annotation that a pipeline predicts."""

from __future__ import annotations

from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.analysis.reference_check import in_words, unknown_labels, without_references
from tests.pipeline.small_pipelines import TOK2VEC, stock

NAMES = ("textcat", "ner", "tagger", "parser", "spancat")
LABELS = {name: "KNOWN" for name in NAMES}


def pipeline(*names: str) -> spacy.Language:
    nlp = spacy.blank("en")
    for name in names:
        nlp.add_pipe(name, config=stock(name, TOK2VEC))
        nlp.get_pipe(name).add_label(LABELS[name])  # type: ignore[attr-defined]
    return nlp


def example(nlp: spacy.Language, **annotation: Any) -> Example:
    reference = Doc(nlp.vocab, words=["I", "like", "London"])
    for name, value in annotation.items():
        setattr(reference, name, value)
    return Example(nlp.make_doc("I like London"), reference)


def tagged(nlp: spacy.Language, tag: str) -> Example:
    found = example(nlp)
    for token in found.reference:
        token.tag_ = tag
    return found


def parsed(nlp: spacy.Language, label: str) -> Example:
    words = ["I", "like", "London"]
    reference = Doc(nlp.vocab, words=words, heads=[1, 1, 1], deps=[label, "ROOT", label])
    return Example(nlp.make_doc("I like London"), reference)


def with_spans(nlp: spacy.Language, label: str, key: str = "sc") -> Example:
    found = example(nlp)
    found.reference.spans[key] = [Span(found.reference, 0, 2, label)]
    return found


def with_entity(nlp: spacy.Language, label: str) -> Example:
    found = example(nlp)
    found.reference.ents = [Span(found.reference, 2, 3, label)]
    return found


def of(name: str, nlp: spacy.Language, label: str) -> Example:
    if name == "textcat":
        return example(nlp, cats={label: 1.0, "no": 0.0})
    made = {"ner": with_entity, "tagger": tagged, "parser": parsed, "spancat": with_spans}
    return made[name](nlp, label)


@pytest.mark.parametrize("name", NAMES)
def test_what_no_reference_has_is_named(name: str) -> None:
    nlp = pipeline(name)
    lacking, nothing = without_references(nlp, [example(nlp)])
    assert nothing and list(lacking) == [name]
    # One text with the annotation is enough.
    assert without_references(nlp, [example(nlp), of(name, nlp, "KNOWN")]) == ({}, False)


def test_some_of_it_may_be_there() -> None:
    nlp = pipeline("textcat", "ner", "parser")
    nlp.add_pipe("sentencizer", first=True)
    lacking, nothing = without_references(nlp, [of("ner", nlp, "KNOWN")])
    assert lacking == {"textcat": "categories", "parser": "dependencies"} and not nothing
    # Spans of another group are no references for this component.
    nlp = pipeline("spancat")
    assert without_references(nlp, [with_spans(nlp, "KNOWN", "other")])[1]


def test_where_nothing_is_known_of_what_is_scored_there_may_be_something() -> None:
    nlp = spacy.blank("en")
    assert without_references(nlp, [example(nlp)]) == ({}, False)
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    assert without_references(nlp, [example(nlp)]) == ({}, False)
    scorer = {"@scorers": "spacy-latent.tree_scorer.v1"}
    settings = {"model": {"tok2vec": TOK2VEC}, "scorer": scorer}
    nlp.add_pipe("latent_encoder", name="scored", config=settings)
    nlp.add_pipe("textcat", config=stock("textcat", TOK2VEC))
    assert without_references(nlp, [example(nlp)]) == ({"textcat": "categories"}, False)


@pytest.mark.parametrize("name", NAMES)
def test_labels_that_the_pipeline_does_not_know(name: str) -> None:
    nlp = pipeline(name)
    assert not any("NEW" in labels for labels in unknown_labels(nlp, [of(name, nlp, "KNOWN")]))
    (labels,) = unknown_labels(nlp, [of(name, nlp, "NEW"), of(name, nlp, "KNOWN")]).values()
    assert "NEW" in labels and "KNOWN" not in labels
    # A category that is 0 in all texts is not reported.
    assert "no" not in labels


def test_a_label_that_another_component_knows_is_known() -> None:
    nlp = spacy.blank("en")
    ruler: Any = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "NEW", "pattern": "London"}])
    nlp.add_pipe("ner", config=stock("ner", TOK2VEC))
    assert unknown_labels(nlp, [of("ner", nlp, "NEW")]) == {}
    assert unknown_labels(nlp, [of("ner", nlp, "OTHER")]) == {"entities": ["OTHER"]}


def test_few_of_many_are_named() -> None:
    (said,) = in_words({"entities": [f"L{i:02}" for i in range(13)]})
    assert "L09 and 3 more" in said and "L10" not in said and "have labels that" in said
    (said,) = in_words({"tags": ["X"]})
    assert "The tags of the references have a label that the pipeline does not know: X." in said
