"""How many heads of reference trees other trees have: for scorers, commands and reports alike.

Trees are arrays of heads, see :mod:`spacy_latent.analysis.trees`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from spacy_latent.analysis.task import intervals
from spacy_latent.analysis.trees import Heads
from spacy_latent.annotations.heads import known_heads
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.training import Example

# What spaCy's scorer of dependencies leaves out.
PUNCTUATION = ("p", "punct")


@dataclass
class Attachments:
    """Counts for each of D texts.

    directed: ``(D, 2)``, tokens with the head of the reference, tokens. undirected: ``(D, 2)``,
    arcs of the reference that are there in one direction or the other, arcs.
    relations: for each relation of the reference the counts over all texts: tokens, directed,
    arcs, undirected. A root has no arc.
    """

    directed: np.ndarray
    undirected: np.ndarray
    relations: dict[str, tuple[int, int, int, int]]


def attachments(
    predicted: Iterable[Heads],
    reference: Iterable[Heads],
    counted: Iterable[Sequence[bool] | np.ndarray] | None = None,
    relations: Iterable[Sequence[str]] | None = None,
) -> Attachments:
    """Compare trees with those of the reference, both as heads, a root being its own.

    counted: for each tree which tokens count; all by default. relations: names for each token.
    """
    directed, undirected, rows = [], [], []
    place: dict[str, int] = {}
    masks: Iterable[Any] = repeat(None) if counted is None else counted
    names: Iterable[Any] = repeat(None) if relations is None else relations
    pairs = zip(predicted, reference, strict=True)
    for (own, gold), mask, named in zip(pairs, masks, names):
        if len(own) != len(gold):
            raise LatentError(
                f"A tree of {number_of(len(own), 'token')} is compared with a reference of "
                f"{len(gold)}."
            )
        ours, theirs = np.asarray(own, dtype="int64"), np.asarray(gold, dtype="int64")
        token = np.arange(len(ours))
        known = np.ones(len(ours), bool) if mask is None else np.asarray(mask, bool)
        same = (ours == theirs) & known
        is_arc = (theirs != token) & known
        # theirs may lie outside where a token does not count.
        inside = np.where(is_arc, theirs, 0)
        either = is_arc & ((ours == theirs) | (ours[inside] == token)) if len(ours) else same
        directed.append((same.sum(), known.sum()))
        undirected.append((either.sum(), is_arc.sum()))
        if named is not None:
            numbers = [place.setdefault(name, len(place)) for name in named]
            rows.append(np.array([numbers, known, same, is_arc, either], dtype="int64"))
    by_relation = {}
    if rows:
        numbered, *marks = np.concatenate(rows, 1)
        counts = np.stack([np.bincount(numbered, mark, len(place)) for mark in marks], 1)
        found = {name: counts[i].astype(int).tolist() for name, i in place.items()}
        by_relation = {name: (t, d, a, u) for name, (t, d, a, u) in found.items() if t}
    return Attachments(
        np.array(directed, dtype="float64").reshape(-1, 2),
        np.array(undirected, dtype="float64").reshape(-1, 2),
        by_relation,
    )


def attachment(
    predicted: Iterable[Heads],
    reference: Iterable[Heads],
    counted: Iterable[Sequence[bool] | np.ndarray] | None = None,
) -> float:
    """Unlabelled attachment: share of tokens with the head of the reference, 0 to 1.

    counted: for each tree, which tokens count; all by default. NaN where none does.
    """
    right, total = attachments(predicted, reference, counted).directed.sum(0)
    return float(right / total) if total else float("nan")


# ---------------------------------------------------------------- references


@dataclass(frozen=True)
class ReferenceTree:
    """The reference of an example with n tokens, and the way to them from those of the prediction.

    heads: ``(n,)``, −1 where the reference has none. labels, words: of each token.
    own: ``(n,)``, the predicted token that is this one, −1 where none or several are. back: for
        each predicted token the token of the reference that it is, or −1.
    """

    heads: np.ndarray
    labels: list[str]
    words: list[str]
    own: np.ndarray
    back: np.ndarray

    @property
    def known(self) -> np.ndarray:
        return self.heads >= 0

    def moved(self, heads: Heads) -> np.ndarray:
        """Heads of the predicted tokens, −1 for none, at the tokens of the reference: −1 where an
        end of an arc is not one token of both."""
        given = np.asarray(heads, dtype="int64")
        moved = np.full(len(self.own), -1, dtype="int64")
        there = np.flatnonzero(self.own >= 0)
        head = given[self.own[there]]
        moved[there] = np.where(head >= 0, self.back[head], -1)
        return moved


def reference_tree(example: Example) -> ReferenceTree | None:
    """None where the reference has no heads, or no tokens."""
    doc = example.reference
    if not len(doc) or not doc.has_annotation("DEP"):
        return None
    heads, labels = known_heads(doc)
    alignment = example.alignment
    to_own, back = _only(alignment.y2x), _only(alignment.x2y)
    own = np.where((to_own >= 0) & (back[to_own] >= 0), to_own, -1) if len(back) else to_own
    return ReferenceTree(
        heads,
        [doc.vocab.strings[label] for label in labels.tolist()],
        [token.text for token in doc],
        own,
        back,
    )


def _only(aligned: Any) -> np.ndarray:
    """For each token the one that it is aligned with, −1 where that is not one."""
    lengths = np.asarray(aligned.lengths, dtype="int64")
    found = np.full(len(lengths), -1, dtype="int64")
    one = lengths == 1
    found[one] = np.asarray(aligned.data)[(np.cumsum(lengths) - lengths)[one]]
    return found


def without_labels(references: Sequence[ReferenceTree], labels: Iterable[str]) -> list[np.ndarray]:
    """Which tokens count: those with a head whose label, in lower case, is none of these."""
    left_out = {label.lower() for label in labels}
    return [
        tree.known & [label.lower() not in left_out for label in tree.labels] for tree in references
    ]


def without_words(references: Sequence[ReferenceTree], words: Iterable[str]) -> list[np.ndarray]:
    """Which tokens count: those with a head that are none of these words."""
    left_out = set(words)
    return [tree.known & [word not in left_out for word in tree.words] for tree in references]


Share = tuple[float, float, float]


def attachment_table(
    references: Sequence[ReferenceTree],
    trees: Mapping[str, Sequence[Heads]],
    counted: Mapping[str, Sequence[np.ndarray]],
    seed: int = 0,
) -> dict[str, dict[str, Share]]:
    """Unlabelled attachment of several sets of trees, each in several ways to count: the share, 0
    to 1, with the ends of its 95 % interval by the bootstrap over texts, NaN where nothing counts.

    trees: by name, heads of the predicted tokens. counted: by name, which tokens of the references.
    """
    gold = [tree.heads for tree in references]
    table: dict[str, dict[str, Share]] = {name: {} for name in trees}
    moved = {
        name: [tree.moved(heads) for tree, heads in zip(references, found, strict=True)]
        for name, found in trees.items()
    }
    for way, masks in counted.items():
        counts = [attachments(found, gold, masks).directed for found in moved.values()]
        for name, share in zip(moved, intervals(counts, seed)):
            table[name][way] = share
    return table


def edge_precision(
    predicted: Iterable[Heads],
    reference: Iterable[Heads],
    counted: Iterable[Sequence[bool] | np.ndarray],
) -> float:
    """The share of the arcs between tokens that the reference has, 0 to 1, as a mean over texts, as
    the literature of latent arborescences has it (Paulus et al. 2020). Roots have no arc, and an
    arc counts where both of its tokens do. Of trees with a single root it is the recall as well. A
    text without an arc of either counts as 1, and one without a predicted arc as 0.

    predicted, reference: trees as heads, a root being its own, −1 where there is none. counted:
        which tokens count.
    """
    shares = []
    for own, gold, mask in zip(predicted, reference, counted, strict=True):
        ours, theirs = np.asarray(own, dtype="int64"), np.asarray(gold, dtype="int64")
        known, token = np.asarray(mask, bool), np.arange(len(ours))
        arcs, wanted = (
            (heads != token) & (heads >= 0) & known & known[np.maximum(heads, 0)]
            for heads in (ours, theirs)
        )
        right = arcs & wanted & (ours == theirs)
        shares.append(right.sum() / arcs.sum() if arcs.any() else float(not wanted.any()))
    return float(np.mean(shares)) if shares else math.nan


# ---------------------------------------------------------------- spaCy's scorers


def score_attachment(
    examples: Iterable[Example], component: str, ignore: Sequence[str] = (), **options: object
) -> dict[str, float]:
    """Attachment of what ``component`` annotated to the heads of the reference.

    component: by its name in the pipeline.
    ignore: texts of tokens that ``latent_uas_part`` leaves out; it is there if there are any.
    RETURNS: ``latent_uas`` and ``latent_uas_part``, 0 to 1. Nothing where no example has reference
        heads and a latent tree.
    """
    predicted, reference, counted = [], [], []
    for example in examples:
        annotation = example.predicted._.latent.get(component)
        if annotation is None or not example.reference.has_annotation("HEAD"):
            continue
        predicted.append(annotation.heads)
        reference.append([token.head.i for token in example.reference])
        counted.append([token.text not in ignore for token in example.reference])
    if not predicted:
        return {}
    scores = {"latent_uas": attachment(predicted, reference)}
    if ignore:
        scores["latent_uas_part"] = attachment(predicted, reference, counted)
    return scores


def build_attachment_scorer_v1(
    component: str = "latent_encoder", ignore: Sequence[str] = ()
) -> Callable[..., dict[str, float]]:
    """A scorer of spaCy's ``scorers`` registry; arguments as for :func:`score_attachment`. The
    tokens of the reference must be those of the prediction."""
    return partial(score_attachment, component=component, ignore=tuple(ignore))


def score_trees(
    examples: Iterable[Example],
    component: str,
    ignore_labels: Sequence[str] = PUNCTUATION,
    **options: object,
) -> dict[str, float]:
    """Unlabelled attachment of what ``component`` annotated to the heads of the references.

    component: by its name in the pipeline.
    ignore_labels: tokens of these labels in the reference do not count, as in spaCy's ``dep_uas``.
    RETURNS: ``latent_uas``, 0 to 1. Nothing where no example has reference heads and a latent tree.
    """
    references, predicted = [], []
    for example in examples:
        annotation = example.predicted._.latent.get(component)
        tree = None if annotation is None else reference_tree(example)
        if annotation is not None and tree is not None:
            references.append(tree)
            predicted.append(tree.moved(annotation.heads))
    gold = [tree.heads for tree in references]
    share = attachment(predicted, gold, without_labels(references, ignore_labels))
    return {} if np.isnan(share) else {"latent_uas": share}


def build_attachment_scorer_v2(
    component: str = "latent_encoder", ignore_labels: Sequence[str] = PUNCTUATION
) -> Callable[..., dict[str, float]]:
    """A scorer of spaCy's ``scorers`` registry; arguments as for :func:`score_trees`. The tokens of
    the reference may be others than those of the prediction."""
    return partial(score_trees, component=component, ignore_labels=tuple(ignore_labels))
