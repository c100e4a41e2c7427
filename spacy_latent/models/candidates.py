"""Sets of words that may be part of a rationale."""

from collections.abc import Callable, Sequence

import numpy as np
from spacy.attrs import IS_PUNCT, IS_SPACE, IS_STOP
from spacy.tokens import Doc

# Returns for each doc a mask of the tokens that may be chosen, (len(doc),) bool.
Candidates = Callable[[Sequence[Doc]], list[np.ndarray]]


class AllWords:
    """Every token."""

    def __repr__(self) -> str:
        return "AllWords()"

    def covers(self, other: Candidates) -> bool | None:
        """Return whether every candidate of ``other`` is one here; None if docs decide."""
        return True

    def __call__(self, docs: Sequence[Doc]) -> list[np.ndarray]:
        """Return a mask of the tokens of each doc, ``(n,)`` bool, all true."""
        return [np.ones(len(doc), dtype=bool) for doc in docs]


class ContentWords:
    """Tokens that are not white space."""

    def __init__(self, punctuation: bool = False, stop_words: bool = False) -> None:
        allowed = {IS_PUNCT: punctuation, IS_STOP: stop_words, IS_SPACE: False}
        self.excluded = [attribute for attribute, may in allowed.items() if not may]
        self.settings = f"punctuation={punctuation}, stop_words={stop_words}"

    def __repr__(self) -> str:
        return f"ContentWords({self.settings})"

    def covers(self, other: Candidates) -> bool | None:
        """Return whether every candidate of ``other`` is one here; None if docs decide."""
        if isinstance(other, AllWords):
            return False
        if isinstance(other, ContentWords):
            return set(self.excluded) <= set(other.excluded)
        return None

    def __call__(self, docs: Sequence[Doc]) -> list[np.ndarray]:
        """Return a mask of the tokens that may be chosen in each doc, ``(n,)`` bool."""
        return [self._of(doc) for doc in docs]

    def _of(self, doc: Doc) -> np.ndarray:
        excluded = np.zeros(len(doc), dtype=bool)
        for attribute in self.excluded:
            excluded |= doc.to_array(attribute).astype(bool)
        return ~excluded


def build_content_words_v1(punctuation: bool = False, stop_words: bool = True) -> Candidates:
    """Build candidates that exclude white space.

    Args:
        punctuation: whether punctuation may be chosen.
        stop_words: whether stop words may be chosen.
    """
    return ContentWords(punctuation, stop_words)
