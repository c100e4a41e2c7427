"""Probabilities that spans are entities, whether or not they are in the best sequence of tags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

# Steps from tag to tag within an entity, in the order of ``steps_within_labels``.
STEPS = ("BI", "BL", "II", "IL")
# Span with its label: first token, token after its last, number of the label.
Place = tuple[int, int, int]


class LikelySpans(NamedTuple):
    """Labelled spans of a group of docs.

    Attributes:
        docs: ``(S,)`` int64, numbers of the docs.
        starts, ends: ``(S,)`` int64, the first tokens, and the tokens after the last.
        labels: ``(S,)`` int64, numbers of the labels.
        probabilities: ``(S,)`` float64.
    """

    docs: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray


@lru_cache(maxsize=8)
def steps_within_labels(labels: int) -> np.ndarray:
    """Return the first and the second tag of the steps BI, BL, II and IL, ``(2, 4, labels)``.

    The tags are those of the BILUO scheme, in the order of ``scheme_tags``.
    """
    begin, inside, last = (1 + 4 * np.arange(labels) + prefix for prefix in range(3))
    return np.array([[begin, begin, inside, inside], [inside, last, inside, last]])


class SpanProbabilities(ABC):
    """Probabilities of all labelled spans in a group of docs, under the learned distribution.

    See :meth:`spacy_latent.models.tag_losses.Probabilities.spans`.
    """

    @abstractmethod
    def of(self, b: int, place: Place) -> float:
        """Return the probability of one span of the b-th doc."""

    @abstractmethod
    def above(self, least: float) -> LikelySpans:
        """Return all spans of the group with at least this probability.

        Spans with the same first token are in the order of their ends, then of their labels.

        Args:
            least: least probability, above 0. At most 1 / least of the spans begin at one token.
        """


class MarkovSpans(SpanProbabilities):
    """Probabilities of spans if each tag depends on the previous one alone.

    A span is one run of tags. Its probability is the probability of its first tag, times the
    probability of each further tag given the previous one. A span takes time in proportion to its
    length.

    Args:
        tags: ``(B, N, K)``, probabilities of tags.
        steps: ``(B, N, 4, labels)``, see ``Probabilities.within_labels``.
    """

    def __init__(self, tags: np.ndarray, steps: np.ndarray) -> None:
        count = (tags.shape[-1] - 1) // 4
        # "O", then B, I, L and U of each label.
        of_labels = tags[..., 1:].reshape(*tags.shape[:2], count, 4)
        self._begin, self._single = of_labels[..., 0], of_labels[..., 3]
        self._steps = {name: steps[:, :, i] for i, name in enumerate(STEPS)}

    def of(self, b: int, place: Place) -> float:
        start, end, label = place
        if end == start + 1:
            return float(self._single[b, start, label])
        names = ["BL"] if end == start + 2 else ["BI", *["II"] * (end - start - 3), "IL"]
        value = float(self._begin[b, start, label])
        for i, name in enumerate(names, start + 1):
            value *= float(self._steps[name][b, i, label])
        return value

    def above(self, least: float) -> LikelySpans:
        # Extend each likely first token by one token after another, while the run has a probability
        # of ``least`` or more: a longer span is at most as probable as the run that it extends. No
        # run leaves its doc, since steps after the last token have probability 0.
        tokens, count = self._single.shape[1:]
        single, begin = self._single.reshape(-1), self._begin.reshape(-1)
        go_on, close, later, end = (self._steps[name].reshape(-1) for name in STEPS)
        # Flat indices of [doc, token, label]. The next token's index is larger by ``count``.
        at = (single >= least).nonzero()[0]
        places, values, sizes = [at], [single.take(at)], [len(at)]
        at = (begin >= least).nonzero()[0]
        running, following = begin.take(at), at
        while len(at):
            # Gather with ``take`` and indices, which is faster in NumPy than a mask.
            following = following + count
            closed = running * close.take(following)
            kept = (closed >= least).nonzero()[0]
            # The entry i has the spans of i + 1 tokens.
            places.append(at.take(kept))
            values.append(closed.take(kept))
            sizes.append(len(kept))
            running = running * go_on.take(following)
            kept = (running >= least).nonzero()[0]
            at, running, following = at.take(kept), running.take(kept), following.take(kept)
            go_on, close = later, end
        lengths = np.arange(1, len(sizes) + 1).repeat(sizes)
        rows, labels = np.divmod(np.concatenate(places), count)
        docs, starts = np.divmod(rows, tokens)
        return LikelySpans(docs, starts, starts + lengths, labels, np.concatenate(values))


class MixtureSpans(SpanProbabilities):
    """Probabilities of spans in a mixture of a few sequences.

    Args:
        sequences: ``(S, B, N)``, numbers of tags, −1 at padding.
        weights: ``(S, B)``.
    """

    def __init__(self, sequences: np.ndarray, weights: np.ndarray) -> None:
        self._docs: list[dict[Place, float]] = []
        for b in range(weights.shape[1]):
            own: dict[Place, float] = {}
            for tags, weight in zip(sequences[:, b], weights[:, b].tolist()):
                for place in spans_of_tags(tags[tags >= 0]) if weight > 0 else ():
                    own[place] = own.get(place, 0.0) + weight
            self._docs.append(own)

    def of(self, b: int, place: Place) -> float:
        return self._docs[b].get(place, 0.0)

    def above(self, least: float) -> LikelySpans:
        found = [
            (b, *place, p)
            for b, own in enumerate(self._docs)
            for place, p in sorted(own.items())
            if p >= least
        ]
        *numbers, values = np.array(found, dtype="float64").reshape(-1, 5).T
        docs, starts, ends, labels = np.array(numbers, dtype="int64")
        return LikelySpans(docs, starts, ends, labels, values)


def spans_of_tags(tags: Sequence[int] | np.ndarray) -> list[Place]:
    """Return the entities of a valid sequence of BILUO tags, numbered as in ``scheme_tags``."""
    found, start = [], 0
    for i, tag in enumerate(np.asarray(tags).tolist()):
        if not tag:
            continue
        label, prefix = divmod(tag - 1, 4)
        if prefix in (0, 3):
            start = i
        if prefix in (2, 3):
            found.append((start, i + 1, label))
    return found
