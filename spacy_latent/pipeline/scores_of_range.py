"""Checks of the scorer and the score weights of a text classifier with a ``score_range``.

spaCy's default scorers only score labels, and the default score weights are for labels.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from spacy_latent.errors import LatentWarning

# Modules that define scorers of labels.
SPACY = ("spacy", "spacy_legacy")
WEIGHTS = "cats_score = null and cats_r2 = 1.0"


class JudgedAsLabels(LatentWarning):
    """Warning for a component with a score_range and a scorer of labels."""


def judged_as_labels(pipe: Any) -> str | None:
    """Return a message if a component with a score_range is scored as if it predicted labels.

    Return None if its scorer is right, or if there is no score_range.
    """
    if pipe.cfg.get("score_range") is None:
        return None
    place, scorer = _scorer_of_cats(pipe)
    module = getattr(getattr(scorer, "func", scorer), "__module__", "")
    if module.split(".")[0] not in SPACY:
        return None
    return (
        f"{pipe.name}: score_range is {list(pipe.cfg['score_range'])}, but its scorer is of "
        "labels: its cats_score, the default score of training, is only for 0 and 1, and stays "
        'at 0 for other numbers. Set @scorers = "spacy-latent.regression_scorer.v1" in '
        f"[{place}], and {WEIGHTS} in [training.score_weights]."
    )


def weighed_as_labels(pipe: Any, weights: dict[str, float | None]) -> str | None:
    """Explain in sentences why score weights are wrong for a component with a scorer of numbers.

    Return None if they are right, or if there is no score_range.

    Args:
        weights: values of [training.score_weights].
    """
    from spacy_latent.analysis.regression import score_regression

    if pipe.cfg.get("score_range") is None or not weights.get("cats_score"):
        return None
    # A constant 0 changes no choice of the best model if the component gives another score.
    if weights.get("cats_r2") or weights.get("cats_mse"):
        return None
    if _scorer_of_cats(pipe)[1] is not score_regression:
        return None
    return (
        f"{pipe.name}: [training.score_weights] has cats_score = {weights['cats_score']:g}, a "
        f"score of labels, which its scorer does not compute, so it counts as 0. Set {WEIGHTS} "
        "there."
    )


def warn_judged_as_labels(pipe: Any) -> None:
    """Warn in initialize(), since training would only show a score that stays 0."""
    said = judged_as_labels(pipe)
    if said is not None:
        warnings.warn(said, JudgedAsLabels, stacklevel=3)


def _scorer_of_cats(pipe: Any) -> tuple[str, Any]:
    """Return the name of the config block with the scorer of ``doc.cats``, and that scorer."""
    from spacy_latent.analysis.rationales import score_rationales

    place, scorer = f"components.{pipe.name}.scorer", pipe.scorer
    if isinstance(scorer, partial) and scorer.func is score_rationales:
        return f"{place}.cats_scorer", scorer.keywords["cats_scorer"]
    return place, scorer
