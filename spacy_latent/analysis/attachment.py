"""Attachment of trees to reference heads, for scorers, commands and reports.

Trees are arrays of heads, see :mod:`spacy_latent.analysis.trees`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from spacy.training import Example

from spacy_latent.analysis.resampling import intervals
from spacy_latent.analysis.scores import warn_without_annotations
from spacy_latent.analysis.trees import Heads
from spacy_latent.annotations.heads import known_heads
from spacy_latent.errors import LatentError, check_texts, number_of

# Labels that spaCy's scorer of dependencies leaves out.
PUNCTUATION = ("p", "punct")


@dataclass
class Attachments:
    """Counts for each of D texts.

    A root has no arc.

    Attributes:
        directed: ``(D, 2)``, number of tokens with the reference head, and number of tokens.
        undirected: ``(D, 2)``, number of reference arcs that are present in either direction, and
            number of reference arcs.
        relations: for each relation of the reference the counts over all texts: tokens, directed,
            arcs, undirected.
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
    """Compare trees with reference trees.

    Args:
        predicted: heads of each tree; a root is its own head.
        counted: mask of the tokens that count, for each tree; all by default.
        relations: names of the relations, for each token.

    Raises:
        LatentError: if a tree and its reference differ in size.
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
                f"{len(gold)}; expected the same tokens in both."
            )
        ours, theirs = np.asarray(own, dtype="int64"), np.asarray(gold, dtype="int64")
        token = np.arange(len(ours))
        known = np.ones(len(ours), bool) if mask is None else np.asarray(mask, bool)
        same = (ours == theirs) & known
        is_arc = (theirs != token) & known
        # Heads in ``theirs`` may be out of range at tokens that do not count.
        inside = np.where(is_arc, theirs, 0)
        either = is_arc & ((ours == theirs) | (ours[inside] == token))
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
    """Return the unlabelled attachment: the share of tokens with the reference head, 0 to 1.

    Args:
        counted: mask of the tokens that count, for each tree; all by default.

    Returns:
        The share, NaN if no token counts.
    """
    right, total = attachments(predicted, reference, counted).directed.sum(0)
    return float(right / total) if total else float("nan")


# ---------------------------------------------------------------- references


@dataclass(frozen=True)
class ReferenceTree:
    """Reference of an example with n tokens, and its alignment with the tokens of the prediction.

    Attributes:
        heads: ``(n,)``, −1 if the reference has no head for the token.
        own: ``(n,)``, the predicted token that is aligned with this token alone, −1 if there is
            none.
        back: for each predicted token the identical token of the reference, or −1.
    """

    heads: np.ndarray
    labels: list[str]
    words: list[str]
    own: np.ndarray
    back: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Mask of the tokens for which the reference has a head, ``(n,)``."""
        return self.heads >= 0

    def moved(self, heads: Heads) -> np.ndarray:
        """Map heads of the predicted tokens to the tokens of the reference.

        Args:
            heads: heads of the predicted tokens, −1 if a token has no head.

        Returns:
            Heads of the reference tokens; −1 if an end of the arc is not a single token in both
            tokenizations.
        """
        given = np.asarray(heads, dtype="int64")
        moved = np.full(len(self.own), -1, dtype="int64")
        there = np.flatnonzero(self.own >= 0)
        head = given[self.own[there]]
        moved[there] = np.where(head >= 0, self.back[head], -1)
        return moved


def reference_tree(example: Example) -> ReferenceTree | None:
    """Return the reference tree of an example, None if the reference has no heads or no tokens."""
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
    """Return the single token that each token is aligned with, −1 if there is not exactly one."""
    lengths = np.asarray(aligned.lengths, dtype="int64")
    found = np.full(len(lengths), -1, dtype="int64")
    one = lengths == 1
    found[one] = np.asarray(aligned.data)[(np.cumsum(lengths) - lengths)[one]]
    return found


def without_labels(references: Sequence[ReferenceTree], labels: Iterable[str]) -> list[np.ndarray]:
    """Return masks of the tokens with a head whose label, in lower case, is not in ``labels``."""
    left_out = {label.lower() for label in labels}
    return [
        tree.known & [label.lower() not in left_out for label in tree.labels] for tree in references
    ]


def without_words(references: Sequence[ReferenceTree], words: Iterable[str]) -> list[np.ndarray]:
    """Return masks of the tokens with a head whose text is not in ``words``."""
    left_out = set(words)
    return [tree.known & [word not in left_out for word in tree.words] for tree in references]


Share = tuple[float, float, float]


def attachment_table(
    references: Sequence[ReferenceTree],
    trees: Mapping[str, Sequence[Heads]],
    counted: Mapping[str, Sequence[np.ndarray]],
    seed: int = 0,
) -> dict[str, dict[str, Share]]:
    """Return the unlabelled attachment of several sets of trees under several masks.

    Args:
        trees: by name, heads of the predicted tokens.
        counted: by name, masks of the tokens of the references that count.

    Returns:
        By name of the trees and of the mask, the share, 0 to 1, and the ends of its 95 % interval
        by the bootstrap over texts. They are NaN if no token counts.
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
    """Return the mean over texts of the share of predicted arcs that the reference has.

    The definition is from the literature on latent arborescences (Paulus et al. 2020). Arcs connect
    two tokens, and a root has no arc. An arc counts if both of its tokens count. If every tree has
    a single root, the precision equals the recall. A text scores 1 if neither tree has an arc, and
    0 if only the reference has arcs.

    Args:
        predicted: heads of each tree; a root is its own head, −1 if a token has no head.
        counted: masks of the tokens that count.
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
    """Score the attachment of the annotation of ``component`` to the heads of the reference.

    Tokens without a head in the reference do not count.

    Args:
        ignore: texts of tokens that the score ``latent_uas_part`` leaves out. If empty, there is no
            such score.

    Returns:
        ``latent_uas`` and ``latent_uas_part``, 0 to 1. The dict is empty if no example has
        reference heads and a latent tree. A LatentWarning is given if no doc has an annotation of
        ``component``.
    """
    predicted, reference, known, counted = [], [], [], []
    examples = list(examples)
    _warn("attachment_scorer", examples, component)
    for example in examples:
        annotation = example.predicted._.latent.get(component)
        if annotation is None or not example.reference.has_annotation("HEAD"):
            continue
        gold = example.reference
        predicted.append(annotation.heads)
        reference.append([token.head.i for token in gold])
        # References without labels may have heads.
        labelled = gold.has_annotation("DEP")
        known.append(known_heads(gold)[0] >= 0 if labelled else np.ones(len(gold), bool))
        kept = np.array([token.text not in ignore for token in gold], dtype=bool)
        counted.append(known[-1] & kept)
    scores = {"latent_uas": attachment(predicted, reference, known)}
    if ignore:
        scores["latent_uas_part"] = attachment(predicted, reference, counted)
    return {name: share for name, share in scores.items() if not np.isnan(share)}


def build_attachment_scorer_v1(
    component: str = "latent_encoder", ignore: Sequence[str] = ()
) -> Callable[..., dict[str, float]]:
    """Build a scorer of attachment for spaCy's ``scorers`` registry.

    For the arguments see :func:`score_attachment`. Reference and prediction must have the same
    tokens.
    """
    check_texts("attachment_scorer", ignore=ignore)
    return partial(score_attachment, component=component, ignore=tuple(ignore))


def score_trees(
    examples: Iterable[Example],
    component: str,
    ignore_labels: Sequence[str] = PUNCTUATION,
    **options: object,
) -> dict[str, float]:
    """Score the unlabelled attachment of ``component`` to the heads of the references.

    Args:
        ignore_labels: labels of reference tokens that do not count, as in spaCy's ``dep_uas``.

    Returns:
        ``latent_uas``, 0 to 1. The dict is empty if no example has reference heads and a latent
        tree. A LatentWarning is given if no doc has an annotation of ``component``.
    """
    references, predicted = judged_trees("attachment_scorer", examples, component)
    gold = [tree.heads for tree in references]
    share = attachment(predicted, gold, without_labels(references, ignore_labels))
    return {} if np.isnan(share) else {"latent_uas": share}


def judged_trees(
    scorer: str, examples: Iterable[Example], component: str
) -> tuple[list[ReferenceTree], list[np.ndarray]]:
    """Return the references of the texts that ``component`` annotated, and its heads in them.

    Args:
        scorer: its name, for a warning if no text is annotated by ``component``.
    """
    references, predicted = [], []
    examples = list(examples)
    _warn(scorer, examples, component)
    for example in examples:
        annotation = example.predicted._.latent.get(component)
        tree = None if annotation is None else reference_tree(example)
        if annotation is not None and tree is not None:
            references.append(tree)
            predicted.append(tree.moved(annotation.heads))
    return references, predicted


def _warn(scorer: str, examples: Iterable[Example], component: str) -> None:
    warn_without_annotations(
        scorer,
        examples,
        component,
        "scores of trees are",
        "Set component in the block of the scorer to the name of the component whose trees are "
        "scored. Its annotate may not be 'none'.",
    )


def build_attachment_scorer_v2(
    component: str = "latent_encoder", ignore_labels: Sequence[str] = PUNCTUATION
) -> Callable[..., dict[str, float]]:
    """Build a scorer of attachment for spaCy's ``scorers`` registry.

    For the arguments see :func:`score_trees`. Reference and prediction may have different tokens.
    """
    check_texts("attachment_scorer", ignore_labels=ignore_labels)
    return partial(score_trees, component=component, ignore_labels=tuple(ignore_labels))
