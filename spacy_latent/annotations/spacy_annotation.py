"""spaCy's own annotation: structures in ``token.head`` and ``doc.spans``, and aligned spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example

from spacy_latent.annotations.span_structure import SpanStructure
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind

_OUR_LABELS = ("latent", "latent-root", "ROOT")


def aligned_spans(
    example: Example, spans: Iterable[Span], allow_overlap: bool = False
) -> list[Span]:
    """Return the spans of a reference that fit the tokens of the predicted doc.

    The result is the same as from ``example.get_aligned_spans_y2x``. But that method raises spaCy's
    error E084 if the vocabulary of the predicted doc lacks a label of the spans. Here the label is
    added to the vocabulary.
    """
    spans = list(spans)
    for span in spans:
        example.predicted.vocab.strings.add(span.label_)
    return list(example.get_aligned_spans_y2x(spans, allow_overlap=allow_overlap))


def set_heads(doc: Doc, spans: Sequence[SpanStructure], component: str) -> None:
    """Write trees to ``token.head`` and ``token.dep_`` of a doc that has no parse.

    The dependency label is "latent", and "ROOT" at the root of a span. Further roots of a span are
    attached to the first one with the label "latent-root", because spaCy would start a sentence at
    each root. Each span becomes a sentence.

    Raises:
        LatentError: If another component has parsed the doc, or a structure is not a tree.
    """
    if not spans:
        return
    if doc.has_annotation("DEP") and not {token.dep_ for token in doc} <= {"", *_OUR_LABELS}:
        raise LatentError(
            f"{component}: set_heads would overwrite the dependency parse that is on the doc. "
            "Set set_heads = false, or remove the parser from the pipeline."
        )
    heads, labels = list(range(len(doc))), [""] * len(doc)
    for span in spans:
        if "heads" not in find_kind(span.kind).accessors:
            raise LatentError(
                f"{component}: set_heads is true, and its structure is {span.structure}; expected "
                "a structure of dependency trees. Set set_heads = false."
            )
        first_root = None
        for modifier, head in enumerate(span.decoded.tolist()):
            if head:
                heads[span.start + modifier] = span.start + head - 1
                labels[span.start + modifier] = "latent"
            elif first_root is None:
                first_root = span.start + modifier
                labels[first_root] = "ROOT"
            else:
                heads[span.start + modifier] = first_root
                labels[span.start + modifier] = "latent-root"
    strings = [doc.vocab.strings.add(label) if label else 0 for label in labels]
    offsets = np.array(heads, dtype="int64") - np.arange(len(doc))
    values: Any = np.stack([offsets.astype("uint64"), np.array(strings, dtype="uint64")], 1)
    doc.from_array(["HEAD", "DEP"], values)


def write_spans(doc: Doc, key: str, weights: Sequence[float] | np.ndarray) -> None:
    """Replace ``doc.spans[key]`` by the runs of tokens with non-zero weights, ``(len(doc),)``.

    The label of the spans is the key. Their mean weights, float32, are ``attrs["scores"]``.
    """
    weights = np.asarray(weights, dtype="float32")
    found = runs(weights)
    scores = np.array([weights[start:end].mean() for start, end in found], dtype="float32")
    spans = [Span(doc, start, end, key) for start, end in found]
    doc.spans[key] = SpanGroup(doc, name=key, attrs={"scores": scores}, spans=spans)


def runs(chosen: Sequence[float] | np.ndarray) -> list[tuple[int, int]]:
    """Return the (start, end) of each maximal run of non-zero entries."""
    edges = np.diff(np.concatenate([[0], np.asarray(chosen) != 0, [0]]).astype("int8"))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return list(zip(starts.tolist(), ends.tolist()))
