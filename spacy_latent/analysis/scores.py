"""What spaCy's scorers are and give, by name: the types of our own beside them."""

from __future__ import annotations

from collections.abc import Callable

# By name of the score: a number, None where there was nothing to score, or a table of such.
Scores = dict[str, object]
# Of spaCy's ``scorers`` registry: from examples, and options that it may leave unread.
ExampleScorer = Callable[..., Scores]
