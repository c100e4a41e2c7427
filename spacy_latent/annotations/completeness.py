"""Completeness of the annotation: ``doc._.annotated_labels`` and ``doc._.entity_flags``.

Both are values in ``doc.user_data``, so that ``DocBin(store_user_data=True)`` keeps them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from spacy.tokens import Doc

from spacy_latent.errors import LatentError, is_whole

ANNOTATED_LABELS, ENTITY_FLAGS = "annotated_labels", "entity_flags"
# Key in doc.user_data for the group of rejected spans.
REJECTED = "rejected_spans_key"

for _name in (ANNOTATED_LABELS, ENTITY_FLAGS):
    # Read the value from doc.user_data, since a user may have registered an extension of this name.
    if not Doc.has_extension(_name):
        Doc.set_extension(_name, default=None)


def _value(doc: Doc, name: str) -> Any:
    user_data: dict[Any, Any] = doc.user_data
    return user_data.get(("._.", name, None, None))


def annotated_labels(doc: Doc) -> tuple[str, ...] | None:
    """Return the entity labels that the text was annotated for, from ``doc._.annotated_labels``.

    A token outside of entities may belong to an entity of any other label.

    Returns:
        The names of the labels without duplicates, or None if the text was annotated for all
        labels.

    Raises:
        LatentError: If the value is not a list of names.
    """
    given = _value(doc, ANNOTATED_LABELS)
    if given is None:
        return None
    # Refuse an iterator: it can be read only once, and would be empty for the next reader.
    is_list = isinstance(given, Collection) and not isinstance(given, (str, Mapping))
    if not is_list or not all(isinstance(one, str) and one for one in given):
        raise LatentError(
            f"doc._.{ANNOTATED_LABELS} of {doc.text[:60]!r} is {reprlib.repr(given)}; expected a "
            "list of names of labels, as ['Chemical'], or None if the text was annotated for all."
        )
    return tuple(dict.fromkeys(given))


def entity_flags(doc: Doc) -> dict[str, int]:
    """Return the least number of entities of each label, from ``doc._.entity_flags``.

    Returns:
        The least number by label; 0 states that the doc has no entity of the label. Nothing is
        known about labels that are missing.

    Raises:
        LatentError: If the value is not such a mapping.
    """
    given = _value(doc, ENTITY_FLAGS)
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(
        isinstance(label, str) and (isinstance(least, bool) or is_whole(least, 0))
        for label, least in given.items()
    ):
        return {label: int(least) for label, least in given.items()}
    raise LatentError(
        f"doc._.{ENTITY_FLAGS} of {doc.text[:60]!r} is {reprlib.repr(given)}; expected a dict "
        "from labels to the least number of their entities, as {'Chemical': 1, 'Disease': 0}. 0 "
        "means that the text has none. Leave out a label if nothing is known."
    )


def rejected_key(doc: Doc) -> str | None:
    """Return the group of ``doc.spans`` with the spans that annotators rejected, or None."""
    user_data: dict[Any, Any] = doc.user_data
    key = user_data.get(REJECTED)
    return key if isinstance(key, str) and key in doc.spans else None


def name_rejected(doc: Doc, key: str) -> None:
    """Write the name of the group of ``doc.spans`` whose spans are rejected."""
    user_data: dict[Any, Any] = doc.user_data
    user_data[REJECTED] = key
