"""Calibration of the probabilities of arcs and trees that a parser has learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.pipeline.learnt_calibration import (
    ConfidenceMap,
    confidence_of,
    confidences_of,
)

if TYPE_CHECKING:
    from spacy_latent.models.parses import ArcConfidences

# Smaller probabilities of whole trees are raised to this. It is far below the bound for other
# probabilities, since trees of long sentences are improbable.
LEAST_TREE = 1e-300


@dataclass(frozen=True)
class ParseCalibration(ConfidenceMap):
    """Calibration of a parser's probabilities, learnt from held-out text.

    The slope, the shift and the shifts map the probabilities of arcs. The shifts are by the most
    probable label of the arc. The confidence of a labelled arc is the confidence of the arc times
    the probability of the label given the arc.

    Attributes:
        temperature: divisor of the scores of arcs.
        label_temperature: divisor of the scores of labels.
        tree_slope, tree_shift: slope and shift of the log-odds of the probability of a whole tree.
        labelled_tree_slope, labelled_tree_shift: the same for a tree with its labels.
        coverage: share of the heads of a text that the sets of its words hold, on average over
            texts; None without sets.
        least: least confidence of an arc in a set.
        docs, arcs: numbers of docs and arcs of the fit.
    """

    temperature: float = 1.0
    label_temperature: float = 1.0
    tree_slope: float = 1.0
    tree_shift: float = 0.0
    labelled_tree_slope: float = 1.0
    labelled_tree_shift: float = 0.0
    coverage: float | None = None
    least: float | None = None
    docs: int = 0
    arcs: int = 0

    def confidences(self, labels: Sequence[str]) -> ArcConfidences | None:
        """Return the map of arcs for a parser with these labels, None if it changes nothing."""
        if not self.changes_odds:
            return None
        shifts = np.array(self.shifts_of(labels))
        return lambda said, places: confidences_of(said, self.slope, shifts[places])

    def lowest_of_set(self, labels: Sequence[str]) -> float:
        """Return a lower bound on the probability of arcs with a confidence of at least ``least``.

        Arcs below it need no label, which saves a fourth of the time of a parser with sets.
        """
        if self.least is None:
            return 0.0
        odds = math.log(self.least) - math.log1p(-self.least) - max(self.shifts_of(labels))
        # Probabilities are rounded to float32 before they are mapped.
        return (1 - 1e-4) / (1 + math.exp(min(700.0, -odds / self.slope)))

    def tree_confidences(self, whole: float, labelled: float) -> tuple[float, float]:
        """Return the confidences that a whole tree is right, without and with its labels.

        The second is reduced to the first if it is larger, since the two maps are fitted
        separately.

        Args:
            whole: probability of the tree.
            labelled: its probability with labels.
        """
        tree = confidence_of(whole, self.tree_slope, self.tree_shift, LEAST_TREE)
        slope, shift = self.labelled_tree_slope, self.labelled_tree_shift
        return tree, min(tree, confidence_of(labelled, slope, shift, LEAST_TREE))
