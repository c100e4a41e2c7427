"""Storage of structures in ``doc.user_data``.

There is one entry per span. Its key has the form of spaCy's keys for attributes of spans, so that
spaCy keeps the entry and moves it with the tokens.
"""

from __future__ import annotations

import gc
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import srsly
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc

from spacy_latent.annotations.span_structure import SpanStructure

# Name in the keys of doc.user_data. It differs from the name of the extension, which a user may
# register for spans, and which Doc.to_json(underscore=["latent"]) writes for spans.
STORED = "spacy_latent"
# Key of components that stored no structure: the span from character 0 to 0.
EMPTY = ("._.", STORED, 0, 0)
# Probabilities of whole structures.
WHOLE = ("whole_probability", "labelled_whole_probability")
# Types of stored arrays. The arrays of one dict are only stored together.
ARRAYS = (
    {"parts": "int32", "probabilities": "float32"},
    {"counters": "float32"},
    {"entity_probabilities": "float32"},
    {"arc_labels": "int32"},
    {"labelled_parts": "int32", "labelled_probabilities": "float32"},
    {"possible": "int32", "possible_probabilities": "float32"},
)
# Types of the arrays that are stored for each alternative.
OF_ALTERNATIVES = {"alternative_labels": "int32", "alternative_probabilities": "float32"}
NUMBERS = ("min_confidence", *WHOLE)
# Fields that are stored unchanged, unless they are None.
AS_THEY_ARE = (*(name for each in ARRAYS for name in each), "given", *NUMBERS)


def write(doc: Doc, component: str, spans: Sequence[SpanStructure]) -> None:
    """Replace the structures that ``component`` has stored on ``doc``."""
    user_data: dict[Any, Any] = doc.user_data
    idx, length = doc.to_array([IDX, LENGTH]).astype("int64").T
    remove(doc, component)
    if not spans:
        # This entry marks docs on which the component ran, but had no span to choose a structure
        # for.
        user_data[EMPTY] = {**user_data.get(EMPTY, {}), component: {}}
    for span in spans:
        key = record_key(doc, span.start, span.end)
        record = _record_of(span, doc, idx, length)
        user_data[key] = {**user_data.get(key, {}), component: record}


def remove_all(doc: Doc) -> None:
    """Remove the structures of all components from ``doc``."""
    user_data: dict[Any, Any] = doc.user_data
    for key in [key for key in user_data if _is_ours(key)]:
        del user_data[key]


def remove(doc: Doc, component: str) -> None:
    """Remove the structures of ``component`` from ``doc``."""
    user_data: dict[Any, Any] = doc.user_data
    for key, value in list(user_data.items()):
        if _is_ours(key) and component in value:
            rest = {name: record for name, record in value.items() if name != component}
            if rest:
                user_data[key] = rest
            else:
                del user_data[key]


def is_stored(doc: Doc, component: str) -> bool:
    """Return whether ``doc`` holds a structure of ``component``, of these tokens or of others."""
    return any(_is_ours(key) and component in value for key, value in doc.user_data.items())


def _record_of(
    span: SpanStructure, doc: Doc, idx: np.ndarray, length: np.ndarray
) -> dict[str, Any]:
    """Return the record that is stored for a structure; :func:`_structure_of` reads it.

    ``idx`` and ``length`` are the first character of each token of the doc and its size.
    """
    tokens = slice(span.start, span.end)
    record: dict[str, Any] = {
        "structure": span.structure,
        "kind": span.kind,
        "tokens": len(span),
        "places": _places(idx[tokens], length[tokens]),
        "decoded": np.array(span.decoded, dtype="int32"),
    }
    for together in ARRAYS:
        if all(getattr(span, name) is not None for name in together):
            for name, dtype in together.items():
                record[name] = np.array(getattr(span, name), dtype=dtype)
    if span.labels is not None:
        record["labels"] = list(span.labels)
    if span.given is not None and span.given.any():
        record["given"] = np.array(span.given, dtype="bool")
    if span.alternatives:
        record["alternatives"] = [
            [np.array(decoded, dtype="int32"), float(weight)]
            for decoded, weight in span.alternatives
        ]
    for name, dtype in OF_ALTERNATIVES.items():
        if rows := getattr(span, name):
            record[name] = [np.array(row, dtype=dtype) for row in rows]
    for name in NUMBERS:
        if (value := getattr(span, name)) is not None:
            record[name] = float(value)
    if span.entities_calibrated:
        record["entities_calibrated"] = True
    if span.other_start is not None and span.other_end is not None:
        # Store offsets relative to the span, because spaCy moves only the keys of user_data.
        other = doc[span.other_start : span.other_end]
        start = doc[span.start].idx
        bounds = [other.start_char - start, other.end_char - start]
        its = slice(other.start, other.end)
        record["other"] = [*bounds, len(other), _places(idx[its], length[its])]
    return record


def _structure_of(
    record: dict[str, Any], start: int, end: int, other_start: int | None, other_end: int | None
) -> SpanStructure:
    """Return the structure of a record of :func:`_record_of`, at its current tokens."""
    kept: dict[str, Any] = {name: record.get(name) for name in AS_THEY_ARE}
    kept.update({name: list(record.get(name, [])) for name in OF_ALTERNATIVES})
    return SpanStructure(
        start,
        end,
        record["structure"],
        record["kind"],
        record["decoded"],
        alternatives=[(decoded, weight) for decoded, weight in record.get("alternatives", [])],
        labels=tuple(record["labels"]) if "labels" in record else None,
        other_start=other_start,
        other_end=other_end,
        entities_calibrated=record.get("entities_calibrated", False),
        **kept,
    )


def _is_ours(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 4 and key[:2] == EMPTY[:2] and None not in key


def _places(idx: np.ndarray, length: np.ndarray) -> int:
    """Return a checksum of the boundaries of the tokens, relative to the first token."""
    places = np.empty((2, len(idx)), dtype="<i4")
    np.subtract(idx, idx[:1], out=places[0], casting="unsafe")
    places[1] = length
    return zlib.crc32(places.tobytes())


def stored_records(doc: Doc) -> list[object]:
    """Return the objects that hold structures, in order; changed structures get new objects."""
    user_data: dict[Any, Any] = doc.user_data
    return [value for key, value in user_data.items() if _is_ours(key)]


def record_key(doc: Doc, start: int, end: int) -> tuple[str, str, int, int]:
    """Return the key in ``doc.user_data`` of the structures over these tokens."""
    last = doc[end - 1]
    return "._.", STORED, doc[start].idx, last.idx + len(last)


def packed(doc: Doc, component: str) -> str:
    """Return everything that ``component`` has stored on ``doc``, as a text for :func:`unpack`."""
    user_data: dict[Any, Any] = doc.user_data
    own = [
        [*key[2:], value[component]]
        for key, value in user_data.items()
        if _is_ours(key) and component in value
    ]
    return b64encode(srsly.msgpack_dumps(own)).decode("ascii")


def unpack(doc: Doc, component: str, text: str) -> None:
    """Store on ``doc`` the text that :func:`packed` returned for a doc with the same tokens.

    Raises:
        ValueError, TypeError: If the text is invalid. The records are not checked.
    """
    remove(doc, component)
    user_data: dict[Any, Any] = doc.user_data
    try:
        rows = srsly.msgpack_loads(b64decode(text, validate=True))
    finally:
        # srsly disables the garbage collector while it reads. After an error it stays disabled.
        gc.enable()
    for start, end, record in rows:
        key = (*EMPTY[:2], start, end)
        user_data[key] = {**user_data.get(key, {}), component: record}


def read(doc: Doc) -> dict[str, list[SpanStructure]]:
    """Return the structures on a doc by component.

    The list is empty if a component found no structures. A structure is left out if its tokens were
    merged, split or cut off after it was written.
    """
    user_data: dict[Any, Any] = doc.user_data
    keys = sorted(key for key in user_data if _is_ours(key))
    if not keys:
        return {}
    # An array, because a loop over the tokens would create a Token object for each of them.
    idx, length = doc.to_array([IDX, LENGTH]).astype("int64").T
    starts = {place: i for i, place in enumerate(idx.tolist())}
    ends = {place: i for i, place in enumerate((idx + length).tolist(), 1)}
    found: dict[str, list[SpanStructure]] = {}
    for key in keys:
        if key[2] == key[3]:
            found.update({component: found.get(component, []) for component in user_data[key]})
            continue
        start, end = starts.get(key[2]), ends.get(key[3])
        if start is None or end is None or start >= end:
            continue
        for component, record in user_data[key].items():
            # Tokens were merged or split since then, so that the structure belongs to other tokens,
            # even if their number is the same.
            if record["tokens"] != end - start:
                continue
            if record["places"] != _places(idx[start:end], length[start:end]):
                continue
            other_start = other_end = None
            if "other" in record:
                first, last, tokens, places = record["other"]
                other_start, other_end = starts.get(key[2] + first), ends.get(key[2] + last)
                if other_start is None or other_end is None or other_end - other_start != tokens:
                    continue
                its = slice(other_start, other_end)
                if places != _places(idx[its], length[its]):
                    continue
            structure = _structure_of(record, start, end, other_start, other_end)
            found.setdefault(component, []).append(structure)
    return found
