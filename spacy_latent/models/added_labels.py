"""Labels that are added to a trained model: they begin so that its predictions stay as they were.

What is new scores as "no label" does, less ``BEHIND``, so that it is the better choice nowhere
before something was learned of it. Until the model is trained again predictions leave it out
altogether, and with it the little probability that it would take from the rest.
"""

from __future__ import annotations

from thinc.api import Model

# In scores, of which a few steps of training make up for so many.
BEHIND = 4.0
# What predictions have in the place of the scores of what is new. Not infinite: it may be all that
# a doc allows, and gradients and interventions take differences.
IMPOSSIBLE = -1e3
# Name of the attribute that has how many of the last classes were added since the last training.
UNTRAINED = "untrained"


def count_as_trained(model: Model) -> None:
    """Let predictions have all classes, after a step of training."""
    model.attrs[UNTRAINED] = 0


__all__ = ["BEHIND", "IMPOSSIBLE", "UNTRAINED", "count_as_trained"]
