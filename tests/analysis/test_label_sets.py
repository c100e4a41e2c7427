"""Scores of texts that were annotated for only some labels."""

from __future__ import annotations

from typing import Any

import pytest
import spacy
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_latent.analysis.judged_entities import judged_entities
from spacy_latent.analysis.label_sets import asked_alone
from spacy_latent.annotations import SpanStructure, write

VOCAB = spacy.blank("xx").vocab
TAGS = ("O", "U-A", "U-B")


def example(found: list[str], gold: list[str], asked: list[str] | None) -> Example:
    """Return an example whose tokens are entities with found and gold labels.

    Args:
        found: Predicted label of each token. "" is a token outside of entities.
        gold: Gold labels. "?" is a token with missing annotation.
        asked: Labels for which the text was annotated.
    """
    made = []
    for labels in (found, gold):
        doc = Doc(VOCAB, words=[f"w{i}" for i in range(len(labels))])
        spans = [Span(doc, i, i + 1, label=label) for i, label in enumerate(labels) if label > "?"]
        missing = [doc[i : i + 1] for i, label in enumerate(labels) if label == "?"]
        doc.set_ents(spans, missing=missing, default="outside")
        made.append(doc)
    made[1]._.annotated_labels = asked
    tags = [TAGS.index(f"U-{label}") if label else 0 for label in found]
    structure = SpanStructure(0, len(found), "TagSequence", "tags", tags, labels=TAGS)  # type: ignore[arg-type]
    structure.entity_probabilities = [0.9] * sum(map(bool, found))  # type: ignore[assignment]
    write(made[0], "crf_ner", [structure])
    return Example(*made)


FOUND, GOLD = ["A", "B", "A", "", "A", ""], ["A", "", "", "B", "?", "A"]


def scored(examples: list[Example], **block: Any) -> dict[str, Any]:
    scorer = registry.resolve({"scorer": {"@scorers": "spacy-latent.label_set_scorer.v1", **block}})
    return scorer["scorer"](examples)


def test_entities_of_labels_that_were_not_asked_for_are_neither_right_nor_wrong() -> None:
    # One A is right, one is wrong, and one is missed. The found B and the gold B do not count.
    found = scored([example(FOUND, GOLD, ["A"])])
    assert (found["ents_p"], found["ents_r"]) == (pytest.approx(1 / 2), pytest.approx(1 / 2))
    assert set(found["ents_per_type"]) == {"A"}
    nothing = scored([example(FOUND, GOLD, [])])
    assert nothing["ents_f"] in (None, 0.0)


def test_without_sets_they_are_spacys_scores() -> None:
    examples = [example(FOUND, GOLD, None)]
    assert scored(examples) == get_ner_prf(examples)
    assert asked_alone(examples[0]) is examples[0]
    every = scored([example(FOUND, GOLD, ["A", "B"])])
    assert every["ents_per_type"] == get_ner_prf(examples)["ents_per_type"]


def test_nor_are_they_judged_by_their_confidence() -> None:
    judged = judged_entities([example(FOUND, GOLD, ["A"])])
    assert judged is not None
    assert (judged.correct, judged.labels, judged.gold) == ([True, False], ["A", "A"], 2)
    assert judged.unannotated == 2
    scorer = registry.resolve({"scorer": {"@scorers": "spacy-latent.entity_scorer.v1"}})["scorer"]
    found = scorer([example(FOUND, GOLD, ["A"])])
    assert found["ents_p"] == pytest.approx(1 / 2)
    assert found["ents_ece"] == pytest.approx(0.4)
