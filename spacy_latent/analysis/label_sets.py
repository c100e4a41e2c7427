"""Scores of entities and spans on texts that were annotated for only some labels."""

from __future__ import annotations

from collections.abc import Iterable

from spacy.pipeline.spancat import spancat_score
from spacy.scorer import get_ner_prf
from spacy.training import Example

from spacy_latent.analysis.scores import ExampleScorer, Scores
from spacy_latent.annotations import annotated_labels, check_group


def asked_alone(example: Example, key: str | None = None) -> Example:
    """Return the example without entities or spans of labels that its text was not annotated for.

    They are neither right nor wrong, and are removed from prediction and reference. The labels are
    in ``doc._.annotated_labels`` of the reference. If it is None, the same example is returned.

    Args:
        key: name of the group of spans, in prediction and reference; None for entities.
    """
    asked = annotated_labels(example.reference)
    if asked is None:
        return example
    docs = []
    for doc in (example.predicted, example.reference):
        copied = doc.copy()
        if key is None:
            missing = [copied[token.i : token.i + 1] for token in doc if token.ent_iob == 0]
            kept = [span for span in copied.ents if span.label_ in asked]
            copied.set_ents(kept, missing=missing, default="outside")
        elif key in doc.spans:
            copied.spans[key] = [span for span in copied.spans[key] if span.label_ in asked]
        docs.append(copied)
    return Example(*docs)


def build_label_set_scorer_v1(spans_key: str | None = None) -> ExampleScorer:
    """Build a scorer of entities or spans that ignores labels a text was not annotated for.

    It returns spaCy's scores. An entity or span of a label that is not in
    ``doc._.annotated_labels`` of its text is neither right nor wrong. ``entity_scorer`` does the
    same for entities.

    Args:
        spans_key: group of spans to score, such as that of ``tree_spancat``; None for entities.
    """
    check_group("label_set_scorer", or_null=True, spans_key=spans_key)

    def score(examples: Iterable[Example], **kwargs: object) -> Scores:
        if spans_key is None:
            return get_ner_prf([asked_alone(example) for example in examples], **kwargs)
        # A component gives its own settings to its scorer, spans_key among them.
        key = str(kwargs.pop("spans_key", spans_key))
        alone = [asked_alone(example, key) for example in examples]
        return spancat_score(alone, spans_key=key, **kwargs)

    return score
