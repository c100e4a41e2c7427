"""Types of spaCy's scorers and their results, and a warning that the scorers share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from spacy.training import Example

from spacy_latent.errors import LatentWarning

# By name of the score: a number, None if there was nothing to score, or a table of such.
Scores = dict[str, object]
# Scorer of spaCy's ``scorers`` registry. It receives examples and options, and may ignore options.
ExampleScorer = Callable[..., Scores]


def warn_without_annotations(
    scorer: str, examples: Iterable[Example], component: str, missing: str, advice: str
) -> None:
    """Warn if no doc with tokens has an annotation of a component.

    A misspelled name would otherwise leave scores out in silence.

    Args:
        scorer: name of the scorer, for the message.
        missing: what is missing in the scores, such as "ents_ece is".
        advice: what to do.
    """
    docs = [example.predicted for example in examples if len(example.predicted)]
    if not docs or any(component in doc._.latent for doc in docs):
        return
    there = ", ".join(sorted({repr(name) for doc in docs for name in doc._.latent}))
    warnings.warn(
        f"{scorer}: no doc has annotations of a component {component!r}, so {missing} missing. "
        f"The docs have {there or 'nothing of any'}. {advice}",
        LatentWarning,
        stacklevel=3,
    )
