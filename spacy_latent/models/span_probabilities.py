"""Probabilities of spans as entities, in the best sequence of tags or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from spacy_latent.models.tag_losses import Probabilities, probabilities, steps_within_labels
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.smoothed import smoothed_expectation
from spacy_latent.structures.tag_sequence import TagSequence

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


class SpanProbabilities:
    """Probabilities of all labelled spans in a group of docs, under the learned distribution.

    See :func:`spacy_latent.models.tag_losses.probabilities`. A span is one run of tags. Its
    probability is that of its first tag, times the probability of each further tag given the
    previous one. A group takes time O(N·K²). Memory is O(N·K) for "crf" and "perceptron", and
    "quadratic" keeps every pair of tags. Then a span takes time in proportion to its length.

    Args:
        chain: chain of BILUO tags, in the order of ``scheme_tags``.
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.
        likely: the result of ``probabilities`` with ``within_labels``, if it is known. It is used
            for "crf" and "perceptron".
    """

    def __init__(
        self,
        kind: str,
        chain: TagSequence,
        scores: Tensor,
        lengths: Tensor,
        likely: Probabilities | None = None,
    ) -> None:
        self._mixture: list[dict[Place, float]] | None = None
        if kind == "sparsemap":
            self._mixture = _of_mixture(chain, scores, lengths)
            return
        if kind == "quadratic":
            of_tags, steps = _of_walk(chain, scores, lengths)
        else:
            if likely is None:
                likely = probabilities(kind, chain, scores, lengths, within_labels=True)
            assert likely.within_labels is not None
            of_tags, steps = likely.tags, likely.within_labels
        count = (of_tags.shape[-1] - 1) // 4
        # "O", then B, I, L and U of each label.
        of_labels = of_tags[..., 1:].reshape(*of_tags.shape[:2], count, 4)
        self._begin, self._single = of_labels[..., 0], of_labels[..., 3]
        self._steps = {name: steps[:, :, i] for i, name in enumerate(STEPS)}

    def of(self, b: int, place: Place) -> float:
        """Return the probability of one span of the b-th doc."""
        start, end, label = place
        if self._mixture is not None:
            return self._mixture[b].get(place, 0.0)
        if end == start + 1:
            return float(self._single[b, start, label])
        names = ["BL"] if end == start + 2 else ["BI", *["II"] * (end - start - 3), "IL"]
        value = float(self._begin[b, start, label])
        for i, name in enumerate(names, start + 1):
            value *= float(self._steps[name][b, i, label])
        return value

    def above(self, least: float) -> LikelySpans:
        """Return all spans of the group with at least this probability.

        Spans with the same first token are in the order of their ends, then of their labels.

        Args:
            least: least probability, above 0. At most 1 / least of the spans begin at one token.
        """
        if self._mixture is None:
            return self._grown(least)
        found = [
            (b, *place, p)
            for b, own in enumerate(self._mixture)
            for place, p in sorted(own.items())
            if p >= least
        ]
        *numbers, values = np.array(found, dtype="float64").reshape(-1, 5).T
        docs, starts, ends, labels = np.array(numbers, dtype="int64")
        return LikelySpans(docs, starts, ends, labels, values)

    def _grown(self, least: float) -> LikelySpans:
        """Extend each likely begin token by token, as long as the run has ``least``.

        A longer span is no more probable than the run it extends. No run leaves its doc, since no
        entity goes on after the last token: these steps have the probability 0.
        """
        tokens, count = self._single.shape[1:]
        single, begin = self._single.reshape(-1), self._begin.reshape(-1)
        go_on, close, later, end = (self._steps[name].reshape(-1) for name in STEPS)
        # Numbers of the first tokens with the label, of all docs. The next token has count more.
        at = (single >= least).nonzero()[0]
        places, values, sizes = [at], [single.take(at)], [len(at)]
        at = (begin >= least).nonzero()[0]
        running, following = begin.take(at), at
        while len(at):
            # Gathered by take and by numbers, which NumPy does in less time than by a mask.
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


def _divided(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Divide, with 0 wherever the divisor is 0."""
    return np.divide(values, by, out=np.zeros(values.shape), where=by > 0)


def _of_walk(chain: TagSequence, scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return tags and steps within labels of the walk that quadratic smoothing induces."""
    pairs = chain.chain_scores(scores, lengths)
    walk = smoothed_expectation(LinearChain(), pairs, lengths, "quadratic").double().cpu().numpy()
    of_tags = walk.sum(2)
    first, second = steps_within_labels((scores.shape[-1] - 1) // 4)
    steps = np.zeros((*of_tags.shape[:2], *first.shape))
    steps[:, 1:] = _divided(walk[:, 1:, first, second], of_tags[:, :-1, first])
    return of_tags, steps


def _of_mixture(chain: TagSequence, scores: Tensor, lengths: Tensor) -> list[dict[Place, float]]:
    """Return for each doc the weight of SparseMAP's sequences that have each span."""
    solution = LinearChain().sparsemap(chain.chain_scores(scores, lengths), lengths)
    sequences = solution.atoms.amax(3).argmax(-1).cpu().numpy()
    weights = solution.weights.cpu().numpy()
    found: list[dict[Place, float]] = []
    for b, length in enumerate(lengths.tolist()):
        own: dict[Place, float] = {}
        for sequence, weight in zip(sequences[:, b, :length], weights[:, b].tolist()):
            for place in spans_of_tags(sequence) if weight > 0 else ():
                own[place] = own.get(place, 0.0) + weight
        found.append(own)
    return found


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
