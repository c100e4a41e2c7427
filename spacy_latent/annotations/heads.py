"""The heads that a doc has, as annotation and not as a drawing: what is not known stays so."""

from __future__ import annotations

from typing import Any

import numpy as np
from spacy.attrs import DEP, HEAD
from spacy.strings import get_string_id
from spacy.tokens import Doc

# CoNLL-U has this for what is not known. spaCy's converter makes a label of it, and a token without
# a head its own head.
UNKNOWN = get_string_id("_")


def known_heads(doc: Doc) -> tuple[np.ndarray, np.ndarray]:
    """Heads of the n tokens, ``(n,)`` int64, places in the doc, its own for a root, −1 where none
    is known; and the hashes of their labels, ``(n,)`` uint64, 0 where none is known."""
    given: Any = doc.to_array([HEAD, DEP])
    place, labels = np.arange(len(doc)), given[:, 1].copy()
    heads = place + given[:, 0].astype("int64")
    # As token.has_head() has it, a head without a label is none.
    unknown = (labels == 0) | ((labels == UNKNOWN) & (heads == place))
    labels[labels == UNKNOWN] = 0
    return np.where(unknown, -1, heads), labels


__all__ = ["known_heads"]
