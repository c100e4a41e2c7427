"""Statistics of structures, their agreement with references and each other, and verdicts in words.

Nothing here depends on the parts of a model.
"""

from spacy_latent.analysis.attachment import (
    PUNCTUATION,
    Attachments,
    ReferenceTree,
    attachment,
    attachment_table,
    attachments,
    build_attachment_scorer_v1,
    build_attachment_scorer_v2,
    edge_precision,
    reference_tree,
    score_attachment,
    score_trees,
    without_labels,
    without_words,
)
from spacy_latent.analysis.head_brackets import brackets_of_heads
from spacy_latent.analysis.task import confidence_interval
from spacy_latent.analysis.tree_measures import (
    SCORES,
    TREE_MEASURES,
    bracket_counts,
    build_tree_scorer_v1,
    score_tree_measures,
    shares,
    tree_counts,
    tree_table,
    whole,
)
from spacy_latent.analysis.trees import (
    BINARY_CONTROLS,
    CONTROLS,
    Heads,
    TreeStatistics,
    bracketing_f1,
    control_trees,
    nearest_operator,
    random_earlier_operator,
    tree_statistics,
)
from spacy_latent.analysis.yields import Yields, compare_yields, without_cycles

__all__ = [
    "BINARY_CONTROLS",
    "CONTROLS",
    "PUNCTUATION",
    "SCORES",
    "TREE_MEASURES",
    "Attachments",
    "Heads",
    "ReferenceTree",
    "TreeStatistics",
    "Yields",
    "attachment",
    "attachment_table",
    "attachments",
    "bracket_counts",
    "bracketing_f1",
    "brackets_of_heads",
    "build_attachment_scorer_v1",
    "build_attachment_scorer_v2",
    "build_tree_scorer_v1",
    "compare_yields",
    "confidence_interval",
    "control_trees",
    "edge_precision",
    "nearest_operator",
    "random_earlier_operator",
    "reference_tree",
    "score_attachment",
    "score_tree_measures",
    "score_trees",
    "shares",
    "tree_counts",
    "tree_statistics",
    "tree_table",
    "whole",
    "without_cycles",
    "without_labels",
    "without_words",
]
