"""Probabilities of spans as entities, in the best sequence of tags or not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor

from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.smoothed import smoothed_expectation
from spacy_latent.structures.tag_sequence import TagSequence

# Steps from tag to tag within an entity.
STEPS = ("BI", "BL", "II", "IL")
# Span with its label: first token, token after its last, number of the label.
Place = tuple[int, int, int]


class SpanProbabilities:
    """Probabilities of all labelled spans in a group of docs, under the learned distribution.

    See :func:`spacy_latent.models.tag_losses.probabilities`. A span is one run of tags. Its
    probability is that of its first tag, times the probability of each further tag given the
    previous one. A group takes time O(N·K²). Memory is O(N·K) for "crf" and "perceptron", and
    "quadratic" keeps every pair of tags. Then a span takes time in proportion to its length.

    Args:
        kind: name of the loss.
        chain: chain of BILUO tags, in the order of ``scheme_tags``.
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.
        marginals: ``(B, N, K)`` float64, if they are known. They are used for "crf" and
            "perceptron".
    """

    def __init__(
        self,
        kind: str,
        chain: TagSequence,
        scores: Tensor,
        lengths: Tensor,
        marginals: np.ndarray | None = None,
    ) -> None:
        self.lengths = lengths.tolist()
        self._mixture: list[dict[Place, float]] | None = None
        if kind == "sparsemap":
            self._mixture = _of_mixture(chain, scores, lengths)
            return
        if kind == "quadratic":
            of_tags, steps = _of_walk(chain, scores, lengths)
        else:
            of_tags, steps = _of_crf(chain, scores, lengths, marginals)
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
        for i, name in enumerate(names, start):
            value *= float(self._steps[name][b, i, label])
        return value

    def above(self, b: int, least: float) -> list[tuple[Place, float]]:
        """Return all spans of the b-th doc with at least this probability, the most probable first.

        Args:
            b: number of the doc.
            least: least probability, above 0. At most 1 / least of the spans begin at one token.
        """
        if self._mixture is not None:
            found = [(place, p) for place, p in self._mixture[b].items() if p >= least]
        else:
            found = self._grown(b, self.lengths[b], least)
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def _grown(self, b: int, length: int, least: float) -> list[tuple[Place, float]]:
        """Extend spans token by token, and drop runs that are less probable than ``least``.

        A longer span is no more probable than the run it extends.
        """
        single, running = self._single[b, :length], self._begin[b, :length].copy()
        found = _places(single, 0, 1, least)
        steps = {name: step[b] for name, step in self._steps.items()}
        for size in range(2, length + 1):
            running = running[: length - size + 1]
            if not (running >= least).any():
                break
            # The step to the last token of such spans, from the one before.
            before = slice(size - 2, length - 1)
            close, go_on = ("BL", "BI") if size == 2 else ("IL", "II")
            found += _places(running * steps[close][before], 0, size, least)
            running = running * steps[go_on][before]
        return found


def _places(values: np.ndarray, start: int, size: int, least: float) -> list[tuple[Place, float]]:
    tokens, labels = np.nonzero(values >= least)
    return [
        ((start + i, start + i + size, label), float(values[i, label]))
        for i, label in zip(tokens.tolist(), labels.tolist())
    ]


@lru_cache(maxsize=8)
def _within_labels(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second tag of each of STEPS in each label, ``(4, labels)``."""
    begin, inside, last = (1 + 4 * np.arange(count) + prefix for prefix in range(3))
    return np.stack([begin, begin, inside, inside]), np.stack([inside, last, inside, last])


def _divided(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Divide, with 0 wherever the divisor is 0."""
    return np.divide(values, by, out=np.zeros(values.shape), where=by > 0)


def _of_crf(
    chain: TagSequence, scores: Tensor, lengths: Tensor, marginals: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return marginals ``(B, N, K)``, and probabilities of tags given the previous one, in float64.

    The latter use sums over all continuations (Rabiner 1989, section III). NumPy has less overhead
    per operation than torch, which short docs would spend their time on.

    Args:
        marginals: if they are known.

    Returns:
        The second is ``(B, N - 1, 4, labels)``, in the order of STEPS.
    """
    assert chain.bound is not None
    exact = [part.double() for part in chain.bound]
    if marginals is None:
        marginals = chain.bind(*exact).marginals(scores.double(), lengths).cpu().numpy()
    between, _, end = (part.cpu().numpy() for part in exact)
    emissions = scores.detach().double().cpu().numpy()
    # At padding, any value is allowed.
    with np.errstate(invalid="ignore"):
        weight = np.exp(emissions - emissions.max(-1, keepdims=True))
    # One factor for all transitions cancels in each step.
    factor = np.exp(between - between.max())
    back = factor.T.copy()
    last = np.exp(end - end.max())
    positions, count = emissions.shape[1:]
    inside = np.arange(positions) < lengths.cpu().numpy()[:, None]
    padded = not inside.all()
    follows = np.broadcast_to(last, emissions.shape).copy()
    after, tiny = follows[:, -1], np.finfo(np.float64).tiny
    for i in range(positions - 2, -1, -1):
        reached = (weight[:, i + 1] * after) @ back
        reached /= np.maximum(reached.max(-1, keepdims=True), tiny)
        if padded:
            reached = np.where(inside[:, i + 1, None], reached, last)
        follows[:, i] = after = reached
    ahead = weight[:, 1:] * follows[:, 1:]
    # Only the few steps within a label are kept.
    first, second = _within_labels((count - 1) // 4)
    return marginals, _divided(
        factor[first, second] * ahead[..., second], (ahead @ back)[..., first]
    )


def _of_walk(chain: TagSequence, scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for the walk that quadratic smoothing induces."""
    pairs = chain.chain_scores(scores, lengths)
    walk = smoothed_expectation(LinearChain(), pairs, lengths, "quadratic").double().cpu().numpy()
    of_tags = walk.sum(2)
    first, second = _within_labels((scores.shape[-1] - 1) // 4)
    return of_tags, _divided(walk[:, 1:, first, second], of_tags[:, :-1, first])


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


__all__ = ["Place", "SpanProbabilities", "spans_of_tags"]
