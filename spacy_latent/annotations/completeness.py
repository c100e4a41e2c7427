"""What the annotation of a doc leaves open: ``doc._.annotated_labels`` and ``doc._.entity_flags``.

Both are values in ``doc.user_data``, so that ``DocBin(store_user_data=True)`` keeps them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from spacy.tokens import Doc

from spacy_latent.errors import LatentError, is_whole

ANNOTATED_LABELS, ENTITY_FLAGS = "annotated_labels", "entity_flags"

for _name in (ANNOTATED_LABELS, ENTITY_FLAGS):
    # Where somebody registered the name, the value is read all the same.
    if not Doc.has_extension(_name):
        Doc.set_extension(_name, default=None)


def _value(doc: Doc, name: str) -> Any:
    user_data: dict[Any, Any] = doc.user_data
    return user_data.get(("._.", name, None, None))


def annotated_labels(doc: Doc) -> tuple[str, ...] | None:
    """Labels of entities that the text was annotated for, ``doc._.annotated_labels``; None for all.
    A token outside of entities may belong to one of any other label. Raises LatentError for what is
    no list of names."""
    given = _value(doc, ANNOTATED_LABELS)
    if given is None:
        return None
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        wrong = True
    else:
        given = list(given)
        wrong = not all(isinstance(one, str) and one for one in given)
    if wrong:
        raise LatentError(
            f"doc._.{ANNOTATED_LABELS} of {doc.text[:60]!r} is {reprlib.repr(given)}; expected a "
            "list of names of labels, as ['Chemical'], or None where the text was annotated for "
            "all."
        )
    return tuple(dict.fromkeys(given))


def entity_flags(doc: Doc) -> dict[str, int]:
    """How many entities of a label the doc has at least, by ``doc._.entity_flags``; 0 for none at
    all. Labels that are not there are not known of. Raises LatentError for what is no such mapping.
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
        f"doc._.{ENTITY_FLAGS} of {doc.text[:60]!r} is {reprlib.repr(given)}; expected for each "
        "label that is known of how many entities the text has at least, 0 for none, as "
        "{'Chemical': 1, 'Disease': 0}."
    )


__all__ = ["ANNOTATED_LABELS", "ENTITY_FLAGS", "annotated_labels", "entity_flags"]
