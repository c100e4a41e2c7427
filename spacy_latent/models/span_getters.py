"""Which tokens share one structure: a sentence, or a window where sentences are not known."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from spacy.attrs import SENT_START
from spacy.tokens import Doc

from spacy_latent.errors import LatentError, LatentWarning

# For each doc its spans as (start, end) token offsets, in order and without overlap; or pairs of
# spans as (start, end, other_start, other_end).
SpanGetter = Callable[[Sequence[Doc]], list[list[tuple[int, ...]]]]


class SentenceSpans:
    """One span per sentence where the doc has sentence boundaries, else windows over the doc.

    max_length: bound on the tokens of a span. Longer ones are split into the smallest number of
        spans of nearly equal length, with one warning; no token is left out.
    """

    def __init__(self, max_length: int = 128) -> None:
        if max_length < 1:
            raise LatentError(f"{type(self).__name__}: max_length is {max_length}, must be >= 1.")
        self.max_length = max_length
        self._warned = False

    def __call__(self, docs: Sequence[Doc]) -> list[list[tuple[int, ...]]]:
        return [self._split(doc) for doc in docs]

    def _starts(self, doc: Doc) -> list[int]:
        """Token offsets of the sentences of a doc that is not empty."""
        if "sents" in doc.user_hooks:
            return [sentence.start for sentence in doc.sents]
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
                self._warn(end - start)
            bounds = [start + (end - start) * i // pieces for i in range(pieces + 1)]
            spans.extend(zip(bounds, bounds[1:]))
        return spans

    def _warn(self, length: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"A text of {length} tokens without a sentence boundary is longer than "
                f"max_length={self.max_length}: it is split into windows, each with a structure of "
                "its own. Set sentence boundaries (for example with the 'sentencizer' before this "
                "component) or raise max_length. This is said once.",
                LatentWarning,
                stacklevel=2,
            )


class DocSpans(SentenceSpans):
    """Windows over the doc, whatever its sentence boundaries."""

    def _starts(self, doc: Doc) -> list[int]:
        return [0]


def build_sentence_spans_v1(max_length: int = 128) -> SpanGetter:
    return SentenceSpans(max_length)


def build_doc_spans_v1(max_length: int = 128) -> SpanGetter:
    return DocSpans(max_length)
