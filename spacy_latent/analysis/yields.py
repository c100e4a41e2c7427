"""Comparison of the sets of words under each head, regardless of which word is the head.

Attachment depends on the convention of the reference: in ListOps an operator is the head of its
list. A tree in which ``]`` is the head groups the same words, but has hardly any head in common
with the reference. The counts of this module are the same for both trees:

- The *yield* of a word is the set of the word and all words under it. In ListOps the yield of an
operator is its list. - A yield of the reference is connected by *one arc* if removing a single arc
of the other tree separates its words from all others (a split of the undirected tree, as in
Robinson and Foulds 1981).

These sets consist of counted words only. A set counts if it has two or more words and is not the
yield of a root of the reference, which every tree of the sentence has.

Trees are arrays of heads, see :mod:`spacy_latent.analysis.trees`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spacy_latent.analysis.trees import Heads
from spacy_latent.errors import LatentError, number_of


@dataclass(frozen=True)
class Yields:
    """Counts for each of D texts, float64.

    Attributes:
        sets: ``(D, 3)``, yields that the tree and its reference share, yields of the tree, and
            yields of the reference. :func:`spacy_latent.analysis.resampling.f_score` takes these.
        one_arc: ``(D, 2)``, yields of the reference that are connected by one arc of the tree, and
            all yields of the reference.
    """

    sets: np.ndarray
    one_arc: np.ndarray


def compare_yields(
    predicted: Iterable[Heads],
    reference: Iterable[Heads],
    counted: Iterable[Sequence[bool] | np.ndarray] | None = None,
) -> Yields:
    """Compare trees with reference trees.

    If the reference of a text has an unknown head, −1, the counts of the text are 0, since its
    yields are unknown.

    Args:
        predicted: heads of each tree. A root is its own head. A word with −1 has no head.
        counted: mask of the words in the sets, for each tree; all by default. Other words may still
            be heads.

    Raises:
        LatentError: if a tree and its reference differ in size, a head is outside of the text, or a
            tree has a cycle. :func:`without_cycles` removes the cycles of a prediction.
    """
    theirs = list(reference)
    masks = [np.ones(len(tree), bool) for tree in theirs] if counted is None else counted
    pairs = list(zip(predicted, theirs, strict=True))
    for own, other in pairs:
        if len(own) != len(other):
            raise LatentError(
                f"A tree of {number_of(len(own), 'token')} is compared with a reference of "
                f"{len(other)}; expected the same tokens in both."
            )
    marks = [np.asarray(mask, bool) for mask in masks]
    known = [bool((np.asarray(tree) >= 0).all()) for tree in theirs]
    kept = [d for d, whole in enumerate(known) if whole and len(theirs[d])]
    mask = [marks[d] for d in kept]
    ours = _Forest([pairs[d][0] for d in kept], mask, [f"tree {d}" for d in kept])
    gold = _Forest([pairs[d][1] for d in kept], mask, [f"reference {d}" for d in kept])

    whole = np.sort(gold.prints[gold.roots == np.arange(len(gold.roots))])
    wanted, words = gold.sets(whole)
    found, others = ours.sets(whole)
    arc = ours.roots != np.arange(len(ours.roots))
    below = ours.prints[arc]
    above = ours.prints[ours.roots[arc]] - below
    right = _among(wanted, found)
    divided = _among(wanted, np.sort(below)) | _among(wanted, np.sort(above))

    texts = np.array(kept, dtype="int64")[gold.text] if kept else gold.text

    def count(tokens: np.ndarray) -> np.ndarray:
        return np.bincount(texts[tokens], minlength=len(theirs)).astype("float64")

    total = count(words)
    return Yields(
        np.stack([count(words[right]), count(others), total], 1),
        np.stack([count(words[divided]), total], 1),
    )


class _Forest:
    """Trees of several texts over their N words together.

    Sets of words are compared by hashes: every word has a random number, and the hash of a set is
    the sum of the numbers of its words. Two different sets have the same hash with a probability of
    2⁻⁶⁴ (after Zobrist 1970).

    Attributes:
        text: place of the text of each word.
        roots: root above each word; a word without a head is its own root.
        prints: hash of the set of counted words under each word, uint64.
    """

    def __init__(
        self, trees: Sequence[Heads], counted: Sequence[np.ndarray], names: Sequence[str]
    ) -> None:
        lengths = np.array([len(tree) for tree in trees], dtype="int64")
        self.text = np.repeat(np.arange(len(trees)), lengths)
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        word = np.arange(len(first))
        empty = np.zeros(0, dtype="int64")
        heads = np.concatenate([empty, *(np.asarray(tree, dtype="int64") for tree in trees)])
        outside = np.flatnonzero(heads >= np.repeat(lengths, lengths))
        if len(outside):
            text = self.text[outside[0]]
            raise LatentError(
                f"The {names[text]} has {number_of(lengths[text], 'token')} and a head of index "
                f"{heads[outside[0]]}; expected indices of its tokens, and −1 for none."
            )
        parent = np.where(heads < 0, word, heads + first)
        mask = np.concatenate([empty.astype(bool), *counted])
        numbers = np.random.default_rng(0).integers(
            0, 2**64, len(word), dtype="uint64", endpoint=False
        )
        self.prints = np.where(mask, numbers, np.uint64(0))
        self.sizes = mask.astype("int64")
        level, self.roots = _levels(parent, self.text, lengths, names)
        order = np.argsort(-level, kind="stable")
        ends = np.searchsorted(-level[order], np.arange(-int(level.max(initial=0)), 1), "right")
        start = 0
        # From the deepest words up, so that each sum is complete before it is added to its head.
        for end in ends[:-1].tolist():
            deep = order[start:end]
            np.add.at(self.prints, parent[deep], self.prints[deep])
            np.add.at(self.sizes, parent[deep], self.sizes[deep])
            start = end

    def sets(self, but: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the different sets of two or more words, without those in ``but``.

        Args:
            but: sorted hashes of sets.

        Returns:
            Sorted hashes of the sets, and for each set a word that has it under it.
        """
        words = np.flatnonzero(self.sizes > 1)
        words = words[~_among(self.prints[words], but)]
        words = words[np.argsort(self.prints[words])]
        prints = self.prints[words]
        # A word that does not count has the same set as a modifier of it, if all counted words
        # under the word are under this modifier.
        new = np.diff(prints, prepend=~prints[:1]) != 0
        return prints[new], words[new]


def _among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return which of the values are in a sorted array, without the table that np.isin builds."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    place = np.searchsorted(ordered, values)
    return ordered[np.minimum(place, len(ordered) - 1)] == values


def _levels(
    parent: np.ndarray, text: np.ndarray, lengths: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each word the number of arcs above it, and the root that they lead to.

    Raises:
        LatentError: if the heads contain a cycle.
    """
    top = parent
    level = (parent != np.arange(len(parent))).astype("int64")
    # Each step doubles the number of arcs climbed.
    for _ in range(int(lengths.max(initial=0)).bit_length()):
        level += level[top]
        top = top[top]
    endless = np.flatnonzero(parent[top] != top)
    if len(endless):
        raise LatentError(
            f"The heads of {names[text[endless[0]]]} hold a cycle, so they are no tree."
        )
    return level, top


def without_cycles(heads: Heads) -> np.ndarray:
    """Return heads ``(n,)`` int64 in which the words of a cycle have no head, −1.

    It makes a forest of a prediction that need not be a tree, such as the best head of each word
    alone.
    """
    own = np.array(heads, dtype="int64")
    word = np.arange(len(own))
    jump = np.where(own < 0, word, own)
    # After these steps a word is at a root or on a cycle, and every word of a cycle is reached.
    for _ in range(max(1, len(own)).bit_length()):
        jump = jump[jump]
    reached = np.unique(jump)
    own[reached[(own[reached] >= 0) & (own[reached] != reached)]] = -1
    return own
