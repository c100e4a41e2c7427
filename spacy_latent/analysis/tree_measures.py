"""Several measures of trees, some of which depend on the convention of the reference.

- attachment: share of the counted tokens with the head of the reference.
- whole trees: share of the texts in which every counted token has it.
- undirected: share of the arcs of the reference that are present in either direction.
- yields: F1 of the sets of the words under each head.
- one arc: share of the reference's sets that are connected by one arc.

For the last two see :mod:`spacy_latent.analysis.yields`. The first two cannot distinguish a wrong
tree from another convention. The last three cannot show that the tree follows the convention of the
reference. Read them together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from spacy.training import Example

from spacy_latent.analysis.attachment import (
    PUNCTUATION,
    ReferenceTree,
    Share,
    attachments,
    judged_trees,
    without_labels,
    without_words,
)
from spacy_latent.analysis.resampling import Value, accuracy, f_score, intervals
from spacy_latent.analysis.trees import Brackets, Heads
from spacy_latent.analysis.yields import compare_yields, without_cycles
from spacy_latent.errors import check_texts

# Function that returns the score of summed counts.
TREE_MEASURES: dict[str, Value] = {
    "attachment": accuracy,
    "whole trees": accuracy,
    "undirected": accuracy,
    "yields": f_score,
    "one arc": accuracy,
}


def tree_counts(
    predicted: Iterable[Heads],
    reference: Iterable[Heads],
    counted: Iterable[Sequence[bool] | np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return the counts of every text for each of :data:`TREE_MEASURES`, ``(D, c)`` float64.

    In yields, words of a cycle of a prediction count as having no head.

    Args:
        predicted: heads of each tree; a root is its own head, −1 if a token has no head.
        counted: mask of the tokens that count, for each tree; all by default.

    Raises:
        LatentError: if a tree of the reference has a cycle.
    """
    ours, theirs = list(predicted), list(reference)
    masks = None if counted is None else list(counted)
    arcs = attachments(ours, theirs, masks)
    yields = compare_yields(map(without_cycles, ours), theirs, masks)
    return {
        "attachment": arcs.directed,
        "whole trees": whole(arcs.directed),
        "undirected": arcs.undirected,
        "yields": yields.sets,
        "one arc": yields.one_arc,
    }


def whole(counts: np.ndarray) -> np.ndarray:
    """Convert counts of tokens to counts of texts.

    Args:
        counts: ``(D, 2)``, tokens that are right, and all tokens.

    Returns:
        ``(D, 2)``, 1 if all tokens are right, and 1 if there are any tokens.
    """
    right, total = counts.T
    return np.stack([(right == total) & (total > 0), total > 0], 1).astype("float64")


def tree_table(
    references: Sequence[ReferenceTree],
    trees: Mapping[str, Sequence[Heads]],
    counted: Sequence[np.ndarray],
    seed: int = 0,
) -> dict[str, dict[str, Share]]:
    """Return the scores of several sets of trees by each of :data:`TREE_MEASURES`.

    Args:
        trees: by name, heads of the predicted tokens.
        counted: masks of the tokens of the references that count.

    Returns:
        By name and measure, the share, 0 to 1, and the ends of its 95 % interval by the bootstrap
        over texts. They are NaN if no token counts.
    """
    gold = [tree.heads for tree in references]
    counts = {
        name: tree_counts(
            [tree.moved(heads) for tree, heads in zip(references, found, strict=True)],
            gold,
            counted,
        )
        for name, found in trees.items()
    }
    return shares(counts, TREE_MEASURES, seed)


def bracket_counts(
    predicted: Iterable[Brackets],
    reference: Iterable[Brackets],
    lists: Iterable[Brackets],
    counted: Iterable[Sequence[bool] | np.ndarray],
) -> dict[str, np.ndarray]:
    """Return counts ``(D, c)`` float64 of binary trees as spans (start, end).

    Single tokens are left out. "lists" does not depend on how the reference makes lists binary.

    Args:
        lists: spans of the lists of each text.
        counted: masks of the tokens that count in "lists".

    Returns:
        Counts by measure. "spans": right, predicted and reference spans. "whole trees": 1 if all
        spans of the reference are predicted, and 1 if it has any. "lists": number of spans in
        ``lists`` with the same counted tokens as a predicted span, and number of all spans in
        ``lists``.
    """
    spans, found = [], []
    for own, gold, wanted, mask in zip(predicted, reference, lists, counted, strict=True):
        ours = {span for span in own if span[1] - span[0] > 1}
        theirs = {span for span in gold if span[1] - span[0] > 1}
        spans.append((len(ours & theirs), len(ours), len(theirs)))
        before = np.concatenate([[0], np.cumsum(mask)]).tolist()
        there = {(before[start], before[end]) for start, end in ours}
        listed = {(before[start], before[end]) for start, end in wanted}
        found.append((len(listed & there), len(listed)))
    right = np.array(spans, dtype="float64").reshape(-1, 3)
    return {
        "spans": right,
        "whole trees": whole(right[:, [0, 2]]),
        "lists": np.array(found, dtype="float64").reshape(-1, 2),
    }


Key = TypeVar("Key", bound=Hashable)


def shares(
    counts: Mapping[Key, Mapping[str, np.ndarray]], measures: Mapping[str, Value], seed: int = 0
) -> dict[Key, dict[str, Share]]:
    """Return scores with their intervals from counts of the same texts and the same resamples.

    Args:
        counts: ``(D, c)`` by name and measure.
    """
    table: dict[Key, dict[str, Share]] = {name: {} for name in counts}
    for measure, value in measures.items():
        there = [name for name in counts if measure in counts[name]]
        if there:
            found = intervals([counts[name][measure] for name in there], seed, value)
            for name, share in zip(there, found):
                table[name][measure] = share
    return table


# ---------------------------------------------------------------- spaCy's scorers

# Names of the measures in scorers.
SCORES = {
    "attachment": "latent_uas",
    "whole trees": "latent_whole_trees",
    "undirected": "latent_undirected",
    "yields": "latent_yield_f",
    "one arc": "latent_one_arc",
}


def score_tree_measures(
    examples: Iterable[Example],
    component: str,
    ignore_labels: Sequence[str] = PUNCTUATION,
    ignore: Sequence[str] = (),
    **options: object,
) -> dict[str, float]:
    """Score the annotation of ``component`` against the heads of the references by every measure.

    Args:
        ignore_labels: labels of reference tokens that do not count.
        ignore: texts of reference tokens that do not count.

    Returns:
        ``latent_uas``, ``latent_whole_trees``, ``latent_undirected``, ``latent_yield_f`` and
        ``latent_one_arc``, 0 to 1. A measure is absent if nothing counts in it. The dict is empty
        if no example has reference heads and a latent tree. A LatentWarning is given if no doc has
        an annotation of ``component``.
    """
    references, predicted = judged_trees("tree_scorer", examples, component)
    masks = without_labels(references, ignore_labels), without_words(references, ignore)
    counted = [by_label & by_word for by_label, by_word in zip(*masks)]
    counts = tree_counts(predicted, [tree.heads for tree in references], counted)
    found = {name: float(TREE_MEASURES[name](each.sum(0))) for name, each in counts.items()}
    return {SCORES[name]: share for name, share in found.items() if not np.isnan(share)}


def build_tree_scorer_v1(
    component: str = "latent_encoder",
    ignore_labels: Sequence[str] = PUNCTUATION,
    ignore: Sequence[str] = (),
) -> Callable[..., dict[str, float]]:
    """Build a scorer of trees for spaCy's ``scorers`` registry.

    For the arguments see :func:`score_tree_measures`. Reference and prediction may have different
    tokens.
    """
    check_texts("tree_scorer", ignore_labels=ignore_labels, ignore=ignore)
    return partial(
        score_tree_measures,
        component=component,
        ignore_labels=tuple(ignore_labels),
        ignore=tuple(ignore),
    )
