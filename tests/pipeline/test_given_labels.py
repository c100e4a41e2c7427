"""Invalid labels, such as a file of another component's labels, are refused with a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language

from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, stock

NAMES = (
    "crf_ner",
    "latent_parser",
    "latent_textcat",
    "latent_textcat_multilabel",
    "tree_spancat",
)


def pipeline(name: str) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    return nlp


def told(nlp: Language, labels: Any) -> Language:
    """Initialize with the labels in the config, so that spaCy checks them with the signature."""
    block = {"labels": labels}
    nlp.config["initialize"] = {
        **nlp.config["initialize"],
        "components": {nlp.pipe_names[0]: block},
    }
    nlp.initialize(lambda: examples(nlp))
    return nlp


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_the_labels_of_ner_is_refused(name: str, tmp_path: Path) -> None:
    ner = spacy.blank("en")
    ner.add_pipe("ner", config=stock("ner", TOK2VEC))
    initialized(ner)
    path = tmp_path / "ner.json"
    srsly.write_json(path, ner.get_pipe("ner").label_data)  # type: ignore[attr-defined]
    with pytest.raises(LatentError) as raised:
        told(pipeline(name), {"@readers": "spacy.read_labels.v1", "path": str(path)})
    said = str(raised.value)
    assert said.startswith(
        f"{name}: its labels, initialize.components.{name}.labels, are a mapping"
    )
    assert "run 'spacy init labels' again with the new config" in said and len(said) < 400


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("labels", "what"), [([1, 2], "a list with 1 in it"), ("GPE", "'GPE'"), (3, "3")]
)
def test_what_is_no_list_of_names(name: str, labels: Any, what: str) -> None:
    with pytest.raises(LatentError, match=f"{what}"):
        told(pipeline(name), labels)


def test_sets_of_labels_are_those_of_tree_spancat_alone() -> None:
    labels = ["A", "B", ["A", "B"]]
    spans: Any = told(pipeline("tree_spancat"), labels).get_pipe("tree_spancat")
    assert spans.label_data == labels
    with pytest.raises(LatentError, match=r"\['A', 'B'\]"):
        told(pipeline("crf_ner"), labels)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken(name: str) -> None:
    nlp = told(pipeline(name), ["A", "B"])
    pipe: Any = nlp.get_pipe(name)
    # The parser has the label of roots before them.
    assert pipe.labels[-2:] == ("A", "B")
    pipe.initialize(lambda: examples(nlp), nlp=nlp, labels=(label for label in ("A", "B", "C")))
    assert pipe.labels[-1] == "C"
