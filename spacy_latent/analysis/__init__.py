"""Statistics of structures, their agreement with references and with each other, and what these say
in words. Nothing here runs a model."""

from spacy_latent.analysis.trees import (
    BINARY_CONTROLS,
    CONTROLS,
    PUNCTUATION,
    Heads,
    TreeStatistics,
    attached,
    attachment,
    bracketing_f1,
    build_attachment_scorer_v1,
    build_attachment_scorer_v2,
    confidence_interval,
    nearest_operator,
    score_attachment,
    score_trees,
    tree_statistics,
)

__all__ = [
    "BINARY_CONTROLS",
    "CONTROLS",
    "PUNCTUATION",
    "Heads",
    "TreeStatistics",
    "attached",
    "attachment",
    "bracketing_f1",
    "build_attachment_scorer_v1",
    "build_attachment_scorer_v2",
    "confidence_interval",
    "nearest_operator",
    "score_attachment",
    "score_trees",
    "tree_statistics",
]
