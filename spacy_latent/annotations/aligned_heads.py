"""Annotated heads of a reference at the tokens of its prediction."""

from __future__ import annotations

import numpy as np
from spacy.training import Example

from spacy_latent.annotations.heads import known_heads


def aligned_heads(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads of the reference at the n predicted tokens, and the hashes of their labels.

    A head is known if the reference has it, if the reference has the same token, and if one
    predicted token contains the head. Tokens into which spaCy divided a token of the reference have
    none, while ``Example.get_aligned_parse`` gives the head of the whole token to each of them.

    Returns:
        The heads, ``(n,)`` int64, as indices in the predicted doc: a root is its own head, and −1
        is an unknown head. Then the labels, ``(n,)`` uint64, with 0 for an unknown label.
    """
    to_gold, to_own = counterparts(example)
    given, hashes = known_heads(example.reference)
    heads = np.full(len(to_gold), -1, dtype="int64")
    labels = np.zeros(len(to_gold), dtype="uint64")
    (matched,) = np.nonzero(to_gold >= 0)
    own = given[to_gold[matched]]
    heads[matched] = np.where(own >= 0, to_own[own], -1)
    labels[matched] = hashes[to_gold[matched]]
    return heads, labels


def same_tokens(example: Example) -> bool:
    """Return whether reference and prediction have the same tokens."""
    ours, theirs = (doc.to_array("ORTH") for doc in (example.predicted, example.reference))
    return np.array_equal(ours, theirs)


def counterparts(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of prediction and reference that correspond.

    Returns:
        For each token of the prediction, the position of the identical token of the reference,
        ``(n,)``. For each token of the reference, the position of the token of the prediction that
        contains it, ``(m,)``. Both are −1 without such a token.
    """
    reference, predicted = example.reference, example.predicted
    if same_tokens(example):
        place = np.arange(len(predicted))
        return place, place
    to_gold, to_own = example.alignment.x2y, example.alignment.y2x
    own = np.array([_only(to_own[j]) for j in range(len(reference))], dtype="int64")
    gold = np.array([_only(to_gold[i]) for i in range(len(predicted))], dtype="int64")
    single = np.where(gold >= 0, own[gold] >= 0, False)
    return np.where(single, gold, -1), own


def _only(aligned: np.ndarray) -> int:
    return int(aligned[0]) if len(aligned) == 1 else -1
