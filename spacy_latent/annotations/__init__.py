"""Storage of latent structures on a Doc, and access to them: ``doc._.latent``.

``doc._.latent`` maps the name of each latent component to a :class:`LatentAnnotation`. The data are
plain Python and NumPy objects in ``doc.user_data``. There is one entry per span, under the keys
that spaCy uses for span attributes. The entries therefore survive ``Doc.to_bytes``,
``DocBin(store_user_data=True)``, copies, pickling, ``nlp.pipe(n_process=2)`` and ``Doc.from_docs``.
``Span.as_doc(copy_user_data=True)`` keeps the structures that lie entirely inside the span. spaCy
drops the entries without ``copy_user_data`` or ``store_user_data``, or with "user_data" excluded.
``doc.to_json(underscore=["latent"])`` writes them in a form that ``Doc.from_json`` reads.

``doc._.annotated_labels`` and ``doc._.entity_flags`` state how completely a doc is annotated; see
:mod:`spacy_latent.annotations.completeness`. ``doc.user_data["document"]`` names the document that
a doc is a piece of, see :mod:`spacy_latent.annotations.documents`.
"""

from __future__ import annotations

from spacy_latent.annotations.as_json import to_json
from spacy_latent.annotations.completeness import (
    annotated_labels,
    entity_flags,
    name_rejected,
    rejected_key,
)
from spacy_latent.annotations.doc_annotations import DocAnnotations
from spacy_latent.annotations.documents import (
    DOCUMENT,
    document_of,
    is_document_name,
    name_document,
)
from spacy_latent.annotations.entities import ENTITIES, entities_of, names_entities
from spacy_latent.annotations.latent_annotation import LatentAnnotation
from spacy_latent.annotations.records import record_key, stored_records, write
from spacy_latent.annotations.settings import (
    BEST,
    LEVELS,
    PROBABILITIES,
    Stored,
    check_group,
    check_settings,
    check_share,
)
from spacy_latent.annotations.spacy_annotation import aligned_spans, runs, set_heads, write_spans
from spacy_latent.annotations.span_parts import no_counters_message, no_probabilities_message
from spacy_latent.annotations.span_structure import (
    Arc,
    Bracket,
    Cell,
    Dependency,
    Entity,
    Item,
    SpanStructure,
    probability_of_parts,
)

__all__ = [
    "BEST",
    "DOCUMENT",
    "ENTITIES",
    "LEVELS",
    "PROBABILITIES",
    "Arc",
    "Bracket",
    "Cell",
    "Dependency",
    "DocAnnotations",
    "Entity",
    "Item",
    "LatentAnnotation",
    "SpanStructure",
    "Stored",
    "aligned_spans",
    "annotated_labels",
    "check_group",
    "check_settings",
    "check_share",
    "document_of",
    "entities_of",
    "entity_flags",
    "is_document_name",
    "name_document",
    "name_rejected",
    "names_entities",
    "no_counters_message",
    "no_probabilities_message",
    "probability_of_parts",
    "record_key",
    "rejected_key",
    "runs",
    "set_heads",
    "stored_records",
    "to_json",
    "write",
    "write_spans",
]
