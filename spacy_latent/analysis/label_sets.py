"""Scores of entities on texts that were annotated for only some labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spacy_latent.analysis.scores import ExampleScorer, Scores
from spacy_latent.annotations import annotated_labels

if TYPE_CHECKING:
    from spacy.training import Example


def asked_alone(example: Example) -> Example:
    """Return the example without entities of labels that its reference was not annotated for.

    Such entities are neither right nor wrong. They are removed from prediction and reference. The
    labels are those of ``doc._.annotated_labels`` of the reference. If that is None, the same
    example is returned.
    """
    from spacy.training import Example

    asked = annotated_labels(example.reference)
    if asked is None:
        return example
    docs = []
    for doc in (example.predicted, example.reference):
        copied = doc.copy()
        missing = [copied[token.i : token.i + 1] for token in doc if token.ent_iob == 0]
        kept = [span for span in copied.ents if span.label_ in asked]
        copied.set_ents(kept, missing=missing, default="outside")
        docs.append(copied)
    return Example(*docs)


def build_label_set_scorer_v1() -> ExampleScorer:
    """Build a scorer of entities that leaves out labels a text was not annotated for.

    It returns spaCy's scores of entities. An entity of a label that is not in
    ``doc._.annotated_labels`` of its text is neither right nor wrong. ``entity_scorer`` does the
    same.
    """

    def score(examples: Iterable[Example], **kwargs: object) -> Scores:
        from spacy.scorer import get_ner_prf

        return get_ner_prf([asked_alone(example) for example in examples], **kwargs)

    return score


__all__ = ["asked_alone", "build_label_set_scorer_v1"]
