"""Statistics of structures, their agreement with references and with each other, and what these say
in words. Nothing here runs a model."""

from spacy_latent.analysis.trees import (
    BINARY_CONTROLS,
    CONTROLS,
    TreeStatistics,
    attachment,
    bracketing_f1,
    build_attachment_scorer_v1,
    confidence_interval,
    nearest_operator,
    score_attachment,
    tree_statistics,
)

__all__ = [
    "BINARY_CONTROLS",
    "CONTROLS",
    "TreeStatistics",
    "attachment",
    "bracketing_f1",
    "build_attachment_scorer_v1",
    "confidence_interval",
    "nearest_operator",
    "score_attachment",
    "tree_statistics",
]
