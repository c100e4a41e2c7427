"""Which words hang together in a tree, whichever of them heads the others.

Attachment to a reference follows a convention: in ListOps an operator heads its list. A tree in
which ``]`` heads the list in its place says the same of what belongs together, and has hardly a
head of the reference. What is counted here does not tell the two apart:

- the *yield* of a word is the set of the words under it, itself among them: of a head of the
  reference what it puts together, of an operator its list;
- a yield of the reference hangs together by *one arc* if cutting a single arc of the other tree
  divides its words from all others (a split of the tree without its direction, as in Robinson and
  Foulds 1981).

Only counted words are in these sets. A set counts if it has two words and more and is not that of a
root of the reference: every tree of the sentence has that one.

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

    sets: ``(D, 3)``, yields that the tree and its reference both have, of the tree, of the
        reference: what :func:`spacy_latent.analysis.task.f_score` takes. one_arc: ``(D, 2)``,
        yields of the reference that hang together by one arc of the tree, all of the reference.
    """

    sets: np.ndarray
    one_arc: np.ndarray


def compare_yields(
    predicted: Iterable[Heads],
    reference: Iterable[Heads],
    counted: Iterable[Sequence[bool] | np.ndarray] | None = None,
) -> Yields:
    """Compare trees with those of the reference, both as heads, a root being its own.

    counted: for each tree which words are in the sets; all by default. Others may still be heads.

    A word of the tree whose head is −1 hangs on nothing. A text whose reference has a head of −1
    has counts of 0, since its yields are not known.

    Raises LatentError where a tree and its reference differ in size, for a head outside of the
    text, and for a cycle; :func:`without_cycles` opens those of a prediction.
    """
    theirs = list(reference)
    masks = [np.ones(len(tree), bool) for tree in theirs] if counted is None else counted
    pairs = list(zip(predicted, theirs, strict=True))
    for own, other in pairs:
        if len(own) != len(other):
            raise LatentError(
                f"A tree of {number_of(len(own), 'token')} is compared with a reference of "
                f"{len(other)}."
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
    """The trees of several texts over their N words together.

    text: of each word, its place among the texts. roots: the word that it is under, after the last
    arc; itself where it hangs on nothing. prints: a number for the set of the counted words under
    it, uint64; sizes: how many these are.

    Every word has a random number, and a set the sum of those of its words: two different sets have
    the same with a probability of 2⁻⁶⁴ (after Zobrist 1970).
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
        # From the deepest words up, so that each has all that is under it before it is added.
        for end in ends[:-1].tolist():
            deep = order[start:end]
            np.add.at(self.prints, parent[deep], self.prints[deep])
            np.add.at(self.sizes, parent[deep], self.sizes[deep])
            start = end

    def sets(self, but: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The different sets of two words and more other than those in ``but``, which is sorted;
        sorted, too, and for each a word that has it under it."""
        words = np.flatnonzero(self.sizes > 1)
        words = words[~_among(self.prints[words], but)]
        words = words[np.argsort(self.prints[words])]
        prints = self.prints[words]
        # A head that does not count, over one word that does, has the set of that word.
        new = np.diff(prints, prepend=~prints[:1]) != 0
        return prints[new], words[new]


def _among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Which of the values are in a sorted array: faster than np.isin, which makes a table."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    place = np.searchsorted(ordered, values)
    return ordered[np.minimum(place, len(ordered) - 1)] == values


def _levels(
    parent: np.ndarray, text: np.ndarray, lengths: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """For each word the number of arcs above it, and the word that these lead to."""
    top = parent
    level = (parent != np.arange(len(parent))).astype("int64")
    # Each time twice as far up.
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
    """Heads ``(n,)`` int64 in which the words of a cycle have none, −1: what is left of a
    prediction that need not be a tree, such as the best head of each word alone."""
    own = np.array(heads, dtype="int64")
    word = np.arange(len(own))
    jump = np.where(own < 0, word, own)
    # After so many steps a word is at a root or on a cycle, and every word of a cycle is reached.
    for _ in range(max(1, len(own)).bit_length()):
        jump = jump[jump]
    reached = np.unique(jump)
    own[reached[(own[reached] >= 0) & (own[reached] != reached)]] = -1
    return own


__all__ = ["Yields", "compare_yields", "without_cycles"]
