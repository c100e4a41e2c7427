"""Where the sentences of a doc are: what stands on it, and scores for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.attrs import IS_SPACE, SENT_START
from spacy.tokens import Doc

Bounds = list[tuple[int, ...]]


def white_space(docs: Sequence[Doc]) -> list[np.ndarray | None]:
    """Which tokens of each doc are white space, ``(n,)`` bool; None where none is."""
    found = []
    for doc in docs:
        spaces = doc.to_array(IS_SPACE).astype(bool)
        found.append(spaces if spaces.any() else None)
    return found


def find_sentences(doc: Doc, scores: np.ndarray, max_length: int) -> Bounds:
    """(start, end) of each sentence of a doc with tokens.

    What is set on the doc stays: a token starts a sentence (``token.is_sent_start`` is true), or it
    does not (false). Others start one where their score is above 0. White space starts none: it
    belongs to the sentence before it, or at the start of the doc to the one after it. A sentence of
    more than ``max_length`` tokens is parted where the scores are highest.

    scores: ``(n,)`` log-odds.
    """
    known: Any = doc.to_array([SENT_START, IS_SPACE]).view("int64")
    free = known[:, 0] == 0
    spaces = known[:, 1] != 0
    likely = np.where(spaces, -np.inf, scores)
    if spaces[0] and not spaces.all():
        likely[: int(np.argmin(spaces)) + 1] = -np.inf
    starts = np.where(free, likely > 0, known[:, 0] == 1)
    # Above all where nothing else says that there is no start.
    return bounds(starts, np.where(free, likely, -np.inf), max_length)


def set_sentences(doc: Doc, max_length: int) -> Bounds:
    """As :func:`find_sentences`, by what is set on the doc alone."""
    return find_sentences(doc, np.full(len(doc), -np.inf), max_length)


def bounds(starts: np.ndarray, scores: np.ndarray, max_length: int) -> Bounds:
    """(start, end) of runs that begin at the first token and where ``starts`` ``(n,)`` says so,
    longer ones parted where ``scores`` ``(n,)`` are highest."""
    first = np.union1d([0], np.flatnonzero(starts)).tolist()
    found: Bounds = []
    for start, end in zip(first, [*first[1:], len(starts)]):
        found += _parted(start, end, scores, max_length)
    return found


def _parted(start: int, end: int, scores: np.ndarray, max_length: int) -> Bounds:
    size = end - start
    if size <= max_length:
        return [(start, end)]
    # In its middle half, so that no single words are cut off.
    low, high = start + max(1, size // 4), end - size // 4
    middle = start + size // 2
    inner = scores[low:high]
    cut = middle if np.isneginf(inner).all() else low + int(inner.argmax())
    return [
        *_parted(start, cut, scores, max_length),
        *_parted(cut, end, scores, max_length),
    ]


def hosts_of_space(spaces: np.ndarray) -> np.ndarray | None:
    """For each token of a sentence, from 0, that which it hangs on if it is white space, ``(n,)``:
    the word before it, or after it where there is none; −1 for words. None without white space, or
    without words.

    spaces: ``(n,)`` bool.
    """
    if not spaces.any() or spaces.all():
        return None
    place = np.arange(len(spaces))
    before = np.maximum.accumulate(np.where(spaces, -1, place))
    first = int(np.argmin(spaces))
    return np.where(spaces, np.where(before < 0, first, before), -1)
