"""Scores of entities on texts that were annotated for some labels alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spacy_latent.analysis.scores import ExampleScorer, Scores
from spacy_latent.annotations import annotated_labels

if TYPE_CHECKING:
    from spacy.training import Example


def asked_alone(example: Example) -> Example:
    """The example without entities of labels that ``doc._.annotated_labels`` of its reference does
    not have, found and gold: they are neither right nor wrong. The same one where that is None."""
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


def spans_asked_alone(example: Example, key: str) -> Example:
    """Return the example without spans of labels that the reference was not annotated for.

    Args:
        key: name of the group of spans, found and gold.
    """
    from spacy.training import Example

    asked = annotated_labels(example.reference)
    if asked is None:
        return example
    docs = []
    for doc in (example.predicted, example.reference):
        copied = doc.copy()
        if key in doc.spans:
            copied.spans[key] = [span for span in copied.spans[key] if span.label_ in asked]
        docs.append(copied)
    return Example(*docs)


def build_label_set_scorer_v1(spans_key: str | None = None) -> ExampleScorer:
    """spaCy's scores of entities or spans of the labels that texts were annotated for.

    An entity of a label that is not in ``doc._.annotated_labels`` is neither right nor wrong.
    ``entity_scorer`` does so, too.

    spans_key: the group of spans that is scored, as of ``tree_spancat``; None for entities.
    """

    def score(examples: Iterable[Example], **kwargs: object) -> Scores:
        from spacy.pipeline.spancat import spancat_score
        from spacy.scorer import get_ner_prf

        if spans_key is None:
            return get_ner_prf([asked_alone(example) for example in examples], **kwargs)
        alone = [spans_asked_alone(example, spans_key) for example in examples]
        return spancat_score(alone, **{"spans_key": spans_key, **kwargs})

    return score


__all__ = ["asked_alone", "build_label_set_scorer_v1", "spans_asked_alone"]
