"""Start values for labels that are added to a trained model.

The predictions of the model stay the same. The score of a new label is the score of "no label"
minus ``BEHIND``, so it is never the best choice before it is trained. Predictions exclude new
labels until the next training, since they would take a little probability from the others.
"""

from __future__ import annotations

from thinc.api import Model

# Difference of scores; a few steps of training compensate for it.
BEHIND = 4.0
# Score of new labels in predictions. It is finite: they may be all that a doc allows, and
# gradients and interventions take differences.
IMPOSSIBLE = -1e3
# Name of the attribute with the number of classes added since the last training.
UNTRAINED = "untrained"


def count_as_trained(model: Model) -> None:
    """Let predictions have all classes, after a step of training."""
    model.attrs[UNTRAINED] = 0
