"""Annotated heads and sentence starts of a doc, with unknown ones left unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
from spacy.attrs import DEP, HEAD, IS_SPACE, SENT_START
from spacy.strings import get_string_id
from spacy.tokens import Doc

# CoNLL-U writes "_" for unknown values. spaCy's converter turns it into a label, and makes a token
# without a head its own head.
UNKNOWN = get_string_id("_")


def known_heads(doc: Doc) -> tuple[np.ndarray, np.ndarray]:
    """Return the annotated heads of the n tokens and the hashes of their labels.

    Returns:
        The heads, ``(n,)`` int64, as indices in the doc: a root is its own head, and −1 is an
        unknown head. Then the hashes of the labels, ``(n,)`` uint64, with 0 for an unknown label.
    """
    given: Any = doc.to_array([HEAD, DEP])
    place, labels = np.arange(len(doc)), given[:, 1].copy()
    heads = place + given[:, 0].astype("int64")
    # token.has_head() does not count a head without a label either.
    unknown = (labels == 0) | ((labels == UNKNOWN) & (heads == place))
    labels[labels == UNKNOWN] = 0
    return np.where(unknown, -1, heads), labels


def some_starts(doc: Doc) -> np.ndarray | None:
    """Return the annotation of sentence starts if only some tokens have it, ``(n,)`` int64.

    If no token is annotated as a non-start, other tokens without annotation count as non-starts, as
    in spaCy. Docs whose starts follow from heads have all of them.

    Returns:
        1 for a start, −1 for a non-start and 0 for a word or white space without annotation; None
        if the annotation of the words is complete in this sense, or if there is none.
    """
    given: Any = doc.to_array([SENT_START, IS_SPACE]).view("int64")
    starts, words = given[:, 0], np.flatnonzero(given[:, 1] == 0)
    # The first word starts a sentence without annotation.
    if not (starts == -1).any() or not (starts[words[1:]] == 0).any():
        return None
    return starts


def crossing(heads: np.ndarray) -> np.ndarray:
    """Return a mask of the tokens whose arc crosses another, ``(n,)`` bool.

    All arcs are drawn above the sentence. The arc of the root starts before the first token.

    Args:
        heads: ``(n,)``, 0 for the root, i for the i-th token, −1 if not known.
    """
    crosses = np.zeros(len(heads), dtype=bool)
    (modifiers,) = np.nonzero(heads >= 0)
    ends = np.sort(np.stack([heads[modifiers], modifiers + 1]), 0)
    low, high = ends[:, :, None], ends[:, None, :]
    over = (low[0] < high[0]) & (high[0] < low[1]) & (low[1] < high[1])
    crosses[modifiers] = (over | over.T).any(1)
    return crosses
