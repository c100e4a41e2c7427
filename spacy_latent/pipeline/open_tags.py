"""BILUO tags that tokens may have, given the annotation that is already on a doc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.attrs import ENT_IOB, ENT_TYPE, IS_SPACE, SENT_START
from spacy.tokens import Doc, Span

INSIDE, BEGIN = 1, 3
# Prefixes of tags that continue an entity, and prefixes of tags that begin or end one.
CROSSING, BOUNDING = ["I", "L"], ["B", "L", "U"]


def open_tags(doc: Doc, tags: Sequence[str], labels: Sequence[str]) -> np.ndarray | None:
    """Return the tags that each token may have.

    Entities and blocked tokens on the doc stay. Entities do not cross sentences, and do not begin
    or end with white space.

    Args:
        tags: all tags, K.

    Returns:
        A mask ``(n, K)`` bool, or None if every token may have every tag.
    """
    found: Any = doc.to_array([ENT_IOB, SENT_START, IS_SPACE])
    # The first token starts no further sentence.
    found[:1, 1] = 0
    if not np.count_nonzero(found):
        # Most docs: nothing is annotated before.
        return None
    preset = (found[:, 0] == INSIDE) | (found[:, 0] == BEGIN)
    starts, spaces = _starts_and_spaces(found[:, 1:])
    if not (preset.any() or starts.any() or spaces.any()):
        return None
    mask = np.ones((len(doc), len(tags)), dtype=bool)
    prefixes = prefixes_of(tags)
    mask[np.ix_(starts, np.isin(prefixes, CROSSING))] = False
    mask[np.ix_(spaces, np.isin(prefixes, BOUNDING))] = False
    if preset.any():
        mask[preset] = False
        # Blocked tokens, and entities of other labels, which set_annotations keeps.
        mask[preset, 0] = True
        for span in doc.ents:
            if span.label_ in labels:
                for i, tag in enumerate(biluo(len(span), span.label_), span.start):
                    mask[i] = False
                    mask[i, tags.index(tag)] = True
    return mask


def prefixes_of(tags: Sequence[str]) -> np.ndarray:
    """Return the first letters of the tags, ``(K,)``."""
    return np.array([tag[0] for tag in tags])


def starts_and_spaces(doc: Doc) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the tokens that start a sentence after the first, and of white space.

    Returns:
        Two masks ``(n,)`` bool.
    """
    return _starts_and_spaces(doc.to_array([SENT_START, IS_SPACE]))


def _starts_and_spaces(found: Any) -> tuple[np.ndarray, np.ndarray]:
    starts = found[:, 0] == 1
    # The first token starts no further sentence.
    starts[:1] = False
    return starts, found[:, 1] == 1


def biluo(length: int, label: str) -> list[str]:
    """Return the tags of an entity of this many tokens."""
    if length == 1:
        return [f"U-{label}"]
    return [f"B-{label}", *[f"I-{label}"] * (length - 2), f"L-{label}"]


def blocked_tokens(doc: Doc) -> list[Span]:
    """Return the tokens that must not be in an entity: spaCy's entities without a label."""
    if not doc.has_annotation("ENT_IOB"):
        return []
    found: Any = doc.to_array([ENT_IOB, ENT_TYPE])
    marked = np.flatnonzero((found[:, 0] == BEGIN) & (found[:, 1] == 0))
    return [doc[i : i + 1] for i in marked.tolist()]
