"""Sentence boundaries of a doc from its annotation, and from scores for the other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.attrs import IS_SPACE, SENT_START
from spacy.tokens import Doc

from spacy_latent.models.span_groups import Group

Bounds = list[tuple[int, ...]]


def white_space(docs: Sequence[Doc]) -> list[np.ndarray | None]:
    """Return a mask of the white space of each doc, ``(n,)`` bool; None without white space."""
    found = []
    for doc in docs:
        spaces = doc.to_array(IS_SPACE).astype(bool)
        found.append(spaces if spaces.any() else None)
    return found


def log_of_bounds(doc: Doc, scores: np.ndarray, sentences: Bounds) -> np.ndarray:
    """Return the log-probability that each sentence begins and ends as found, ``(S,)``.

    It is the sum of the log-probabilities of starts and non-starts, from the first token of the
    sentence up to the first token of the next. Annotated tokens, white space and the first word are
    certain.

    Args:
        scores: ``(n,)`` log-odds that a sentence starts.
        sentences: result of :func:`find_sentences`.
    """
    known, likely = _likely_starts(doc, scores)
    signs = np.ones(len(doc))
    signs[[start for start, *_ in sentences]] = -1.0
    certain = (known != 0) | np.isneginf(likely)
    # Scores that are not finite raise an error later, which names their text.
    with np.errstate(invalid="ignore"):
        each = -np.logaddexp(0.0, signs * np.where(certain, 0.0, likely))
    sums = np.append(0.0, np.where(certain, 0.0, each)).cumsum()
    return np.array([sums[min(end + 1, len(doc))] - sums[start] for start, end, *_ in sentences])


def _likely_starts(doc: Doc, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the annotation of starts and the log-odds of starts, both ``(n,)``.

    The annotation is 1 for a start, −1 for a non-start and 0 if it is missing. The log-odds are
    −inf for white space, and for the first word, which needs no score.
    """
    known: Any = doc.to_array([SENT_START, IS_SPACE]).view("int64")
    spaces = known[:, 1] != 0
    likely = np.where(spaces, -np.inf, scores)
    if spaces[0] and not spaces.all():
        likely[: int(np.argmin(spaces)) + 1] = -np.inf
    else:
        likely[0] = -np.inf
    return known[:, 0], likely


def find_sentences(doc: Doc, scores: np.ndarray, max_length: int) -> Bounds:
    """Return (start, end) of each sentence of a doc with tokens.

    Annotation of the doc is kept: a token starts a sentence (``token.is_sent_start`` is true) or
    does not (false). Other tokens start a sentence if their score is above 0. White space starts no
    sentence. It belongs to the sentence before it, or at the start of the doc to the one after it.
    A sentence of more than ``max_length`` tokens is split at the highest scores.

    Args:
        scores: ``(n,)`` log-odds.
    """
    known, likely = _likely_starts(doc, scores)
    free = known == 0
    starts = np.where(free, likely > 0, known == 1)
    # Annotated tokens and white space are the last choice for a split.
    return bounds(starts, np.where(free, likely, -np.inf), max_length)


def set_sentences(doc: Doc, max_length: int) -> Bounds:
    """Return the sentences of :func:`find_sentences` from the annotation of the doc alone."""
    return find_sentences(doc, np.full(len(doc), -np.inf), max_length)


def bounds(starts: np.ndarray, scores: np.ndarray, max_length: int) -> Bounds:
    """Return (start, end) of runs that begin at the first token and at ``starts``.

    Args:
        starts: ``(n,)`` bool.
        scores: ``(n,)``. Longer runs are split at the highest scores.
        max_length: bound on the tokens of a run.
    """
    first = np.union1d([0], np.flatnonzero(starts)).tolist()
    found: Bounds = []
    for start, end in zip(first, [*first[1:], len(starts)]):
        found += _parted(start, end, scores, max_length)
    return found


def _parted(start: int, end: int, scores: np.ndarray, max_length: int) -> Bounds:
    size = end - start
    if size <= max_length:
        return [(start, end)]
    # Split in the middle half, so that no single words remain.
    low, high = start + max(1, size // 4), end - size // 4
    middle = start + size // 2
    inner = scores[low:high]
    cut = middle if np.isneginf(inner).all() else low + int(inner.argmax())
    return [*_parted(start, cut, scores, max_length), *_parted(cut, end, scores, max_length)]


def hosts_of_space(spaces: np.ndarray) -> np.ndarray | None:
    """Return the head of each token of white space in a sentence, ``(n,)``, from 0.

    It is the last word before the white space, or the first word after it if there is none before.
    Words have −1.

    Args:
        spaces: ``(n,)`` bool.

    Returns:
        The heads, None without white space or without words.
    """
    if not spaces.any() or spaces.all():
        return None
    place = np.arange(len(spaces))
    before = np.maximum.accumulate(np.where(spaces, -1, place))
    first = int(np.argmin(spaces))
    return np.where(spaces, np.where(before < 0, first, before), -1)


def find_all_sentences(
    starts: Sequence[np.ndarray], docs: Sequence[Doc], max_length: int
) -> list[Bounds]:
    """Return the sentences of docs by :func:`find_sentences`, from the scores of their starts."""
    return [
        find_sentences(doc, own, max_length) if len(doc) else [] for doc, own in zip(docs, starts)
    ]


def log_of_all_bounds(
    starts: Sequence[np.ndarray], docs: Sequence[Doc], sentences: Sequence[Bounds]
) -> list[np.ndarray]:
    """Return the log-probability of each sentence of :func:`find_all_sentences`.

    See :func:`log_of_bounds`.
    """
    return [
        log_of_bounds(doc, own, found) if len(doc) else np.zeros(0)
        for doc, own, found in zip(docs, starts, sentences)
    ]


def spaces_of(
    group: Group, sentences: Sequence[Bounds], spaces: Sequence[np.ndarray | None]
) -> dict[int, np.ndarray]:
    """Return the heads of white space in the sentences of a group, by place in the group.

    Only sentences with white space and words are included; see :func:`hosts_of_space`.
    """
    hosts = {}
    for b, (d, s) in enumerate(group.members):
        own = spaces[d]
        if own is not None:
            start, end = sentences[d][s][:2]
            found = hosts_of_space(own[start:end])
            if found is not None:
                hosts[b] = found
    return hosts
