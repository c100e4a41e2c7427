"""Tokenizer that splits on white space, for tokenised text such as ListOps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spacy.tokens import Doc
from spacy.util import DummyTokenizer

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.vocab import Vocab


class WhitespaceTokenizer(DummyTokenizer):
    """Tokenizer that splits on white space.

    It has no rules, so nothing is saved with a pipeline. Runs of white space count as one.
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    def __call__(self, text: str) -> Doc:
        """Return a doc of the words, with one space for the white space after each."""
        words = text.split()
        spaces = [True] * len(words)
        if words and not text[-1:].isspace():
            spaces[-1] = False
        return Doc(self.vocab, words=words, spaces=spaces)


def _make_tokenizer(nlp: Language) -> WhitespaceTokenizer:
    """Return a tokenizer that splits on white space."""
    return WhitespaceTokenizer(nlp.vocab)


def build_whitespace_tokenizer_v1() -> Callable[[Language], WhitespaceTokenizer]:
    """Build a tokenizer for text that is tokenised already."""
    return _make_tokenizer
