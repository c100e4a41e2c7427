"""Statistics of structures, their agreement with references and with each other, and what these say
in words. Nothing here knows what a model is made of."""

from spacy_latent.analysis.attachment import (
    PUNCTUATION,
    Attachments,
    ReferenceTree,
    attachment,
    attachment_table,
    attachments,
    build_attachment_scorer_v1,
    build_attachment_scorer_v2,
    reference_tree,
    score_attachment,
    score_trees,
    without_labels,
    without_words,
)
from spacy_latent.analysis.task import confidence_interval
from spacy_latent.analysis.trees import (
    BINARY_CONTROLS,
    CONTROLS,
    Heads,
    TreeStatistics,
    bracketing_f1,
    control_trees,
    nearest_operator,
    tree_statistics,
)

__all__ = [
    "BINARY_CONTROLS",
    "CONTROLS",
    "PUNCTUATION",
    "Attachments",
    "Heads",
    "ReferenceTree",
    "TreeStatistics",
    "attachment",
    "attachment_table",
    "attachments",
    "bracketing_f1",
    "build_attachment_scorer_v1",
    "build_attachment_scorer_v2",
    "confidence_interval",
    "control_trees",
    "nearest_operator",
    "reference_tree",
    "score_attachment",
    "score_trees",
    "tree_statistics",
    "without_labels",
    "without_words",
]
