"""Types of spaCy's scorers and their results."""

from __future__ import annotations

from collections.abc import Callable

# By name of the score: a number, None if there was nothing to score, or a table of such.
Scores = dict[str, object]
# Scorer of spaCy's ``scorers`` registry. It receives examples and options, and may ignore options.
ExampleScorer = Callable[..., Scores]
