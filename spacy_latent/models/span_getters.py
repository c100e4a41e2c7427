"""Spans of tokens that share one structure: sentences, or windows if sentences are not known."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from spacy.attrs import SENT_START
from spacy.tokens import Doc

from spacy_latent.errors import LatentError, LatentWarning, check_whole

# For each doc its spans as (start, end) token offsets, in order and without overlap; or pairs of
# spans as (start, end, other_start, other_end).
SpanGetter = Callable[[Sequence[Doc]], list[list[tuple[int, ...]]]]


class _BoundedSpans(ABC):
    """Base of span getters that split longer texts, with one warning."""

    def __init__(self, max_length: int) -> None:
        check_whole(type(self).__name__, max_length=max_length)
        self.max_length = max_length
        self._warned = False

    def __call__(self, docs: Sequence[Doc]) -> list[list[tuple[int, ...]]]:
        return [self._split(doc) for doc in docs]

    @abstractmethod
    def _split(self, doc: Doc) -> list[tuple[int, ...]]: ...

    def _warn(self, text: str, consequence: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{text} is longer than max_length={self.max_length}: {consequence} This warning "
                "is shown once.",
                LatentWarning,
                stacklevel=2,
            )


class SentenceSpans(_BoundedSpans):
    """One span per sentence if the doc has sentence boundaries, otherwise windows over the doc.

    Args:
        max_length: bound on the tokens of a span. Longer ones are split into the smallest number of
            spans of nearly equal length, with one warning; no token is left out.
    """

    def __init__(self, max_length: int = 128) -> None:
        super().__init__(max_length)

    def _starts(self, doc: Doc) -> list[int]:
        """Return the token offsets of the sentences of a doc that is not empty."""
        if "sents" in doc.user_hooks:
            # User hooks may return sentences in any order, which need not cover the doc.
            return sorted({0, *(sentence.start for sentence in doc.sents if len(sentence))})
        if not doc.has_annotation(SENT_START):
            return [0]
        starts = np.flatnonzero(doc.to_array(SENT_START) == 1).tolist()
        return starts if starts and starts[0] == 0 else [0, *starts]

    def _split(self, doc: Doc) -> list[tuple[int, ...]]:
        if not len(doc):
            return []
        starts = self._starts(doc)
        spans: list[tuple[int, ...]] = []
        for start, end in zip(starts, [*starts[1:], len(doc)]):
            pieces = -(-(end - start) // self.max_length)
            if pieces > 1:
                self._warn(
                    f"A text of {end - start} tokens without a sentence boundary",
                    "it is split into windows, each with a structure of its own. Set sentence "
                    "boundaries (for example with the 'sentencizer' before this component) or "
                    "raise max_length of the model's span_getter.",
                )
            bounds = [start + (end - start) * i // pieces for i in range(pieces + 1)]
            spans.extend(pairwise(bounds))
        return spans


class DocSpans(SentenceSpans):
    """Windows over the doc, regardless of its sentence boundaries."""

    def _starts(self, doc: Doc) -> list[int]:
        return [0]


class PairSpans(_BoundedSpans):
    """Two texts of each doc: the spans under ``doc.spans[first]`` and ``doc.spans[second]``.

    If one of them is empty, there is no pair.

    Args:
        first, second: names of the span groups of the two texts.
        max_length: bound on the tokens of each text. Both texts of a longer pair are split into the
            same number of pieces of nearly equal length, with one warning; no token is left out.
    """

    def __init__(self, first: str = "a", second: str = "b", max_length: int = 512) -> None:
        super().__init__(max_length)
        if first == second:
            raise LatentError(
                f"PairSpans: both texts are in doc.spans[{first!r}]; name two span groups."
            )
        self.keys = first, second

    def texts(self, doc: Doc) -> list[tuple[int, int]]:
        """Return the token offsets of the first and the second text.

        Raises:
            LatentError: if the doc has tokens and not exactly one span for each text.
        """
        return [self._text(doc, key) for key in self.keys]

    def _text(self, doc: Doc, key: str) -> tuple[int, int]:
        spans = list(doc.spans[key]) if key in doc.spans else None
        if not len(doc) or spans == []:
            return 0, 0
        if spans is None or len(spans) > 1:
            there = "no such group" if spans is None else f"{len(spans)} spans in it"
            raise LatentError(
                f"The doc {doc.text[:40]!r} is not a pair of texts: doc.spans[{key!r}] must hold "
                f"one span, the words of one of the two texts, and the doc has {there}. Make docs "
                "with spacy_latent.corpora.text_pairs.make_pair_doc, and train with the reader "
                "spacy-latent.TextPairs.v1, which keeps the spans. Instead of 'spacy evaluate', "
                "which drops them, use 'spacy latent evaluate pairs MODEL CORPUS'."
            )
        return spans[0].start, spans[0].end

    def _split(self, doc: Doc) -> list[tuple[int, ...]]:
        (start, end), (other_start, other_end) = self.texts(doc)
        size, other_size = end - start, other_end - other_start
        if not size or not other_size:
            return []
        if start < other_end and other_start < end:
            raise LatentError(
                f"The texts of the doc {doc.text[:40]!r} overlap: doc.spans[{self.keys[0]!r}] is "
                f"tokens {start} to {end} and doc.spans[{self.keys[1]!r}] {other_start} to "
                f"{other_end}. Make docs with spacy_latent.corpora.text_pairs.make_pair_doc."
            )
        pieces = -(-max(size, other_size) // self.max_length)
        if pieces > 1:
            self._warn(
                f"A text of {max(size, other_size)} tokens",
                "it and the other text of its pair are split into pieces, and words are aligned "
                "within each. Raise max_length of spacy-latent.PairSpans.v1, or shorten the texts.",
            )
        bounds = [start + size * i // pieces for i in range(pieces + 1)]
        others = [other_start + other_size * i // pieces for i in range(pieces + 1)]
        pairs = zip(bounds, bounds[1:], others, others[1:])
        return [pair for pair in pairs if pair[0] < pair[1] and pair[2] < pair[3]]


def build_sentence_spans_v1(max_length: int = 128) -> SpanGetter:
    """Build a span getter for sentences."""
    return SentenceSpans(max_length)


def build_doc_spans_v1(max_length: int = 128) -> SpanGetter:
    """Build a span getter for whole docs, split if they are long."""
    return DocSpans(max_length)


def build_pair_spans_v1(first: str = "a", second: str = "b", max_length: int = 512) -> SpanGetter:
    """Build a span getter for docs of two texts."""
    return PairSpans(first, second, max_length)
