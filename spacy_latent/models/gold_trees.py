"""Sentences, heads and labels of the predicted tokens from the references of examples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from spacy.attrs import DEP, IS_SPACE, SENT_START
from spacy.strings import get_string_id
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.annotations.aligned_heads import aligned_heads, counterparts
from spacy_latent.annotations.heads import known_heads, some_starts
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.models.sentences import Bounds, bounds, find_sentences, set_sentences

# Hash of the label of roots, which spaCy's parser writes. Predictions have it only for roots.
ROOT = get_string_id("ROOT")


@dataclass
class GoldTrees:
    """Annotation of the n tokens of one prediction.

    Attributes:
        heads: ``(n,)`` int64, position of the head in the doc. A root is its own head. −1 if not
            known.
        labels: ``(n,)`` int64, label of the arc to the head. −1 if not known, and for roots.
        starts: ``(n,)`` int64, 1 at the start of a sentence, 0 at other tokens, −1 if not known.
    """

    spans: Bounds
    heads: np.ndarray
    labels: np.ndarray
    starts: np.ndarray


def read_gold(
    example: Example, labels: Mapping[int, int], component: str, max_length: int
) -> GoldTrees:
    """Return the annotation of a reference at the tokens of its prediction.

    A head is known if the token and its head each have one token in the reference, and the
    reference has the head. Partial trees have words without heads.

    If the reference has all heads, or sentence starts and no heads, its sentences are taken. If it
    has some heads, the starts are those of :func:`_starts_of_whole_trees`, not the starts that
    spaCy derives. If it has no heads and some starts, these are taken, see :func:`some_starts`. In
    both cases the spans of sentences are those that are set on the prediction.

    The label "ROOT" of a word that has a head counts as not known, with a warning.

    Args:
        labels: numbers of labels by their hashes.

    Raises:
        LatentError: if a label is not among ``labels``.
    """
    reference, predicted = example.reference, example.predicted
    own_heads, _ = known_heads(reference)
    known: Any = reference.to_array([DEP, SENT_START, IS_SPACE])
    has_head, spaces_of_reference = own_heads >= 0, known[:, 2] != 0
    worded = has_head[~spaces_of_reference]
    # Starts that spaCy derived from tokens that have no head, or from the heads of white space.
    derived = bool(((~has_head & (known[:, 0] != 0)) | (has_head & spaces_of_reference)).any())
    heads, hashes = aligned_heads(example)
    found, starts = np.full(len(predicted), -1), np.full(len(predicted), -1)
    whole = worded.all() or not (worded.any() or derived)
    some = None if not whole else some_starts(reference)
    if reference.has_annotation("SENT_START") and whole and some is None:
        starts = _starts(example, _at_words(known[:, 1] == 1, spaces_of_reference))
        spans = bounds(starts == 1, np.full(len(predicted), -np.inf), max_length)
    else:
        if worded.any():
            starts = _starts(example, _starts_of_part(own_heads, ~spaces_of_reference))
        elif some is not None:
            starts = _starts(example, _some_at_words(some, spaces_of_reference))
        spans = find_sentences(predicted, np.where(starts == 1, 1.0, -np.inf), max_length)
        _forget_roots(heads, spans)
    spaces = predicted.to_array(IS_SPACE).astype(bool)
    # Heads of white space are not learned. Neither are their labels, such as "dep", which the
    # component itself writes.
    heads[spaces | ((heads >= 0) & spaces[heads])] = -1
    starts[spaces] = -1
    # The first word after white space at the start of a doc always starts a sentence, so it needs
    # no score.
    starts[1 : int(np.argmin(spaces)) + 1] = -1
    arcs = np.flatnonzero((heads >= 0) & (heads != np.arange(len(heads))))
    found[arcs] = [_place(example, label, labels, component) for label in hashes[arcs].tolist()]
    return GoldTrees(spans, heads, found, starts)


def nothing_known(doc: Doc, max_length: int) -> GoldTrees:
    """Return the sentences set on a doc with tokens, with heads, labels and starts unknown."""
    unknown = np.full(len(doc), -1)
    return GoldTrees(set_sentences(doc, max_length), unknown, unknown, unknown)


def _at_words(starts: np.ndarray, spaces: np.ndarray) -> np.ndarray:
    """Move starts of sentences, except the first, from white space to the next word."""
    words, given = np.flatnonzero(~spaces), np.flatnonzero(starts)
    following = np.searchsorted(words, given)
    moved = np.zeros_like(starts)
    moved[:1] = True
    # The first token is a start already.
    moved[words[following[(following > 0) & (following < len(words))]]] = True
    return moved


def _some_at_words(given: np.ndarray, spaces: np.ndarray) -> np.ndarray:
    """Return the sentence starts of :func:`some_starts`: 1, 0, or −1 if unknown, ``(n,)``."""
    return np.where(_at_words(given == 1, spaces), 1, np.where(given == -1, 0, -1))


def _forget_roots(heads: np.ndarray, spans: Bounds) -> None:
    """Set heads of roots to unknown in spans with several roots.

    Such roots belong to sentences with unknown starts, and no tree over the span has all of them.
    Each may then have any head.
    """
    own = heads == np.arange(len(heads))
    for start, end in spans:
        if own[start:end].sum() > 1:
            heads[start:end][own[start:end]] = -1


def _starts_of_part(heads: np.ndarray, is_word: np.ndarray) -> np.ndarray:
    """Return :func:`_starts_of_whole_trees` for a reference with white space, ``(n,)``.

    White space may be the head of words, or lack a head. It is left out, with −1.
    """
    words = np.flatnonzero(is_word)
    # The last entry serves heads that are unknown, −1.
    number = np.full(len(heads) + 1, -1)
    number[words] = np.arange(len(words))
    starts = np.full(len(heads), -1)
    starts[words] = _starts_of_whole_trees(number[heads[words]])
    return starts


def _starts_of_whole_trees(heads: np.ndarray) -> np.ndarray:
    """Return the sentence starts that follow from whole trees: 1, 0, or −1 if unknown, ``(n,)``.

    A tree is whole if it contains all words from the first descendant of its root to the last. It
    is a sentence if it begins the doc or follows another whole tree, because a sentence has one
    root. Any other whole tree may be a part of its sentence, so whether it starts one is unknown.
    Its other words are unknown too: otherwise the model would see too many non-starts.

    Args:
        heads: ``(n,)``, at least one; −1 if unknown.
    """
    place = np.arange(len(heads))
    top = np.where(heads >= 0, heads, place)
    for _ in range(len(heads).bit_length()):
        top = top[top]
    first = np.append(0, np.flatnonzero(np.diff(top)) + 1)
    sizes, roots = np.diff(np.append(first, len(heads))), top[first]
    whole = (heads[roots] == roots) & (np.bincount(top, minlength=len(heads))[roots] == sizes)
    known = whole.copy()
    known[1:] &= whole[:-1]
    starts = np.repeat(np.where(known, 0, -1), sizes)
    starts[first[known]] = 1
    return starts


def _starts(example: Example, of_reference: np.ndarray) -> np.ndarray:
    """Return the sentence starts of the prediction from those of the reference."""
    predicted = len(example.predicted)
    if len(of_reference) == predicted and counterparts(example)[0].min(initial=0) >= 0:
        return of_reference.astype("int64")
    starts = np.zeros(predicted, dtype="int64")
    to_own = example.alignment.y2x
    for j in np.flatnonzero(of_reference < 0).tolist():
        # Only the first part of a token can start a sentence.
        starts[to_own[j][:1]] = -1
    for j in np.flatnonzero(of_reference > 0).tolist():
        # A reference token without a predicted token gives no start.
        starts[to_own[j][:1]] = 1
    return starts


def _place(example: Example, label: int, labels: Mapping[int, int], component: str) -> int:
    if not label:
        return -1
    if label == ROOT:
        # The message leaves out the text, so that Python shows it once for a corpus.
        warnings.warn(
            f"{component}: words of the references have a head and the label 'ROOT', which only "
            "roots have. Their heads are learned, their labels are not.",
            LatentWarning,
            stacklevel=5,
        )
        return -1
    if label not in labels:
        name = example.reference.vocab.strings[label]
        raise LatentError(
            f"{component}: the dependency label {name!r} is unknown; expected one of its "
            f"{len(labels)} labels. Call add_label({name!r}), or add it to the labels before "
            "training."
        )
    return labels[label]
