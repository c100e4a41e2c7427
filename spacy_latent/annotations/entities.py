"""Tags that form entities."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from spacy_latent.errors import LatentError

# Value of ``own_kind`` of components that write tags which form entities.
ENTITIES = "entities"


def names_entities(labels: Sequence[str] | None) -> bool:
    """Return whether tags with these names form entities by the BILUO scheme."""
    return labels is not None and _name_entities(tuple(labels))


@lru_cache(maxsize=32)
def _name_entities(labels: tuple[str, ...]) -> bool:
    return "O" in labels and all(
        name == "O" or (name[:2] in ("B-", "I-", "L-", "U-") and name[2:]) for name in labels
    )


def entities_of(tags: np.ndarray, labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the (start, end, label) of the entities in a sequence of tags with BILUO names.

    Raises:
        LatentError: If the names are not BILUO names.
    """
    if not names_entities(labels):
        raise LatentError(
            f"Tags named {', '.join(labels[:5])} do not encode entities; expected BILUO tags: 'O', "
            "and labels after B-, I-, L- and U-."
        )
    outside, parts = _parts_of(tuple(labels))
    found, start = [], 0
    for i, tag in enumerate(np.asarray(tags).tolist()):
        if tag == outside:
            continue
        prefix, label = parts[tag]
        if prefix in "BU":
            start = i
        if prefix in "LU":
            found.append((start, i + 1, label))
    return found


@lru_cache(maxsize=32)
def _parts_of(labels: tuple[str, ...]) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of the tag "O", and the prefix and the label of each tag."""
    return labels.index("O"), [(name[0], name[2:]) for name in labels]
